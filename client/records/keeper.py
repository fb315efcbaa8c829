"""Which running program keeps a session or a submission? The system frees its lock when it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from core.runtime.folders import make_private

if TYPE_CHECKING:
    from core.runtime.settings import Settings


def keepers_of(settings: Settings) -> Path:
    """The folder with the locks of all programs of this state folder."""
    return settings.folders.state / "keepers"


class Keeper:
    """This program, by a name of its own, as long as it lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = make_private(folder)
        self.name = os.urandom(8).hex()
        self._file = _path(folder, self.name).open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def is_alive(self, name: str) -> bool:
        """Whether the program of this name still runs."""
        return name == self.name or living(self._folder, name) is not None

    def close(self) -> None:
        """Leave. Sessions that are still kept are for the next program."""
        _path(self._folder, self.name).unlink(missing_ok=True)
        self._file.close()


def living(folder: Path, name: str) -> int | None:
    """Process id of the keeper of this name, None once it is dead."""
    path = _path(folder, name)
    try:
        with path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)
    return None


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"
