"""Where a devnet keeps its things: one folder, with a home for every party."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.runtime.folders import Folders

PASSWORD_FILE = "password"


@dataclass(frozen=True)
class DevnetFolders:
    """Everything of one devnet lies below `root`; removing it removes the devnet."""

    root: Path

    @classmethod
    def default(cls) -> DevnetFolders:
        """The devnet that `devnet up` starts and `devnet status` finds again."""
        return cls(Folders.find().state / "devnet")

    def home(self, party: str) -> Path:
        """HEADRACE_HOME of one party."""
        return self.root / "homes" / party

    @property
    def keystores(self) -> Path:
        return self.root / "keystores"

    @property
    def password_file(self) -> Path:
        return self.root / PASSWORD_FILE

    @property
    def network_file(self) -> Path:
        return self.root / "devnet.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def processes_file(self) -> Path:
        return self.root / "processes.json"

    @property
    def links_file(self) -> Path:
        """The links between miners and others, where there are any (`devnet/links/service.py`)."""
        return self.root / "links.json"

    @property
    def fleet_file(self) -> Path:
        """Its machines, what they are like, and how far away (`devnet/fleets.py`)."""
        return self.root / "fleet.json"

    @property
    def chain_states(self) -> Path:
        """Folder of the few old states that the chain does not hold in memory."""
        return self.root / "chain-states"

    @property
    def chain_state_file(self) -> Path:
        return self.root / "chain.json"
