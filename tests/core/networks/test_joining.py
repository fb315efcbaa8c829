"""Is a network joined as a person would type it, and never one that its chain contradicts?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client import auditor_cli
from client import cli as client_cli
from core.keys.signer import Signer
from core.networks.joining import read_source, require_newer
from core.protocol.errors import ConfigError, Unreachable, UsageError
from core.protocol.network_file import NetworkFile, read_network
from core.runtime.folders import Folders
from core.runtime.settings import load
from matcher import cli as matcher_cli
from miner import cli as miner_cli
from tests.conftest import Anvil
from tests.core.networks.deployed import OWNER, deploy_riverside
from tests.served import served
from tests.twins.make_vectors import VectorSigner, network_file

replace = msgspec.structs.replace
PROGRAMS = {
    "client": client_cli,
    "auditor": auditor_cli,
    "miner": miner_cli,
    "matcher": matcher_cli,
}


@pytest.fixture(scope="module")
def true(anvil: Anvil, signers: list[Signer]) -> NetworkFile:
    return deploy_riverside(anvil.rpc_url, signers)


class Person:
    """A home, and the programs in this process."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self._capsys = home, capsys
        self.folders = Folders.at(home)

    def write(self, file: NetworkFile, name: str = "given.json") -> str:
        path = self.home.parent / name
        path.write_bytes(file.as_json())
        return str(path)

    def run(self, program: str, *words: str) -> tuple[int, Any]:
        """Exit code, and the last result or error."""
        code = PROGRAMS[program].main([*words, "--json", "--yes"])
        document = json.loads(self._capsys.readouterr().out.splitlines()[-1])
        return code, document.get("result", document.get("error"))


@pytest.fixture
def person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Person:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    return Person(home, capsys)


@pytest.mark.chain
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_joins_a_network_and_is_on_it(
    person: Person, anvil: Anvil, true: NetworkFile, program: str
) -> None:
    file = person.write(replace(true, rpc_url="http://of-whoever-sent-it.example"))
    code, joined = person.run(program, "network", "join", file, "--rpc-url", anvil.rpc_url)
    assert code == 0, joined
    assert joined["digest"] == "0x" + true.digest.hex()

    settings = load(flags={"network.name": "riverside"}, environ={}, folders=person.folders)
    assert settings.require_network() == (31337, anvil.rpc_url), "the reader's node, not theirs"
    assert settings.network.contract("Escrow") == true.contracts["Escrow"]
    assert settings.network.deploy_block == true.deploy_block

    code, shown = person.run(program, "network", "--network", "riverside")
    assert (code, shown["current"], shown["owner"]) == (0, True, true.owner)
    code, listed = person.run(program, "network", "ls")
    assert {row["network"]: row["revision"] for row in listed} == {"devnet": None, "riverside": 1}


@pytest.mark.chain
def test_a_file_that_the_chain_contradicts_is_not_kept(
    person: Person, anvil: Anvil, true: NetworkFile, signers: list[Signer]
) -> None:
    """Signed by the owner's own key: the escrow is a contract of a stranger's."""
    swapped = true.contracts | {"Escrow": true.contracts["MinerRegistry"]}
    false = replace(true, contracts=swapped).signed_with(signers[OWNER])
    node = ("--rpc-url", anvil.rpc_url)
    for words in (("network", "join"), ("network", "check")):
        code, refused = person.run("client", *words, person.write(false), *node)
        assert code == 9
        assert "code of Escrow" in refused["why"]
    assert not person.folders.networks.exists()
    code, rows = person.run("client", "network", "check", person.write(true), *node)
    assert code == 0 and all(row["ok"] for row in rows)


