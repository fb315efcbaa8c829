"""What does the daemon know right now?

One writer (the daemon's loop) replaces whole values; readers (the API, matching) take a value and keep it. Nothing here
survives a restart: the chain, the swarm and the store tell all of it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from core.protocol.errors import ModelUnsupported
from core.protocol.types import ModelSpec
from matcher.fleet_view import Sighting, Standing, present
from matcher.jobs import Job
from matcher.planner import Placement
from matcher.reservations import Reservations
from matcher.routes import Offer, offers_of
from matcher.shapes import shape_of
from scheduler.fleet import ModelShape

#: How long a machine that did not answer is passed over, unless nobody else can do its part.
AVOID_MS = 10_000


@dataclass(frozen=True)
class ChainHealth:
    """How the node answered last."""

    ok: bool = False
    block: int = 0
    time_s: int = 0
    error: str = "not asked yet"


@dataclass(frozen=True)
class SwarmHealth:
    """How the last look at the swarm went."""

    ok: bool = False
    looked_at_ms: int = 0
    records: int = 0
    refused_total: int = 0
    error: str = "not asked yet"


@dataclass
class World:
    """The live view. Operators are checksummed addresses everywhere."""

    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    standings: Mapping[str, Standing] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    chain: ChainHealth = field(default_factory=ChainHealth)
    swarm: SwarmHealth = field(default_factory=SwarmHealth)
    reservations: Reservations = field(default_factory=Reservations)
    avoid_until_ms: dict[str, int] = field(default_factory=dict)

    def learn_models(self, models: Mapping[str, ModelSpec]) -> None:
        """Take the registry's models; those of a dtype we cannot size are known but never planned."""
        shapes = {}
        for model_id, spec in models.items():
            try:
                shapes[model_id] = self.shapes.get(model_id) or shape_of(spec)
            except ModelUnsupported:
                continue
        self.models, self.shapes = dict(models), shapes

    def present(self, model_id: str, now_ms: int) -> tuple[Sighting, ...]:
        """Machines of a model that are alive and may work."""
        return present(self.sightings, self.standings, model_id, now_ms)

    def offers(self, model_id: str, now_ms: int) -> tuple[Offer, ...]:
        """What serves a model now, with every promised slot counted."""
        spec = self.models.get(model_id)
        if spec is None:
            return ()
        return offers_of(
            self.present(model_id, now_ms), self.standings, self.reservations.used(now_ms), spec
        )

    def reachable(self, job: Job, now_ms: int) -> Job:
        """The job with the endpoints that its stages announce now; those that are silent keep the last known one."""
        fresh = []
        for stage, known in zip(job.plan, job.endpoints, strict=True):
            sighting = self.sightings.get(stage.operator)
            alive = sighting is not None and sighting.alive(now_ms)
            fresh.append(sighting.record.endpoint if sighting is not None and alive else known)
        return replace(job, endpoints=tuple(fresh))

    def avoid(self, operator: str, now_ms: int) -> None:
        """It did not answer: prefer others for a while."""
        self.avoid_until_ms[operator] = now_ms + AVOID_MS

    def avoided(self, now_ms: int) -> frozenset[str]:
        """Whom to pass over now."""
        return frozenset(op for op, until in self.avoid_until_ms.items() if until > now_ms)

    @property
    def ready(self) -> bool:
        """Whether orders can be taken: chain and swarm answered last time."""
        return self.chain.ok and self.swarm.ok
