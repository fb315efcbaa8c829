"""What does the daemon know right now?

One writer (the daemon's loop) replaces whole values; readers (the API, matching) take a value and
keep it. Nothing here survives a restart: the chain, the swarm and the store tell all of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from core.money.audit_report import SignedReport
from core.protocol.errors import ModelUnsupported
from core.protocol.types import ModelSpec, Terms
from matcher.fleet.exclusions import Marks
from matcher.fleet.fleet_view import ChainStanding, Sighting, present
from matcher.fleet.shapes import shape_of
from matcher.planning.planner import Placement
from matcher.records.jobs import Job
from matcher.routes.offers import StageOffer
from matcher.routes.routes import LiveRoutes
from matcher.routes.waiting_line import WaitingLine
from scheduler.fleet.fleet import ModelShape
from scheduler.live.churn import Cluster

#: How long a machine that did not answer is passed over, if another can do its part.
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
class MatcherWorld:
    """The live view. Operators are checksummed addresses everywhere.

    `partial` tells whether stages may be parts of shards, `by_turns` whether chains are taken by
    turns over a flow instead of the fastest one. `reports` are those that are believed, by auditor
    in lower case; `marks` is what follows from them and from the chain.
    """

    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    standings: Mapping[str, ChainStanding] = field(default_factory=dict)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    routes: dict[str, LiveRoutes] = field(default_factory=dict)
    lines: dict[str, WaitingLine] = field(default_factory=dict)
    chain: ChainHealth = field(default_factory=ChainHealth)
    swarm: SwarmHealth = field(default_factory=SwarmHealth)
    avoid_until_ms: dict[str, int] = field(default_factory=dict)
    reports: Mapping[str, SignedReport] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)
    partial: bool = False
    by_turns: bool = False

    def learn_models(self, models: Mapping[str, ModelSpec]) -> None:
        """Take the registry's models; those of a dtype without a size are never planned."""
        shapes = {}
        for model_id, spec in models.items():
            try:
                shapes[model_id] = self.shapes.get(model_id) or shape_of(spec)
            except ModelUnsupported:
                continue
        self.models, self.shapes = dict(models), shapes
        for model_id, shape in shapes.items():
            if model_id not in self.routes:
                routes = LiveRoutes(
                    models[model_id], shape, partial=self.partial, by_turns=self.by_turns
                )
                self.routes[model_id], self.lines[model_id] = routes, WaitingLine(routes.book)
        for gone in set(self.routes) - set(shapes):
            del self.routes[gone], self.lines[gone]

    def see(self, now_ms: int) -> None:
        """Take what swarm and chain say into the routes, and wake who waits for free room."""
        for model_id, routes in self.routes.items():
            routes.see(self.present(model_id, now_ms), self.standings, now_ms)
            self.lines[model_id].wake()

    def restore(self, jobs: Iterable[Job], now_ms: int) -> None:
        """After a restart: unfinished jobs hold what they were promised."""
        by_model: dict[str, list[Job]] = {}
        for job in jobs:
            by_model.setdefault(job.signed.order.model_id, []).append(job)
        for model_id, of_model in by_model.items():
            if model_id in self.routes:
                self.routes[model_id].restore(of_model, now_ms)

    def release(self, job_id: str, now_ms: int) -> None:
        """The job's work is over, or it never began. Safe to call twice."""
        for model_id, routes in self.routes.items():
            if routes.book.release(job_id, now_ms):
                self.lines[model_id].wake()

    def promised(self, now_ms: int) -> Mapping[str, int]:
        """Slots promised here by operator."""
        slots: dict[str, int] = {}
        for routes in self.routes.values():
            slots |= routes.book.promised(now_ms)
        return slots

    @property
    def reservations(self) -> int:
        """How many jobs hold a promise."""
        return sum(len(routes.book) for routes in self.routes.values())

    @property
    def waiting(self) -> int:
        """How many orders wait for room."""
        return sum(len(line) for line in self.lines.values())

    def present(self, model_id: str, now_ms: int) -> tuple[Sighting, ...]:
        """Machines of a model that are alive, may work and are not left out for what they did."""
        found = present(self.sightings, self.standings, model_id, now_ms)
        return tuple(s for s in found if s.operator not in self.marks.left_out)

    def region_of(self, sighting: Sighting) -> str:
        """The region that plans count a machine in; before the first, what it says of itself."""
        cluster = self.clusters.get(sighting.record.model_id)
        member = cluster.members.get(sighting.operator) if cluster is not None else None
        return sighting.record.region if member is None else member.machine.region

    def offers(self, model_id: str, now_ms: int) -> tuple[StageOffer, ...]:
        """What serves a model now, with every promised slot counted."""
        routes = self.routes.get(model_id)
        return () if routes is None else routes.offers(now_ms)

    def barred(self, terms: Terms | None) -> frozenset[str]:
        """Machines that an order's terms do not allow."""
        if terms is None or not (terms.trusted or terms.avoided):
            return frozenset()
        known = self.sightings.values()
        return frozenset(s.operator for s in known if not terms.allows(s.operator))

    def reachable(self, job: Job, now_ms: int) -> Job:
        """The job with the endpoints that its stages announce now, or the last known ones."""
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
        """Operators to pass over now."""
        return frozenset(op for op, until in self.avoid_until_ms.items() if until > now_ms)

    @property
    def ready(self) -> bool:
        """Whether orders can be taken: chain and swarm answered last time."""
        return self.chain.ok and self.swarm.ok