@pytest.mark.chain
def test_a_later_revision_replaces_an_earlier_one_and_never_the_other_way(
    person: Person, anvil: Anvil, true: NetworkFile, signers: list[Signer]
) -> None:
    node = ("--rpc-url", anvil.rpc_url)
    newer = replace(true, revision=2, bootstrap_peers=("/ip4/1.2.3.4/tcp/1",))
    newer = newer.signed_with(signers[OWNER])
    for file in (true, newer):
        assert person.run("miner", "network", "join", person.write(file), *node)[0] == 0
    code, refused = person.run("miner", "network", "join", person.write(true), *node)
    assert code == 2 and "old" in refused["what"]
    assert read_network((person.folders.networks / "riverside.json").read_bytes()).revision == 2
    code, _ = person.run("miner", "network", "join", person.write(newer))
    assert code == 0, "the node that it was joined through is known"


@pytest.mark.chain
def test_a_name_that_is_taken_is_not_taken_over(
    person: Person, anvil: Anvil, true: NetworkFile
) -> None:
    person.folders.networks.mkdir(parents=True)
    mine = person.folders.networks / "riverside.json"
    mine.write_text('{"chain_id": 31337}')
    join = ("network", "join", person.write(true), "--rpc-url", anvil.rpc_url)
    code, refused = person.run("client", *join)
    assert code == 2 and "nobody signed" in refused["why"]
    assert mine.read_text() == '{"chain_id": 31337}'
    code, joined = person.run("client", *join, "--as", "other")
    assert (code, joined["network"]) == (0, "other")
    code, refused = person.run("client", *join, "--as", "../../config/config")
    assert code == 2 and "no name" in refused["what"]


def test_a_network_that_is_not_known_is_no_empty_answer(person: Person) -> None:
    code, refused = person.run("auditor", "network", "show", "nonesuch")
    assert code == 2 and "not known" in refused["what"]
    code, shown = person.run("auditor", "network")
    assert (code, shown["network"], shown["chain_id"]) == (0, "devnet", None)


def test_without_a_node_it_is_said_what_is_missing(person: Person) -> None:
    code, refused = person.run("client", "network", "join", person.write(network_file()))
    assert code == 2
    assert "network.rpc_url" in refused["why"]


@pytest.mark.parametrize(
    "source",
    [
        "http://host.example/riverside.json",
        "https://host.example/",
        "https://host.example/a.json?token=1",
        "ftp://host.example/a.json",
        "https:///a.json",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_https_address_of_a_file_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="no place"):
        read_source(source, are_private_allowed=False)


def test_a_url_is_read_within_limits(tmp_path: Path) -> None:
    signed = network_file().signed_with(VectorSigner())
    (tmp_path / "good.json").write_bytes(signed.as_json())
    (tmp_path / "long.json").write_bytes(b" " * 2**19)
    (tmp_path / "other.json").write_bytes(b"[]")
    with served(tmp_path) as url:
        assert read_source(f"{url}/good.json", are_private_allowed=True) == signed
        with pytest.raises(Unreachable, match="long"):
            read_source(f"{url}/long.json", are_private_allowed=True)
        with pytest.raises(Unreachable, match="no network file"):
            read_source(f"{url}/missing.json", are_private_allowed=True)
        with pytest.raises(ConfigError, match="no network file"):
            read_source(f"{url}/other.json", are_private_allowed=True)


def test_a_url_of_our_own_network_is_not_dialled(tmp_path: Path) -> None:
    with served(tmp_path) as url, pytest.raises(Unreachable, match="is not read from"):
        read_source(url.replace("http", "https") + "/good.json", are_private_allowed=False)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_source(str(tmp_path / "none.json"), are_private_allowed=False)


def test_a_file_replaces_an_older_one_of_the_same_network_alone() -> None:
    signed = network_file().signed_with(VectorSigner())
    require_newer(signed, signed)
    require_newer(signed, replace(signed, revision=8, models={}))
    with pytest.raises(ConfigError, match="old"):
        require_newer(signed, replace(signed, revision=6))
    with pytest.raises(ConfigError, match="two files"):
        require_newer(signed, replace(signed, models={}))
    with pytest.raises(ConfigError, match="another network"):
        require_newer(signed, replace(signed, chain_id=1, revision=8))
