"""Where do the simulated requests come from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.fleet.errors import FleetError
from scheduler.fleet.workload import Arrival


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Keep the KV caches filled (Helix's offline load) by draws from ``lengths``.

    ``initial`` requests come first, ``pause_s`` apart; then, whenever a prompt or a request is
    done, the expected use of the fullest layer is at most ``fill`` and nobody waits, one more comes
    after ``pause_s``. The same feed serves every router, so baselines that do not look at KV are
    loaded alike. ``drops_refused`` forgets a request that finds no room instead of letting it wait,
    as Helix does: a gentler load, since long prompts are refused more often.
    """

    lengths: Sequence[Arrival]
    fill: float = 0.8
    initial: int = 20
    pause_s: float = 0.1
    drops_refused: bool = False

    def __post_init__(self) -> None:
        if not self.lengths:
            raise FleetError("a closed loop without request lengths to draw from")
        if not 0 < self.fill <= 1 or self.initial < 1 or not self.pause_s > 0:
            raise FleetError(f"fill {self.fill}, initial {self.initial}, pause_s {self.pause_s}")


#: A trace in order of arrival, or a feed.
Work: TypeAlias = Sequence[Arrival] | ClosedLoop
