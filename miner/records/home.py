"""Where does one miner keep its state, and how do commands find the daemon that uses it?

A folder per operator wallet, locked while a daemon runs: two daemons with one key and two memories
could sign two different things.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from core.protocol.errors import ConfigError, ModelMissing, UsageError
from core.runtime.folders import alone_in
from core.runtime.settings import Settings


class RunningDaemon(msgspec.Struct, frozen=True, rename="camel"):
    """What a running daemon writes down for the commands of the same user."""

    pid: int
    url: str
    token: str  # needed for what changes something
    operator: str
    endpoint: str


def operator_wallet(settings: Settings) -> str:
    """Name of the wallet that signs work. Raises UsageError when nothing says which."""
    if settings.miner.operator:
        return settings.miner.operator
    if settings.wallet.name:
        return f"{settings.wallet.name}-operator"
    raise UsageError(
        "no operator wallet is chosen",
        "neither miner.operator nor a wallet is set",
        next_step="pass --wallet NAME, or `miner config set miner.operator NAME`",
    )


def model_folder(settings: Settings) -> Path:
    """Where the configured model's files are, all or some of them. Raises ModelMissing."""
    from core.engine.weights.store import find_model
    from core.models.names import local_id

    name = settings.miner.model
    found = find_model(name, local_id(name, settings), settings.folders.cache)
    if found is None:
        raise ModelMissing(
            f"nothing of model '{name}' is on this machine",
            next_step=f"miner models pull {name} --layers A:B, or `miner start` fetches its layers",
        )
    return found


@dataclass(frozen=True)
class Home:
    """The state folder of one miner."""

    folder: Path

    @classmethod
    def of(cls, settings: Settings) -> Home:
        """Below the user's state folder, named after network and operator wallet."""
        return cls(
            settings.folders.state
            / "miner"
            / f"{settings.network.name}-{operator_wallet(settings)}"
        )

    @property
    def database(self) -> Path:
        return self.folder / "miner.sqlite"

    @property
    def running_file(self) -> Path:
        return self.folder / "daemon.json"

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for one daemon. Raises ConfigError when another one has it."""
        return alone_in(
            self.folder, "this miner", "look at it with `miner status`, or end it with `miner stop`"
        )

    @property
    def is_in_use(self) -> bool:
        """Whether a daemon holds the folder."""
        try:
            with self.locked():
                return False
        except ConfigError:
            return True

    def write_running(self, running: RunningDaemon) -> None:
        """Replace the note, whole or not at all, readable by its owner only."""
        draft = self.folder / f".daemon.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(msgspec.json.encode(running))
        draft.replace(self.running_file)

    def forget_running(self) -> None:
        self.running_file.unlink(missing_ok=True)

    def read_running(self) -> RunningDaemon | None:
        """The daemon's note, None when no daemon of this miner lives."""
        try:
            running = msgspec.convert(json.loads(self.running_file.read_bytes()), RunningDaemon)
            os.kill(running.pid, 0)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        except PermissionError:
            return None
        return running
