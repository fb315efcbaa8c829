"""Is the journal of transactions kept whole, and does the bundle hold the newest of it?"""

import json
import stat
import zipfile

import pytest

from core.protocol.errors import UsageError
from core.runtime.commands.debug import record_transaction, save_bundle, write_crash
from core.runtime.folders import Folders


def test_the_bundle_has_the_last_twenty_transactions_with_whole_hashes(tmp_path):
    folders = Folders.at(tmp_path)
    for number in range(25):
        record_transaction(folders, {"hash": "0x" + f"{number:064x}", "nonce": number})
    save_bundle(tmp_path / "b.zip", folders, [{"key": "a", "value": "x"}], "client")
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        lines = [json.loads(line) for line in bundle.read("transactions.jsonl").splitlines()]
    assert [line["nonce"] for line in lines] == list(range(5, 25))
    assert lines[-1]["hash"] == "0x" + f"{24:064x}"
    assert stat.S_IMODE((tmp_path / "b.zip").stat().st_mode) == 0o600


def test_an_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "b.zip").write_text("mine")
    with pytest.raises(UsageError):
        save_bundle(tmp_path / "b.zip", Folders.at(tmp_path), [], "client")
    assert (tmp_path / "b.zip").read_text() == "mine"


def test_crash_files_are_private_and_few(tmp_path):
    folders = Folders.at(tmp_path)
    (folders.state / "crashes").mkdir(parents=True)
    for number in range(30):
        (folders.state / "crashes" / f"old-{number}.txt").write_text("")
    file = write_crash("miner", ValueError("x"), ["start"], folders)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "ValueError: x" in file.read_text()
    assert len(list(file.parent.iterdir())) == 20
