"""Where may a program keep its configuration, its state, its cache and the network files?"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from core.protocol.errors import ConfigError

HOME_VARIABLE = "HEADRACE_HOME"
#: The path of a Unix socket has 107 bytes: the folder of temporary files may take this many.
_SOCKET_ROOT_BYTES = 48
_FRESH_S = 60.0


@dataclass(frozen=True)
class Folders:
    """Four folders; nothing is created until something is written.

    With ``HEADRACE_HOME`` all of them lie in that one folder, so that a devnet or a test leaves
    nothing behind elsewhere; otherwise they follow the platform's conventions.
    """

    config: Path
    state: Path
    cache: Path
    networks: Path

    @classmethod
    def at(cls, home: Path) -> Folders:
        """All four below one folder."""
        home = home.expanduser().absolute()
        return cls(home / "config", home / "state", home / "cache", home / "networks")

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Folders:
        """From ``HEADRACE_HOME``, else the platform's folders."""
        home = environ.get(HOME_VARIABLE)
        if home:
            return cls.at(Path(home))
        import platformdirs

        config = Path(platformdirs.user_config_dir("headrace", appauthor=False))
        return cls(
            config=config,
            state=Path(platformdirs.user_state_dir("headrace", appauthor=False)),
            cache=Path(platformdirs.user_cache_dir("headrace", appauthor=False)),
            networks=config / "networks",
        )

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def transactions(self) -> Path:
        """JSON lines of what was sent to the chain, newest last."""
        return self.state / "transactions.jsonl"


def make_private(folder: Path) -> Path:
    """Create a folder (and its parents) that only its owner may enter; returns it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@contextmanager
def alone_in(folder: Path, who: str, next_step: str, state: str = "") -> Iterator[None]:
    """Hold a private folder for one process. Raises ConfigError when another `who` has it."""
    descriptor = os.open(make_private(folder) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            what, why = f"{who} is running already", f"another process holds {folder}"
            raise ConfigError(what, why, state, next_step) from None
        yield
    finally:
        os.close(descriptor)


class SocketFolder:
    """A new folder for Unix sockets that only we may enter; in `/tmp` if its name were too long.

    This process and its forks hold it until one of them removes it. The folder of a killed process
    is removed by the next one that makes a folder of the same purpose.
    """

    def __init__(self, purpose: str) -> None:
        root = tempfile.gettempdir()
        at = Path(root if len(os.fsencode(root)) <= _SOCKET_ROOT_BYTES else "/tmp")
        self.path = Path(tempfile.mkdtemp(prefix=f"headrace-{purpose}-", dir=at))
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        _sweep(at, f"headrace-{purpose}-*")

    def remove(self) -> None:
        """With all that is in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)


def _sweep(at: Path, names: str) -> None:
    """Remove folders that no process holds; those of the last minute may be held in a moment."""
    for folder in at.glob(names):
        with suppress(OSError):  # another user's, or just removed
            if time.time() - folder.stat().st_mtime < _FRESH_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def make_private_file(path: Path) -> Path:
    """Create an empty file, or take a file's rights from others: only its owner may read it.

    A file that is there is not opened: closing it would drop all locks that this process holds on
    it, and SQLite would take the write-ahead log of a database in use for left behind.
    """
    make_private(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        path.chmod(0o600)
    return path
