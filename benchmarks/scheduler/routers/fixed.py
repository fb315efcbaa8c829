"""How are requests spread over pipelines that never change? (separate pipelines; Parallax's
production default)
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Pipeline
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.router import RequestRoute


class FixedRouter:
    """Round robin over disjoint pipelines, in proportion to ``weights`` (None: each in turn).

    A pipeline with an absent machine is passed over, and with ``masks_full`` one whose caches are
    over the mark; when none is left the request is refused.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        kv: KvEstimate,
        *,
        weights: Sequence[float] | None = None,
        masks_full: bool = True,
    ) -> None:
        weights = [1.0] * len(pipelines) if weights is None else weights
        if not pipelines or len(weights) != len(pipelines) or min(weights) <= 0:
            raise FleetError(f"{len(pipelines)} pipelines with weights {list(weights)}")
        self.kv = kv
        self._pipelines = [list(pipeline) for pipeline in pipelines]
        self._weights = list(weights)
        self._taken = [0.0] * len(pipelines)
        self._masks_full = masks_full
        self._absent: set[str] = set()

    def choose(self, prompt_tokens: int) -> RequestRoute | None:
        """The pipeline that is furthest behind its weight."""
        allowed = [i for i in range(len(self._pipelines)) if self._may_take(i, prompt_tokens)]
        if not allowed:
            return None
        chosen = min(allowed, key=lambda i: (self._taken[i] + 1) / self._weights[i])
        self._taken[chosen] += 1
        route = RequestRoute(prompt_tokens)
        route.stages = list(self._pipelines[chosen])
        self.kv.add(route.stages, prompt_tokens)
        return route

    def _may_take(self, pipeline: int, prompt_tokens: int) -> bool:
        machines = [shard.machine_id for shard in self._pipelines[pipeline]]
        if not self._absent.isdisjoint(machines):
            return False
        return not self._masks_full or all(self.kv.fits(m, prompt_tokens) for m in machines)

    def note_step(self, route: RequestRoute) -> None:
        """Decode steps do not matter."""

    def finish(self, route: RequestRoute) -> None:
        """Free the estimate of what the route had booked."""
        self.kv.remove(route.stages, route.prompt_tokens)

    def set_present(self, machine_id: str, is_present: bool) -> None:
        """Pipelines with an absent machine rest; one that comes back is not made to catch up."""
        if not is_present:
            self._absent.add(machine_id)
            return
        self._absent.discard(machine_id)
        level = min(
            (
                t / w
                for t, w, p in zip(self._taken, self._weights, self._pipelines, strict=True)
                if all(shard.machine_id != machine_id for shard in p)
            ),
            default=0.0,
        )
        for i, pipeline in enumerate(self._pipelines):
            if any(shard.machine_id == machine_id for shard in pipeline):
                self._taken[i] = max(self._taken[i], level * self._weights[i])
