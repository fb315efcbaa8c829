"""Which model folders do programs of this machine work with? Locks that end with their process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.protocol.errors import ModelInUse

#: Device and inode of a folder → our descriptor of it, kept until this process ends.
_used: dict[tuple[int, int], int] = {}


def use(folder: Path) -> None:
    """Keep a folder from being removed as long as this process lives. Waits out who removes it."""
    if _key(folder) not in _used:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _used[_key(folder)] = descriptor


@contextmanager
def unused(folder: Path, name: str) -> Iterator[None]:
    """Hold a folder that no other process uses. Raises ModelInUse."""
    if ours := _used.pop(_key(folder), None):
        os.close(ours)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelInUse(
                f"{name} is in use",
                why=f"a program of this machine works with {folder}",
                state="nothing was deleted",
                next_step="end it first: `miner stop`, or the gateway or auditor that has it",
            ) from None
        yield
    finally:
        os.close(descriptor)


def _key(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
