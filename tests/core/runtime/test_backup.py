"""Is everything of a home in a backup, as of one moment, and is it put back or nothing is?"""

from __future__ import annotations

import io
import json
import sqlite3
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from core.protocol.errors import UsageError
from core.runtime.backup import ABOUT, FORMAT, restore_backup, restored_as, save_backup
from core.runtime.folders import Folders

KEPT = {
    "config/config.toml": b"wallet = 'alice'\n",
    "networks/riverside.json": b"{}",
    "state/miner/riverside-a/libp2p.key": b"\x08\x01",
    "state/gateway/uploads/file-1": bytes(1000),
}
LEFT = {
    "state/logs/miner.log": b"said",
    "state/miner/riverside-a/lock": b"",
    "state/miner/riverside-a/daemon.json": b"{}",
    "state/miner/riverside-a/traces/1/rows": b"many",
    "state/client.lock": b"",
    "cache/models/smollm2/config.json": b"{}",
}


def home_with(folder: Path, files: dict[str, bytes]) -> Folders:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Folders.at(folder)


def all_files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    here = home_with(tmp_path / "here", {**KEPT, **LEFT, "keys/alice": b"{}"})
    made = save_backup(tmp_path / "backup", here, tmp_path / "here" / "keys")
    assert made.files == len(KEPT) + 1
    return tmp_path / "backup"


def test_what_is_known_is_put_back_and_what_is_made_anew_is_not(
    tmp_path: Path, saved: Path
) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    there = Folders.at(tmp_path / "there")
    assert restored_as(there) == ""
    restore_backup(saved, there, tmp_path / "elsewhere")
    found = all_files(tmp_path / "there")
    assert found.pop("state/restored.json")
    assert found == KEPT
    assert all_files(tmp_path / "elsewhere") == {"alice": b"{}"}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "there").rglob("*.key")}
    assert modes == {0o600}
    once = restored_as(there)
    other = Folders.at(tmp_path / "other")
    restore_backup(saved, other, tmp_path / "other keys")
    assert once and restored_as(other) not in ("", once), "each putting back has its own name"


def test_a_database_that_is_written_to_is_copied_as_of_one_moment(tmp_path: Path) -> None:
    here = home_with(tmp_path / "here", {})
    here.state.mkdir(parents=True)
    with sqlite3.connect(here.state / "miner.sqlite", isolation_level=None) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE pairs (a INTEGER, b INTEGER)")
    stop = threading.Event()

    def write() -> None:
        with sqlite3.connect(here.state / "miner.sqlite", isolation_level=None) as db:
            for number in range(10**6):
                db.execute("BEGIN")
                db.execute("INSERT INTO pairs VALUES (?, 0)", (number,))
                db.execute("UPDATE pairs SET b = ? WHERE a = ?", (number, number))
                db.execute("COMMIT")
                if stop.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        made = save_backup(tmp_path / "backup", here, tmp_path / "keys")
    finally:
        stop.set()
        writer.join()
    assert made.files == 1, "its write-ahead log is in the copy"
    there = Folders.at(tmp_path / "there")
    restore_backup(tmp_path / "backup", there, tmp_path / "no keys")
    with sqlite3.connect(there.state / "miner.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT COUNT(*) FROM pairs WHERE a <> b").fetchone() == (0,)


def test_nothing_that_is_there_is_replaced(tmp_path: Path, saved: Path) -> None:
    there = home_with(tmp_path / "there", {"state/gateway/uploads/file-1": b"newer"})
    with pytest.raises(UsageError, match="file-1 is there"):
        restore_backup(saved, there, tmp_path / "elsewhere")
    assert all_files(tmp_path / "there") == {"state/gateway/uploads/file-1": b"newer"}
    with pytest.raises(UsageError, match="it exists"):
        save_backup(saved, there, tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="empty"):
        save_backup(tmp_path / "none", Folders.at(tmp_path / "nobody"), tmp_path / "nowhere")
    assert not (tmp_path / "none").exists()


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tuple[str, bytes, bytes]:
    return name, data, kind


ABOUT_IT = member(ABOUT, json.dumps({"format": FORMAT, "at": 1}).encode())


def tar_of(path: Path, *members: tuple[str, bytes, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(data), kind, "/etc/passwd"
            tar.addfile(info, io.BytesIO(data))
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"no tar"),
        lambda path: tar_of(path),
        lambda path: tar_of(path, member("config/config.toml")),
        lambda path: tar_of(path, member(ABOUT, b"{")),
        lambda path: tar_of(path, member(ABOUT, b'{"format": "headrace-backup/9", "at": 1}')),
        lambda path: tar_of(path, member(ABOUT, b'{"format": "headrace-backup/1"}')),
        lambda path: tar_of(path, ABOUT_IT, member("state/../../evil", b"x")),
        lambda path: tar_of(path, ABOUT_IT, member("/etc/evil", b"x")),
        lambda path: tar_of(path, ABOUT_IT, member("state//evil", b"x")),
        lambda path: tar_of(path, ABOUT_IT, member("cache/evil", b"x")),
        lambda path: tar_of(path, ABOUT_IT, member("state/a", kind=tarfile.SYMTYPE)),
        lambda path: tar_of(path, ABOUT_IT, member("state/a", kind=tarfile.FIFOTYPE)),
        lambda path: tar_of(path, ABOUT_IT, member("state/a", b"1"), member("state/a", b"2")),
        lambda path: cut(tar_of(path, ABOUT_IT, member("state/a", bytes(range(256)) * 99))),
        lambda path: tar_of(path, ABOUT_IT, member("state/a", b"1"), member("state/a/b", b"2")),
        lambda path: None,
    ],
)
def test_of_what_is_no_backup_nothing_is_written(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "given")
    there = Folders.at(tmp_path / "there")
    with pytest.raises(UsageError):
        restore_backup(tmp_path / "given", there, tmp_path / "keys")
    assert all_files(tmp_path / "there") == {}
    assert restored_as(there) == ""


def test_whoever_finds_half_of_it_finds_that_it_was_put_back(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, marks = Folders.at(tmp_path / "there"), list[str]()

    class Killed(BaseException):
        """As by the system: nothing is tidied up."""

    def copy(content: object, out: object) -> None:
        marks.append(restored_as(there))
        raise Killed

    monkeypatch.setattr("core.runtime.backup.shutil.copyfileobj", copy)
    with pytest.raises(Killed):
        restore_backup(saved, there, tmp_path / "elsewhere")
    assert marks == [restored_as(there)] != [""]


def test_a_backup_may_lie_in_what_it_is_of(tmp_path: Path) -> None:
    here = home_with(tmp_path / "here", {"state/a": b"1"})
    made = save_backup(here.state / "copy", here, tmp_path / "keys")
    assert made.files == 1
