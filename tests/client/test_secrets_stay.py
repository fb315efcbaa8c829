"""No key, phrase or password is in any byte that our programs leave behind, but encrypted."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.keys.keystore import Keystore
from core.keys.signer import DEVNET_PHRASE, secret_from_phrase
from tests.client.test_cli import KEY, PHRASE

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct-horse-battery-9"


def spellings(secret: bytes) -> dict[str, bytes]:
    """How 32 bytes are written down by mistake."""
    text = secret.hex()
    return {
        "bytes": secret,
        "reversed": secret[::-1],
        "hex": text.encode(),
        "HEX": text.upper().encode(),
        "wide": text.encode("utf-16-le"),
        "base64": base64.b64encode(secret)[:40],
        "urlsafe": base64.urlsafe_b64encode(secret)[:40],
        "decimal": str(int.from_bytes(secret, "big")).encode(),
        "list": ", ".join(map(str, secret)).encode(),
        "repr": repr(secret).encode()[2:-1],
    }


def found_in(content: bytes, secret: bytes) -> list[str]:
    """Under which spellings a secret stands in these bytes."""
    return [name for name, spelt in spellings(secret).items() if spelt in content]


def left_behind(home: Path, keystore: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a home, archives opened; the encrypted wallets themselves left out."""
    for path in sorted(home.rglob("*")):
        if not path.is_file() or keystore in path.parents or path.name == "password":
            continue
        yield str(path), path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    yield f"{path}:{name}", archive.read(name)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a password file and a network that is never reached."""
    (tmp_path / "networks").mkdir()
    network = {
        "name": "devnet",
        "chain_id": 31337,
        "rpc_url": "http://127.0.0.1:1",
        "contracts": {},
    }
    (tmp_path / "networks" / "devnet.json").write_text(json.dumps(network))
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(PASSWORD + "\n")
    return tmp_path


def run(
    home: Path, *argv: str, stdin: str = "", module: str = "client.cli"
) -> subprocess.CompletedProcess[bytes]:
    """A program as a process of its own, with every log it can write."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "ETH_"))} | {
        "HEADRACE_HOME": str(home),
        "HEADRACE_WALLET__KEYSTORE_DIR": str(home / "keys"),
        "HEADRACE_PASSWORD_FILE": str(home / "password"),
        "HEADRACE_WALLET": "bob",
    }
    command = [sys.executable, "-m", module, *argv, "-vv"]
    said = {"input": stdin.encode(), "capture_output": True, "timeout": 120}
    return subprocess.run(command, cwd=ROOT, env=environ, check=False, **said)


def test_the_search_finds_what_it_looks_for() -> None:
    secret = bytes.fromhex(KEY)
    for name, spelt in spellings(secret).items():
        assert name in found_in(b"before " + spelt + b" after", secret)
    assert found_in(os.urandom(4096), secret) == []


def test_an_unlocked_key_is_in_no_log_traceback_child_bundle_or_database(home: Path) -> None:
    made = run(home, "wallet", "import", "bob", "--stdin", stdin=KEY + "\n")
    assert made.returncode == 0, made.stderr
    child = home / "child-environment"
    died = run(home, "die", str(child), module="tests.client.careless_program")
    assert died.returncode == 1
    assert b"a bug on our side" in died.stderr
    api_key = run(home, "keys", "new", "nightly", "--json")
    assert api_key.returncode == 0, api_key.stderr
    shown = json.loads(api_key.stdout)["result"]["key"].encode()
    saved = run(home, "debug", "save", str(home / "bundle.zip"))
    assert saved.returncode == 0, saved.stderr

    left = dict(left_behind(home, home / "keys"))
    names = " ".join(left)
    files = "crashes/ logs/ client-devnet.sqlite bundle.zip:config.json child-environment"
    for expected in files.split():
        assert expected in names, f"the search did not see {expected}"
    streams = {
        f"{done.args[2]} {stream}": getattr(done, stream)
        for done in (made, died, saved)
        for stream in ("stdout", "stderr")
    }
    secret = bytes.fromhex(KEY)
    assert {
        n: f for n, content in {**left, **streams}.items() if (f := found_in(content, secret))
    } == {}
    assert [n for n, content in {**left, **streams}.items() if PASSWORD.encode() in content] == []
    assert [n for n, content in left.items() if shown in content] == [], (
        "the API key is kept as a hash"
    )


def test_a_phrase_leaves_neither_its_words_nor_its_key(home: Path) -> None:
    made = run(home, "wallet", "import", "bob", "--stdin", stdin=PHRASE + "\n")
    assert made.returncode == 0, made.stderr
    secret = secret_from_phrase(PHRASE, 0)
    content = dict(left_behind(home, home / "keys")) | {"out": made.stdout, "err": made.stderr}
    words = " ".join(PHRASE.split()[:3]).encode()
    assert [name for name, data in content.items() if words in data or found_in(data, secret)] == []
    assert Keystore(home / "keys").unlock("bob", PASSWORD, chain_id=31337).address


def test_a_key_typed_as_an_argument_is_refused_and_written_nowhere(home: Path) -> None:
    refused = run(home, "chat", f"my key is 0x{KEY}", "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["code"] == "E-KEY-01"
    secret = bytes.fromhex(KEY)
    assert not found_in(refused.stdout + refused.stderr, secret)
    assert [name for name, data in left_behind(home, home / "keys") if found_in(data, secret)] == []


def test_a_test_networks_key_opens_on_that_network_only(home: Path) -> None:
    made = run(home, "wallet", "import", "bob", "--stdin", stdin=DEVNET_PHRASE + "\n")
    assert made.returncode == 0, made.stderr
    file = home / "networks" / "devnet.json"
    network = json.loads(file.read_text())
    names = [
        "TestUSD",
        "Escrow",
        "MinerRegistry",
        "ModelRegistry",
        "TaskRegistry",
        "JuryArbitrator",
    ]
    for chain_id, code in ((31337, "E-NET-01"), (1, "E-WALLET-03")):
        contracts = dict.fromkeys(names, "0x" + "11" * 20)
        file.write_text(json.dumps(network | {"chain_id": chain_id, "contracts": contracts}))
        done = run(home, "wallet", "deposit", "5usd", "--yes", "--json")
        assert json.loads(done.stdout)["error"]["code"] == code
        assert done.returncode == (3 if chain_id == 31337 else 4)
