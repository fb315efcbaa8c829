"""Do Foundry and we open each other's files, and are wrong passwords and unsafe files refused?"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from core.keys.keystore import Keystore
from core.keys.signer import DEVNET_PHRASE, Signer
from core.protocol.errors import (
    DevKeyOffDevnet,
    KeystoreInvalid,
    SecretFileTooOpen,
    UsageError,
    WalletExists,
    WalletMissing,
    WrongPassword,
)

CAST = Path(__file__).parents[3] / "node_modules" / ".bin" / "cast"
KEY = "0x" + "4c" * 32
DEV_1 = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
DEV_1_KEY = "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d"


def cast(*arguments: str) -> str:
    done = subprocess.run(
        [CAST, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def store(tmp_path) -> Keystore:
    return Keystore(tmp_path / "keystores", light=True)


@pytest.mark.parametrize("light", [True, False])
def test_our_file_opens_with_cast(tmp_path, light):
    store = Keystore(tmp_path, light=light)
    signer = store.import_key("alice", KEY, "correct horse", chain_id=1)
    file = str(store.path("alice"))
    shown = cast("wallet", "address", "--keystore", file, "--password", "correct horse").strip()
    assert shown == signer.address
    assert "alice" in cast("wallet", "list", "--dir", str(tmp_path))
    digest = "0x" + "07" * 32
    signature = cast(
        "wallet", "sign", "--no-hash", digest, "--keystore", file, "--password", "correct horse"
    ).strip()
    assert bytes.fromhex(signature[2:]) == signer.sign_digest(b"\x07" * 32)


def test_a_file_imported_by_cast_opens_with_ours(store):
    cast(
        "wallet",
        "import",
        "bob",
        "--keystore-dir",
        str(store.folder),
        "--private-key",
        DEV_1_KEY,
        "--unsafe-password",
        "pw",
    )
    with pytest.raises(SecretFileTooOpen):  # as that program leaves it
        store.unlock("bob", "pw", chain_id=31337)
    store.path("bob").chmod(0o600)
    assert store.unlock("bob", "pw", chain_id=31337).address == DEV_1
    with pytest.raises(WrongPassword):
        store.unlock("bob", "pW", chain_id=31337)


def test_a_file_made_by_cast_opens_with_ours_and_is_listed_without_address(store):
    store.folder.mkdir()
    told = cast("wallet", "new", str(store.folder), "carol", "--unsafe-password", "pw")
    store.path("carol").chmod(0o600)
    signer = store.unlock("carol", "pw", chain_id=1)
    assert signer.address in told
    [info] = store.ls()
    assert (info.name, info.address) == ("carol", None)


def test_a_new_wallet_opens_again_and_is_private(store):
    made = store.create("alice", "pw", chain_id=1)
    assert store.unlock("alice", "pw", chain_id=1).address == made.address
    assert stat.S_IMODE(store.path("alice").stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    [info] = store.ls()
    assert (info.name, info.address) == ("alice", made.address)
    assert [path.name for path in store.folder.iterdir()] == ["alice"]


def test_a_wallet_is_found_by_name_by_name_without_json_and_by_address(store):
    signer = store.create("alice.json", "pw", chain_id=1)
    for name in ("alice", "alice.json", signer.address, signer.address.lower()):
        assert store.path(name).name == "alice.json"


def test_a_wrong_password_says_so_and_nothing_else(store):
    store.create("alice", "pw", chain_id=1)
    with pytest.raises(WrongPassword) as caught:
        store.unlock("alice", "secret-guess", chain_id=1)
    assert "secret-guess" not in "".join(caught.value.lines())


def test_a_missing_wallet_names_those_that_exist(store):
    store.create("alice", "pw", chain_id=1)
    with pytest.raises(WalletMissing) as caught:
        store.unlock("bob", "pw", chain_id=1)
    assert "alice" in caught.value.why
    assert caught.value.next_step == "client wallet new bob"


@pytest.mark.parametrize("name", ["alice", "alice.json"])
def test_a_wallet_is_never_overwritten(store, name):
    before = store.create(name, "pw", chain_id=1)
    for again in ("alice", name):
        with pytest.raises(WalletExists):
            store.create(again, "pw", chain_id=1)
    assert store.unlock("alice", "pw", chain_id=1).address == before.address


@pytest.mark.parametrize("name", ["", "../alice", "a/b", ".hidden", "-x", "a" * 65, "a b"])
def test_a_name_cannot_leave_the_folder(store, name):
    with pytest.raises(UsageError):
        store.create(name, "pw", chain_id=1)


def test_dev_keys_open_on_local_chains_only(store):
    store.import_phrase("dev", DEVNET_PHRASE, "devnet", chain_id=31337, index=1)
    assert store.unlock("dev", "devnet", chain_id=1337).address == DEV_1
    with pytest.raises(DevKeyOffDevnet):
        store.unlock("dev", "devnet", chain_id=1)
    with pytest.raises(DevKeyOffDevnet):
        store.import_phrase("dev2", DEVNET_PHRASE, "devnet", chain_id=1)
    assert [info.name for info in store.ls()] == ["dev"]


def test_a_phrase_is_shown_once_and_brings_the_key_back(store):
    signer, phrase = store.create_with_phrase("alice", "pw", chain_id=1)
    assert len(phrase.split()) == 12
    assert phrase not in store.path("alice").read_text()
    again = store.import_phrase("restored", f" {phrase} ", "other", chain_id=1)
    assert again.address == signer.address


def test_a_file_from_elsewhere_is_encrypted_anew(store, tmp_path):
    other = Keystore(tmp_path / "other", light=True)
    signer = other.create("theirs", "old", chain_id=1)
    store.import_file("mine", other.path("theirs"), "old", "new", chain_id=1)
    assert store.unlock("mine", "new", chain_id=1).address == signer.address
    with pytest.raises(WrongPassword):
        store.import_file("again", other.path("theirs"), "new", "new", chain_id=1)


@pytest.mark.parametrize("key", ["", "0x12", "zz" * 32, KEY + "00"])
def test_only_64_digits_are_imported_as_a_key(store, key):
    with pytest.raises(UsageError):
        store.import_key("alice", key, "pw", chain_id=1)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_may_read_or_replace_is_refused_with_the_fix(store, mode):
    store.create("alice", "pw", chain_id=1)
    path = store.path("alice")
    path.chmod(mode)
    with pytest.raises(SecretFileTooOpen) as caught:
        store.unlock("alice", "pw", chain_id=1)
    assert caught.value.next_step == f"chmod 600 {path}"


def _corrupt(content: dict, how: str) -> object:
    if how == "not an object":
        return [content]
    if how == "version":
        return {**content, "version": 4}
    if how == "no crypto":
        return {"version": 3}
    crypto = content["crypto"]
    if how == "endless scrypt":
        return {**content, "crypto": {**crypto, "kdfparams": {**crypto["kdfparams"], "n": 2**40}}}
    if how == "unknown kdf":
        return {**content, "crypto": {**crypto, "kdf": "argon"}}
    if how == "no mac":
        return {**content, "crypto": {key: crypto[key] for key in crypto if key != "mac"}}
    assert how == "bad salt"
    return {**content, "crypto": {**crypto, "kdfparams": {**crypto["kdfparams"], "salt": "zz"}}}


@pytest.mark.parametrize(
    "how",
    [
        "not an object",
        "version",
        "no crypto",
        "endless scrypt",
        "unknown kdf",
        "no mac",
        "bad salt",
    ],
)
def test_a_damaged_file_is_refused_as_such(store, how):
    store.create("alice", "pw", chain_id=1)
    path = store.path("alice")
    path.write_text(json.dumps(_corrupt(json.loads(path.read_text()), how)))
    with pytest.raises(KeystoreInvalid):
        store.unlock("alice", "pw", chain_id=1)


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 2**22},
        {"n": 2**40},
        {"n": 8191},
        {"n": -8192},
        {"n": "8192"},
        {"r": 2**20},
        {"p": 2**29},
        {"n": 2, "r": 2**30, "p": 2**30},
        {"dklen": 2**31 - 1},
        {"dklen": 16},
        {"N": 2**22},  # the decoder reads names in any case
        {"Dklen": 2**31 - 1},
    ],
)
def test_a_cost_that_no_machine_should_pay_is_refused_before_it_is(store, monkeypatch, asked):
    store.create("alice", "pw", chain_id=1)
    path = store.path("alice")
    content = json.loads(path.read_text())
    content["crypto"]["kdfparams"] |= asked
    path.write_text(json.dumps(content))
    costs = []

    def derive(content: dict, password: bytes) -> bytes:
        costs.append(content["crypto"]["kdfparams"])
        raise KeystoreInvalid("derived")

    monkeypatch.setattr("eth_keyfile.keyfile.decode_keyfile_json", derive)
    with pytest.raises(KeystoreInvalid):
        store.unlock("alice", "pw", chain_id=1)
    assert all(set(cost) == {"n", "r", "p", "dklen", "salt"} for cost in costs)
    assert all(cost["n"] == 8192 and cost["dklen"] == 32 for cost in costs)


def test_pbkdf2_opens_within_its_limit_and_not_above(store):
    from eth_keyfile.keyfile import create_keyfile_json

    content = create_keyfile_json(bytes.fromhex(KEY[2:]), b"pw", kdf="pbkdf2", iterations=1000)
    store.folder.mkdir()
    path = store.folder / "old"
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    assert store.unlock("old", "pw", chain_id=1).address
    for asked in ({"c": 10**9}, {"c": 0}, {"dklen": 2**30}, {"prf": "hmac-md5"}):
        worse = {**content["crypto"], "kdfparams": {**content["crypto"]["kdfparams"], **asked}}
        path.write_text(json.dumps({**content, "crypto": worse}))
        with pytest.raises(KeystoreInvalid):
            store.unlock("old", "pw", chain_id=1)


JUNK = (
    b"",
    b"{",
    b"\xff\xfe" * 99,
    b"[" * 30_000,
    b"[" * 30_000 + b"]" * 30_000,
    b'{"crypto":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"version": 3, "crypto": {"kdf": [], "kdfparams": 7}}',
    b'{"version": 3, "crypto": ' + b"9" * 5_000 + b"}",
    b'{"version": 1e999, "crypto": {}}',
    b" " * 70_000,
)


def test_junk_is_refused_in_a_program_that_imports_nothing_else(tmp_path):
    for number, junk in enumerate(JUNK):
        path = tmp_path / f"junk{number}"
        path.write_bytes(junk)
        path.chmod(0o600)
    told = f"""
