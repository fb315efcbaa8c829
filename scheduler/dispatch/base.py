"""What do all routers do alike: know the hops, who is present, and book the estimate of KV cache?"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.dispatch.estimate import KvEstimate
from scheduler.dispatch.router import Route
from scheduler.dispatch.topology import HOME, Hop, Topology


def _nobody_waits(machine_id: str) -> int:
    return 0


class BaseRouter:
    """A router that ignores what it is told, books the estimate, and sends nobody to absent machines.

    ``masks_full`` lets machines over the estimate's high-water mark be avoided too, which only Helix's own does as
    published; with it a baseline waits where it would overfill a cache.
    """

    wants_seconds = False

    def __init__(self, topology: Topology, kv: KvEstimate, *, masks_full: bool = False) -> None:
        self._masks_full = masks_full
        self.topology = topology
        self.waiting_at: Callable[[str], int] = _nobody_waits
        self.kv = kv
        self._absent: set[str] = set()

    def choose(self, prompt_tokens: int) -> Route | None:
        raise NotImplementedError

    def extend(self, route: Route) -> bool:
        raise NotImplementedError

    def note_step(self, route: Route) -> None:
        """Ignored unless a method looks at it."""

    def note_seconds(self, route: Route, stage: int, seconds: float) -> None:
        """Ignored unless a method looks at it."""

    def finish(self, route: Route) -> None:
        """Free the estimate of what the route had booked."""
        self.kv.remove(route.stages, route.prompt_tokens)

    def set_present(self, machine_id: str, is_present: bool) -> None:
        """New requests avoid a machine while it is absent."""
        if is_present:
            self._absent.discard(machine_id)
        else:
            self._absent.add(machine_id)

    def _may_take(self, hop: Hop, prompt_tokens: int) -> bool:
        return hop.target == HOME or (
            hop.target_id not in self._absent
            and (not self._masks_full or self.kv.fits(hop.target_id, prompt_tokens))
        )

    def _complete(self, route: Route, hops: list[Hop]) -> Route:
        """Fill a route with all its hops and book it."""
        route.hops = [hop.id for hop in hops]
        route.stages = [hop.stage for hop in hops if hop.stage is not None]
        route.is_complete = True
        self.kv.add(route.stages, route.prompt_tokens)
        return route
