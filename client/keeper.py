"""Which running program keeps a session? A lock that the system frees when a program dies tells the living from the dead."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from core.runtime.folders import make_private


class Keeper:
    """This program, by a name of its own, as long as it lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = make_private(folder)
        self.name = os.urandom(8).hex()
        self._file = self._path(self.name).open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def is_alive(self, name: str) -> bool:
        """Whether the program of this name still runs."""
        if name == self.name:
            return True
        try:
            with self._path(name).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        self._path(name).unlink(missing_ok=True)
        return False

    def close(self) -> None:
        """Leave. Sessions that are still kept belong to whoever comes next."""
        self._path(self.name).unlink(missing_ok=True)
        self._file.close()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"
