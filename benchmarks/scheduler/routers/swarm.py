"""How does SWARM spread work? (Ryabinin et al. 2023, appendix C; as Helix §6.7 ran it)"""

from __future__ import annotations

from benchmarks.scheduler.routers.hop_router import HopRouter
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.router import RequestRoute
from scheduler.simulate.dispatch.topology import Hop, Topology

FIRST_S = 0.05
NEW_SHARE = 0.8


class SwarmRouter(HopRouter):
    """Every sender keeps a moving average of the time each next machine takes, and a priority that
    grows by it.

    The hop with the smallest priority is taken, then its average is added to it: machines are
    visited in inverse proportion to their times. Each measured time counts 0.8, the average before
    it 0.2; all start at 0.05 s. A machine that comes back takes the smallest priority of its
    sender's hops, so that it is not flooded.
    """

    def __init__(self, topology: Topology, kv: KvEstimate, *, masks_full: bool = False) -> None:
        super().__init__(topology, kv, masks_full=masks_full)
        self._average_s = [FIRST_S] * len(topology.hops)
        self._priority = [FIRST_S] * len(topology.hops)

    def pick(self, allowed: list[Hop]) -> Hop:
        hop = min(allowed, key=lambda hop: self._priority[hop.id])
        self._priority[hop.id] += self._average_s[hop.id]
        return hop

    def note_seconds(self, route: RequestRoute, stage: int, seconds: float) -> None:
        """A step took that long from leaving the stage before to leaving this one."""
        hop = route.hops[stage]
        self._average_s[hop] += NEW_SHARE * (seconds - self._average_s[hop])

    def set_present(self, machine_id: str, is_present: bool) -> None:
        super().set_present(machine_id, is_present)
        if not is_present:
            return
        for out in self.topology.out:
            for hop in out:
                if hop.target_id == machine_id:
                    others = [self._priority[o.id] for o in out if o is not hop]
                    least = min(others, default=FIRST_S)
                    self._priority[hop.id] = max(self._priority[hop.id], least)
