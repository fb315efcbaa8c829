"""A matcher over a real database; chain, swarm, stages in memory, and a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from core.protocol import types as t
from core.protocol.records import miners_topic
from core.runtime.database import sqlite_url
from core.runtime.metrics import Metrics
from matcher.api.api import make_app
from matcher.daemon.service import MatcherDaemon, MatcherRules
from matcher.matching.orders import MatcherTerms
from matcher.records.store import Store
from matcher.settling.next_step import Patience
from scheduler.live.standby import Rules as Planning
from tests.clocks import ManualClock
from tests.town.chain import FakeChain
from tests.town.fleet import (
    MODEL_ID,
    SPEC,
    FakePeers,
    FakeStage,
    FakeSwarm,
    machine_key,
    make_record,
    seal,
)
from tests.town.orders import DOMAIN, MATCHER, NOW_S

PHASES = [
    "follow_chain",
    "admit_staked",
    "look_at_swarm",
    "read_standings",
    "weigh_standings",
    "refresh_routes",
    "replan",
    "allocate",
    "match_registered",
    "advance_jobs",
    "take_stock",
]


@dataclass
class Net:
    """Everything around one matcher, and the matcher itself, which may die and come back."""

    folder: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_S))
    swarm: FakeSwarm = field(default_factory=FakeSwarm)
    peers: FakePeers = field(default_factory=FakePeers)
    rules: MatcherRules = field(
        default_factory=lambda: MatcherRules(
            planning=Planning(partial=False, settle_ms=0),
            patience=Patience(ack_grace_s=20),
            replan_every_ms=0,
            queue_s=0,
        )
    )
    sequence: int = 0
    said: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chain = FakeChain(self.clock, models={MODEL_ID: SPEC}, longest_s=(1800, 900))
        self.chain.emit("ModelRegistry", "ModelRegistered", id=MODEL_ID)
        self.stores: list[Store] = []
        self.daemon = self.restarted()

    def restarted(self) -> MatcherDaemon:
        """A new process over the same database: nothing in memory survives."""
        store = Store.open(sqlite_url(self.folder / "matcher.sqlite"))
        store.bind(DOMAIN.chain_id, DOMAIN.verifying_contract)
        self.stores.append(store)
        self.daemon = MatcherDaemon(
            self.chain,
            self.swarm,
            self.peers,
            MATCHER,
            store,
            Metrics(),
            self.clock,
            MatcherTerms(MATCHER.address, 200, 0),
            self.rules,
        )
        return self.daemon

    def announce(self, number: int, **changes: Any) -> FakeStage:
        """Machine `number` says something of itself, and listens."""
        self.sequence += 1
        self.said[number] = changes
        record = make_record(number, sent_at_ms=int(self.clock.now() * 1000), **changes)
        topic = self.swarm.topics.setdefault(miners_topic(DOMAIN, record.operator), {})
        topic[record.operator.lower()] = seal(number, record, self.sequence)
        self.chain.stakes.setdefault(record.operator, 500_000_000)
        return self.peers.stages.setdefault(record.operator, FakeStage(number, self.clock))

    def serve(self, *cuts: tuple[int, int, int], **changes: Any) -> list[FakeStage]:
        """Machines (number, start, end) serve."""
        return [
            self.announce(
                number, state="SERVING", layers=t.LayerRange(a, b), allocation=7, **changes
            )
            for number, a, b in cuts
        ]

    async def tick(self, times: int = 1) -> None:
        """The loop's phases, one after another, and the steps of jobs that they started."""
        for _ in range(times):
            for name in PHASES:
                await self.daemon._phase(getattr(self.daemon, name))
            for task in [*self.daemon._tasks, *self.daemon._telling]:
                await task

    async def pass_time(self, seconds: float, *, step: float = 1.0) -> None:
        """Time goes by, second by second, with the loop running; machines keep announcing."""
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            await self.clock.advance(step)
            for number, changes in list(self.said.items()):
                if not self.stage(number).is_gone:
                    self.announce(number, **changes)
            await self.tick()

    def stage(self, number: int) -> FakeStage:
        return self.peers.stages[machine_key(number).address]


@asynccontextmanager
async def asking(net: Net, **said: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of this matcher's API, which says `said` of itself beside address and fee."""
    daemon = net.daemon
    parts = daemon.matchmaker, daemon.settler, daemon.reports, daemon.audits
    said = {"matcher": MATCHER.address, "feeBps": 200, "openingFee": 0} | said
    app = make_app(daemon.world, daemon.store, *parts, Metrics(), net.clock, said)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://matcher") as client:
        yield client
