"""Does an owner get a network from a parameters file, as a person would type it?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.networks.parameters import PRESETS
from core.networks.plan import parameters_of, read_wanted, require_apart
from core.protocol.errors import ConfigError
from core.protocol.network_file import USD, read_network
from matcher.commands.own_network import GAS
from tests.conftest import CHAIN_ID, ROOT
from tests.matcher.commands.office import DEPLOYER, GUARDIAN, OWNER, Office, parameters_file


def gas_used(office: Office, hashes: list[str]) -> int:
    async def work() -> int:
        chain = RpcChain(office.rpc_url, CHAIN_ID, {})
        receipts = [await chain.rpc("eth_getTransactionReceipt", one) for one in hashes]
        await chain.close()
        return sum(int(receipt["gasUsed"], 16) for receipt in receipts)

    return asyncio.run(work())


@pytest.mark.chain
def test_a_network_is_deployed_and_its_owner_signs_its_file(
    office: Office, signers: list[Signer]
) -> None:
    file = office.write(parameters_file(signers, parameters={"turn_s": "29s", "bond": "21usd"}))
    code, made = office.run("network", "deploy", file, "--token", "new")
    assert code == 0, made
    assert not made["signed"]
    network = read_network(Path(made["file"]).read_bytes())
    assert network.owner == signers[OWNER].address
    assert (network.parameters.turn_s, network.parameters.bond) == (29, 21 * USD)
    assert set(json.loads(Path(made["explorer_file"]).read_text())) == set(network.creations)

    assert 0.95 * GAS < gas_used(office, list(network.creations.values())) < GAS

    code, refused = office.run("network", "sign", made["file"], wallet="guardian")
    assert (code, refused["code"]) == (9, "E-CHECK-01")
    code, signed = office.run("network", "sign", made["file"], wallet="owner")
    assert (code, signed["digest"]) == (0, made["digest"])
    assert read_network(Path(made["file"]).read_bytes()).recovered == network.owner
    code, signed = office.run("network", "sign", made["file"], "--new", wallet="owner")
    assert (code, signed["revision"]) == (0, 2)

    code, same = office.run("network", "deploy", file, "--token", "new")
    assert (code, same["contracts"], same["signed"]) == (0, made["contracts"], True), (
        "it finds nothing left to do, and leaves the owner's file alone"
    )


@pytest.mark.chain
def test_an_erc20_of_others_is_used_by_its_address(office: Office, signers: list[Signer]) -> None:
    async def token() -> str:
        chain = RpcChain(office.rpc_url, CHAIN_ID, {})
        at = await chain.deploy(signers[5], "TestUSD", signers[5].address)
        await chain.transact(signers[5], "TestUSD", "mint", signers[6].address, USD)
        await chain.close()
        return at

    at = asyncio.run(token())
    file = office.write(parameters_file(signers, preset="production"))
    code, refused = office.run("network", "deploy", file, "--token", "new")
    assert code == 2 and "mint" in refused["why"]
    code, refused = office.run("network", "deploy", file, "--token", at)
    assert code == 2 and "--holder" in refused["next"]
    holder = ("--holder", signers[6].address)
    code, made = office.run("network", "deploy", file, "--token", at, *holder)
    assert code == 0, made
    assert made["contracts"]["TestUSD"] == at
    assert len(made["contracts"]) == 12


@pytest.mark.chain
def test_unsound_parameters_send_nothing(office: Office, signers: list[Signer]) -> None:
    file = office.write(parameters_file(signers, parameters={"turn_s": 31}))
    code, refused = office.run("network", "deploy", file, "--token", "new")
    assert code == 2
    assert "890" in refused["why"] and "899" in refused["why"]

    async def nonce() -> int:
        chain = RpcChain(office.rpc_url, CHAIN_ID, {})
        found = await chain.nonce(signers[DEPLOYER].address)
        await chain.close()
        return found

    assert asyncio.run(nonce()) == 0


def test_one_account_holds_one_power_on_a_chain_that_is_not_local(
    tmp_path: Path, signers: list[Signer]
) -> None:
    who = [signer.address for signer in signers]

    def refuse(deployer: str, **changed: Any) -> str:
        path = tmp_path / "network.json"
        path.write_text(json.dumps(parameters_file(signers, **{"chain_id": 1, **changed})))
        try:
            require_apart(deployer, read_wanted(path))
        except ConfigError as error:
            return error.what
        return ""

    assert refuse(who[DEPLOYER]) == ""
    assert refuse(who[OWNER]) == "owner and deployer are one account"
    assert refuse(who[GUARDIAN].lower()) == "guardian and deployer are one account"
    assert refuse(who[DEPLOYER], guardian=who[OWNER]) == "owner and guardian are one account"
    assert refuse(who[OWNER], chain_id=CHAIN_ID, guardian=who[OWNER]) == ""
    assert "zero" in refuse(who[DEPLOYER], owner="0x" + "00" * 20)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"preset": "mainnet"}, "preset"),
        ({"more": 1}, "more"),
        ({"name": "Ours!"}, "name"),
        ({"owner": "0x12"}, "owner"),
        ({"chain_id": -1}, "chain_id"),
        ({"matchers": [{"address": "0x12", "url": ""}]}, "matchers"),
    ],
)
def test_a_file_that_is_no_parameters_file_is_refused(
    tmp_path: Path, signers: list[Signer], changed: dict[str, Any], said: str
) -> None:
    path = tmp_path / "network.json"
    path.write_text(json.dumps(parameters_file(signers, **changed)))
    with pytest.raises(ConfigError) as error:
        read_wanted(path)
    assert said in error.value.why


@pytest.mark.parametrize(
    ("own", "decimals", "said"),
    [
        ({"turns": 3}, 6, "no parameter 'turns'"),
        ({"turn_s": "3"}, 6, "turn_s"),
        ({"bond": "3"}, 6, "bond"),
        ({"panel": "three"}, 6, "whole number"),
        ({"turn_s": -1}, 6, "turn_s"),
        ({"unbond_s": 2**32}, 6, "unbond_s"),
        ({}, 18, "18 decimals"),
        ({}, 2, "2 decimals"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(
    tmp_path: Path, signers: list[Signer], own: dict[str, Any], decimals: int, said: str
) -> None:
    path = tmp_path / "network.json"
    path.write_text(json.dumps(parameters_file(signers, parameters=own)))
    with pytest.raises(ConfigError) as error:
        parameters_of(read_wanted(path), decimals)
    assert said in str(error.value)


def test_the_example_of_the_owner_s_page_is_sound(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "roles" / "owner.md").read_text()
    path = tmp_path / "riverside.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    wanted = read_wanted(path)
    assert parameters_of(wanted, 6).min_stake == 1000 * USD
    require_apart("0x" + "11" * 20, wanted)


def test_toml_is_read_too_and_amounts_are_in_the_file_s_unit(
    tmp_path: Path, signers: list[Signer]
) -> None:
    path = tmp_path / "network.toml"
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in parameters_file(signers, unit="gold").items()
    ]
    path.write_text("\n".join([*lines, "[parameters]", 'bond = "1.5gold"', 'jail_s = "1d"']))
    found = parameters_of(read_wanted(path), 8)
    assert (found.bond, found.jail_s) == (150_000_000, 86_400)
    assert found.min_stake == PRESETS["devnet"].min_stake * 100
