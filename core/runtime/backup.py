"""How is what a user's programs keep copied into one file while they run, and put back?

A backup is a compressed tar of configuration, networks, keystores and state. Databases are copied
by SQLite, so each is as of one moment; other files are as they lie. What programs make anew is left
out: caches, logs, traces, locks, notes of running daemons. So are password files.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from core.protocol.errors import UsageError
from core.protocol.foreign import read_json
from core.protocol.whole_file import write_whole
from core.runtime.folders import Folders, make_private

FORMAT: Final = "headrace-backup/1"
ABOUT: Final = "about.json"
#: In the state folder: which backup it was put back from, by a number of that putting back.
RESTORED: Final = "restored.json"
KINDS: Final = ("config", "state", "networks", "keys")
MOST_ABOUT_BYTES: Final = 2**16
_LEFT_OUT: Final = frozenset(
    {"logs", "crashes", "traces", "devnet", "lock", "daemon.json", RESTORED}
)
_BESIDE_DATABASES: Final = ("-wal", "-shm", "-journal", ".lock")
_SQLITE: Final = b"SQLite format 3\0"


@dataclass(frozen=True)
class Backup:
    """What a file holds: `files` of so many bytes in all, as of `at_s`, seconds since 1970."""

    at_s: int
    files: int
    size_bytes: int


def save_backup(target: Path, folders: Folders, keystores: Path) -> Backup:
    """Copy all into a new file that only its owner may read.

    `keystores`: the folder of encrypted keys. Raises UsageError if the file exists or nothing is
    there to copy, OSError where the disk is full: then the file is removed.
    """
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{target} is not written", "it exists", next_step="choose another name"
        ) from None
    try:
        with (
            os.fdopen(descriptor, "wb") as handle,
            tarfile.open(fileobj=handle, mode="w:gz") as tar,
        ):
            made = _save(tar, target, folders, keystores)
            handle.flush()
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return made


def restore_backup(source: Path, folders: Folders, keystores: Path) -> Backup:
    """Put back what `save_backup` copied, where nothing is yet.

    Programs find in the state folder that it was put back (`restored_as`). Raises UsageError for a
    file that is no backup, or a folder that has something of what is put back: nothing is written.
    """
    roots, written = _roots(folders, keystores), list[Path]()
    try:
        with tarfile.open(source, mode="r:gz") as tar:
            made, members = _read(tar, source)
            placed = list(_placed(members, roots))
            there = [path for _, path in placed if path.exists()]
            if there:
                raise UsageError(
                    f"{source} is not restored",
                    f"{there[0]} is there, of {len(there)} files that it would replace",
                    next_step="move what is there away, or choose another HEADRACE_HOME",
                )
            # First: a program that finds half of it finds that it was put back.
            _mark(folders, made)
            for member, path in placed:
                content = tar.extractfile(member)
                assert content is not None, "only regular files are members"
                make_private(path.parent)
                written.append(path)
                with os.fdopen(
                    os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
                ) as out:
                    shutil.copyfileobj(content, out)
                    os.fsync(out.fileno())
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        for path in (*written, folders.state / RESTORED):
            path.unlink(missing_ok=True)
        raise UsageError(f"{source} cannot be restored", str(error)) from error
    return made


def _mark(folders: Folders, made: Backup) -> None:
    make_private(folders.state)
    mark = {"name": secrets.token_hex(16), "saved_at": made.at_s, "restored_at": int(time.time())}
    write_whole(folders.state / RESTORED, json.dumps(mark).encode(), synced=True)


def restored_as(folders: Folders) -> str:
    """The name of the last putting back, another one each time; empty where there was none."""
    try:
        return str(json.loads((folders.state / RESTORED).read_bytes())["name"])
    except FileNotFoundError:
        return ""


def _roots(folders: Folders, keystores: Path) -> dict[str, Path]:
    """First part of a member's name → its folder here; one that lies in another comes with it."""
    at = folders.config, folders.state, folders.networks, keystores
    return dict(zip(KINDS, at, strict=True))


def _save(tar: tarfile.TarFile, target: Path, folders: Folders, keystores: Path) -> Backup:
    at_s, count, size = int(time.time()), 0, 0
    about = json.dumps({"format": FORMAT, "at": at_s}).encode()
    _add(tar, ABOUT, io.BytesIO(about), len(about))
    roots = _roots(folders, keystores)
    for kind, root in roots.items():
        if any(other in root.parents for other in roots.values()):
            continue
        for path in _files(root):
            if path == target.absolute():
                continue
            with suppress(FileNotFoundError), _content(path) as content:  # it may go meanwhile
                length = os.fstat(content.fileno()).st_size
                _add(tar, f"{kind}/{path.relative_to(root).as_posix()}", content, length)
                count, size = count + 1, size + length
    if not count:
        raise UsageError("nothing is backed up", f"{folders.state} and {folders.config} are empty")
    return Backup(at_s, count, size)


def _files(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _LEFT_OUT)
        for name in sorted(files):
            path = Path(folder) / name
            is_kept = name not in _LEFT_OUT and not name.endswith(_BESIDE_DATABASES)
            if is_kept and not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


@contextmanager
def _content(path: Path) -> Iterator[BinaryIO]:
    """A file, open; of a database a copy as of one moment. Raises FileNotFoundError."""
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            file.seek(0)
            yield file
            return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        with closing(sqlite3.connect(path)) as here, closing(sqlite3.connect(copy)) as there:
            here.backup(there)
        with copy.open("rb") as file:
            yield file


def _add(tar: tarfile.TarFile, name: str, content: BinaryIO, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    tar.addfile(member, content)


def _read(tar: tarfile.TarFile, source: Path) -> tuple[Backup, list[tarfile.TarInfo]]:
    """Raises UsageError for anything that `save_backup` does not write."""

    def refuse(why: str) -> UsageError:
        return UsageError(f"{source} is no backup that this program reads", why)

    first = tar.next()
    if first is None or first.name != ABOUT or not first.isreg() or first.size > MOST_ABOUT_BYTES:
        raise refuse(f"it does not begin with {ABOUT}")
    content = tar.extractfile(first)
    try:
        about: Any = read_json(content.read() if content is not None else b"")
    except ValueError as error:
        raise refuse(f"{ABOUT}: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise refuse(f"its format is not {FORMAT}")
    if not isinstance(about.get("at"), int):
        raise refuse("it does not say of when it is")
    members = tar.getmembers()[1:]
    for member in members:
        parts = PurePosixPath(member.name).parts
        is_placed = len(parts) > 1 and parts[0] in KINDS
        if not member.isreg() or not is_placed or ".." in parts or member.name != "/".join(parts):
            raise refuse(f"'{member.name[:80]}' does not belong in it")
    if len({member.name for member in members}) < len(members):
        raise refuse("it has a file twice")
    return Backup(about["at"], len(members), sum(member.size for member in members)), members


def _placed(
    members: list[tarfile.TarInfo], roots: dict[str, Path]
) -> Iterator[tuple[tarfile.TarInfo, Path]]:
    """Members with where they go."""
    for member in members:
        kind, _, rest = member.name.partition("/")
        yield member, roots[kind] / rest