import py_ecc.bls  # raises the interpreter's limit above what its stack holds
from core.keys.keystore import Keystore
from core.protocol.errors import KeystoreInvalid
store = Keystore({str(tmp_path)!r})
assert store.ls() == []
for number in range({len(JUNK)}):
    try:
        store.unlock(f"junk{{number}}", "pw", chain_id=1)
    except KeystoreInvalid:
        continue
    raise SystemExit(f"junk{{number}} is opened")
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_whose_address_is_not_its_keys_is_refused(store):
    store.create("alice", "pw", chain_id=1)
    path = store.path("alice")
    path.write_text(json.dumps({**json.loads(path.read_text()), "address": "11" * 20}))
    with pytest.raises(KeystoreInvalid, match="inconsistent"):
        store.unlock("alice", "pw", chain_id=1)


def test_other_files_in_the_folder_are_passed_over(store):
    store.create("alice", "pw", chain_id=1)
    (store.folder / "notes.txt").write_text("hello")
    (store.folder / "sub").mkdir()
    assert [info.name for info in store.ls()] == ["alice"]


def test_an_absent_folder_holds_no_wallet(tmp_path):
    assert Keystore(tmp_path / "none").ls() == []


def test_the_default_is_the_strong_cost_and_light_is_foundrys(tmp_path):
    strong = Keystore(tmp_path / "s")
    strong.create("a", "pw", chain_id=1)
    light = Keystore(tmp_path / "l", light=True)
    light.create("a", "pw", chain_id=1)
    cost = [
        json.loads(store.path("a").read_text())["crypto"]["kdfparams"]["n"]
        for store in (strong, light)
    ]
    assert cost == [262_144, 8_192]


def test_unicode_passwords_work(store):
    signer = store.create("alice", "pässwörd 🔑", chain_id=1)
    assert isinstance(store.unlock("alice", "pässwörd 🔑", chain_id=1), Signer)
    assert store.unlock("alice", "pässwörd 🔑", chain_id=1).address == signer.address


def test_a_crash_while_writing_leaves_no_wallet(store, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.create("alice", "pw", chain_id=1)
    assert list(store.folder.iterdir()) == []
