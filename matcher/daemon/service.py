"""The daemon: a loop that follows chain and swarm, plans, allocates and moves jobs on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from core.chain.staked import StakedOperators
from core.protocol import records
from core.protocol.errors import ChainUnreachable, HeadraceError, PeerUnreachable
from core.protocol.ids import Kind, short
from core.runtime.logs import get_logger
from core.runtime.tasks import spawn
from matcher.audits.audit_desk import AuditDesk, Pays
from matcher.audits.reports import Reports
from matcher.fleet.fleet_view import ChainStanding, forget, merge, plannable
from matcher.matching.matching import Matchmaker
from matcher.matching.registered import RegisteredOrders
from matcher.planning.allocating import Allocator
from matcher.planning.planner import nobody, plan, seen
from matcher.records.jobs import DISPUTED, ENDED
from matcher.records.store import MinerSeen, Store
from matcher.settling.following import JobFollower
from matcher.settling.next_step import Patience
from matcher.settling.settler import LONGEST_WAIT_S, Settler
from matcher.world import ChainHealth, MatcherWorld, SwarmHealth
from scheduler.live.standby import Rules as Planning
from scheduler.methods.methods import Budget

if TYPE_CHECKING:
    from core.chain.chain import Chain
    from core.protocol.signing import DigestSigner
    from core.runtime.clock import Clock
    from core.runtime.metrics import Metrics
    from core.runtime.network.collecting import Dialer
    from matcher.matching.orders import MatcherTerms

TICK_S = 1.0
SWARM_TIMEOUT_S = 8.0
STANDING_TTL_S = 30.0
FORGET_MS = 10 * 60_000
TAKE_STOCK_EVERY_S = 5.0
JOBS_AT_ONCE = 16
LONGEST_CHAIN_BACKOFF_S = 10.0
CLOSE_S = 6.0
log = get_logger(__name__)


class SwarmLike(Protocol):
    """The part of `Swarm` that a matcher uses."""

    def addresses(self) -> list[str]: ...

    async def admit(self, operators: Iterable[str]) -> None: ...

    async def lookup(self, *topics: str) -> dict[str, bytes]: ...

    async def peers(self) -> list[str]: ...


#: Measured times vary by a fifth where machines do other things: no reason to load weights anew.
PLANNING = Planning(partial=False, settle_ms=2_000, worth_share=0.25, rest_ms=5 * 60_000)


@dataclass(frozen=True)
class MatcherRules:
    """How this matcher behaves.

    `plan_s` is the most that one plan may take, `queue_s` how long an order waits for room. With
    `parts` an order's stage may be any part of what a machine holds; plans do not depend on it:
    whole shards meet unless `planning.partial` says otherwise. `by_turns` takes chains in turns
    over a flow instead of the fastest.
    """

    planning: Planning = PLANNING
    parts: bool = True
    by_turns: bool = False
    patience: Patience = field(default_factory=Patience)
    replan_every_ms: int = 10_000
    plan_s: float = 20.0
    queue_s: float = 30.0
    #: Match orders that requesters have registered on chain, without a word to us.
    registered: bool = False
    start_block: int = 0
    window_blocks: int = 64
    #: Auditors whose reports are believed, and how long a finding of theirs counts.
    auditors: frozenset[str] = frozenset()
    memory_s: int = 30 * 86_400
    #: The auditors that this matcher pays, and how much.
    pays: Pays = field(default_factory=Pays)


class MatcherDaemon:
    """The matcher's life. Everything it depends on is handed in."""

    def __init__(
        self,
        chain: Chain,
        swarm: SwarmLike,
        peers: Dialer,
        signer: DigestSigner,
        store: Store,
        metrics: Metrics,
        clock: Clock,
        terms: MatcherTerms,
        rules: MatcherRules,
    ) -> None:
        self.chain, self.swarm, self.signer, self.store = chain, swarm, signer, store
        self.clock, self.rules = clock, rules
        self.world = MatcherWorld(partial=rules.parts, by_turns=rules.by_turns)
        self.matchmaker = Matchmaker(
            chain, signer, peers, store, self.world, terms, clock, queue_s=rules.queue_s
        )
        first = rules.start_block
        self.registered = RegisteredOrders(chain, self.matchmaker, signer.address, clock, first)
        self.settler = Settler(
            chain, signer, peers, store, self.world, self.matchmaker, clock, rules.patience
        )
        self.reports = Reports(
            chain, store, self.world, clock, auditors=rules.auditors, memory_s=rules.memory_s
        )
        self.audits = AuditDesk(chain.domain, store, clock, metrics, rules.pays)
        start, window = rules.start_block, rules.window_blocks
        self._following = JobFollower(
            chain, store, signer.address, start_block=start, window=window
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._telling: set[asyncio.Task[Any]] = set()
        self.allocator = Allocator(peers, clock, self._telling)
        self._staked = StakedOperators(chain, start_block=start, window=window)
        self._chain_failures = 0
        self._ask_chain_at = 0.0
        self._standing_at: dict[str, float] = {}
        self._noted_at = float("-inf")
        self._machines: dict[str, frozenset[str]] = {}
        self._planned_at: dict[str, int] = {}
        self._events = metrics.counter("headrace_chain_events_total", "Chain events taken in")
        self._refused = metrics.counter("headrace_swarm_refused_total", "Records not believed")
        self._bugs = metrics.counter("headrace_loop_errors_total", "Phases that failed", ["phase"])
        self._serving = metrics.gauge("headrace_registry_peers", "Machines by state", ["state"])
        age = metrics.gauge("headrace_registry_age_seconds", "Since the swarm was last read")
        age.set_function(lambda: max(0.0, self._now_ms() - self.world.swarm.looked_at_ms) / 1000)
        waiting = metrics.gauge("headrace_queue_length", "Orders that wait for room")
        waiting.set_function(lambda: self.world.waiting)
        self._chain_up = metrics.gauge("headrace_chain_up", "1 when the chain answered last")
        self._disputes = metrics.gauge("headrace_disputes", "Disputes by state", ["state"])
        self._gas = metrics.gauge("headrace_balance_wei", "ETH for fees", ["account"])
        self._jobs = metrics.gauge("headrace_jobs", "Jobs by state", ["state"])

    async def prepare(self) -> None:
        """Read what we knew before. Raises ConfigError for another network's database."""
        domain = self.chain.domain
        await self.store.off_loop(self.store.bind, domain.chain_id, domain.verifying_contract)
        self.world.learn_models(await self.store.off_loop(self.store.models))
        await self.reports.prepare()
        await self.audits.prepare()
        unfinished = await self.store.off_loop(self.store.unfinished)
        self.world.restore(unfinished, self._now_ms())
        if unfinished:
            log.info("jobs to finish", count=len(unfinished))

    async def run(self) -> None:
        """The central loop, until cancelled. No failure of chain, swarm or stranger ends it."""
        phases: tuple[Callable[[], object], ...] = (
            self.follow_chain,
            self.admit_staked,
            self.look_at_swarm,
            self.read_standings,
            self.weigh_standings,
            self.refresh_routes,
            self.replan,
            self.allocate,
            self.match_registered,
            self.advance_jobs,
            self.take_stock,
        )
        while True:
            began = self.clock.monotonic()
            for phase in phases:
                await self._phase(phase)
            await self.clock.sleep(max(0.05, TICK_S - (self.clock.monotonic() - began)))

    async def close(self) -> None:
        """Let transactions under way end, for a while; the others are found at the next start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.matchmaker.close()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        left = self._tasks | self._telling
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _phase(self, phase: Callable[[], object]) -> None:
        name = str(getattr(phase, "__name__", "phase"))
        try:
            found = phase()
            if asyncio.iscoroutine(found):
                await found
        except ChainUnreachable as error:
            self._lost_chain(error)
        except PeerUnreachable as error:
            self.world.swarm = replace(self.world.swarm, ok=False, error=str(error))
            log.warning("swarm lost", phase=name, why=error.why)
        except HeadraceError as error:
            self._bugs.labels(name).inc()
            log.warning("phase failed", phase=name, why=str(error))
        except Exception:
            self._bugs.labels(name).inc()
            log.exception("phase failed", phase=name)

    # --- phases ---

    async def follow_chain(self) -> None:
        """Take in events; while the node is away, ask it less and less often."""
        if self.clock.monotonic() < self._ask_chain_at:
            return
        seen = await self._following.follow(int(self.clock.now()))
        time_s = await self.chain.now()
        if time_s - self.world.chain.time_s > LONGEST_WAIT_S:
            self.settler.wake_all()  # blocks come seldom here, and deadlines pass in leaps
        if not self.world.chain.ok:
            log.info("chain answers", block=seen.block)
        self._chain_failures = 0
        self.world.chain = ChainHealth(ok=True, block=seen.block, time_s=time_s, error="")
        self._events.inc(seen.events)
        if seen.models_changed:
            self.world.learn_models(await self.store.off_loop(self.store.models))
        if seen.miners_changed or seen.rolled_back:
            self._standing_at.clear()
        for job_id in seen.jobs:
            self.settler.wake(job_id)
        if self.rules.registered:
            await self.registered.take_in(seen.began)

    async def admit_staked(self) -> None:
        """Let our peer of the swarm believe operators that have stake, and nobody else."""
        if self.world.chain.ok:
            await self._staked.poll()
        await self.swarm.admit(self._staked.operators)

    async def look_at_swarm(self) -> None:
        """Read every machine's record."""
        now_ms = self._now_ms()
        try:
            async with asyncio.timeout(SWARM_TIMEOUT_S):
                found = await self.swarm.lookup(*records.miners_topics(self.chain.domain))
        except TimeoutError:
            raise PeerUnreachable("the swarm", f"no answer in {SWARM_TIMEOUT_S:g} s") from None
        known, refused = merge(self.world.sightings, found, self.chain.domain, now_ms)
        self.world.sightings = forget(known, now_ms, FORGET_MS)
        self._refused.inc(refused)
        self.world.swarm = SwarmHealth(
            ok=True,
            looked_at_ms=now_ms,
            records=len(found),
            refused_total=self.world.swarm.refused_total + refused,
            error="",
        )

    async def read_standings(self) -> None:
        """Ask the chain about operators that are new, changed or not looked at for a while."""
        if not self.world.chain.ok:
            return
        now = self.clock.monotonic()
        read_at, never = self._standing_at, float("-inf")
        stale = [
            op for op in self.world.sightings if now - read_at.get(op, never) >= STANDING_TTL_S
        ]
        if not stale:
            return
        found = await asyncio.gather(*(self._standing(operator) for operator in stale))
        fresh = dict(zip(stale, found, strict=True))
        self.world.standings = {
            op: standing
            for op, standing in {**self.world.standings, **fresh}.items()
            if op in self.world.sightings
        }
        self._standing_at |= dict.fromkeys(stale, now)

    async def weigh_standings(self) -> None:
        """Who is left out, or comes last, by what the chain and auditors say."""
        if self.world.chain.ok:
            await self.reports.weigh()

    def refresh_routes(self) -> None:
        """Let the routers know who serves now, how fast, how near and how busy."""
        self.world.see(self._now_ms())

    async def replan(self) -> None:
        """Decide for each model which machine holds what, on news or when it is time again."""
        for model_id, shape in self.world.shapes.items():
            now_ms = self._now_ms()
            present = self.world.present(model_id, now_ms)
            machines = frozenset(sighting.operator for sighting in plannable(present))
            again_at = self._planned_at.get(model_id, 0) + self.rules.replan_every_ms
            if self._machines.get(model_id) == machines and now_ms < again_at:
                continue
            self._machines[model_id] = machines
            cluster = seen(self.world.clusters.get(model_id) or nobody(shape), present, now_ms)
            self.world.clusters[model_id] = cluster
            if now_ms - cluster.changed_ms < self.rules.planning.settle_ms:
                self._planned_at.pop(model_id, None)
                continue
            self._planned_at[model_id] = now_ms
            budget = Budget(self.clock.monotonic, self.clock.monotonic() + self.rules.plan_s)
            # In a thread: a plan for a thousand machines takes a second, and orders do not wait.
            last, rules = self.world.placements.get(model_id), self.rules.planning
            cluster, decided = await asyncio.to_thread(plan, cluster, last, now_ms, rules, budget)
            self.world.clusters[model_id] = cluster
            if decided is not None:
                self.world.placements = {**self.world.placements, model_id: decided}
                told = {op: str(layers) for op, layers in decided.assignments.items()}
                log.info("planned", model=model_id, reason=decided.reason, layers=told)

    def allocate(self) -> None:
        """Tell machines what to hold, as far as they do not know it."""
        now_ms = self._now_ms()
        self.allocator.keep_only(self.world.sightings)
        for model_id, placement in self.world.placements.items():
            self.allocator.tell(model_id, placement, self.world.present(model_id, now_ms))

    async def advance_jobs(self) -> None:
        """Start the next step of every job that has one; none waits for another."""
        if not self.world.chain.ok:
            return
        jobs = await self.store.off_loop(self.store.unfinished)
        self.settler.keep_only(job.job_id for job in jobs)
        for job in jobs:
            if len(self._tasks) >= JOBS_AT_ONCE:
                return
            if self.settler.due(job.job_id):
                spawn(self._advance(job.job_id), self._tasks, name=f"job {job.job_id[:10]}")

    def match_registered(self) -> None:
        """Match the orders that wait on chain for us."""
        if self.rules.registered and self.world.chain.ok:
            spawn(self._phase(self.registered.look_back), self._tasks)
            for job_id in self.registered.due():
                spawn(self.registered.match(job_id), self._tasks, name=f"match {job_id[:10]}")

    async def take_stock(self) -> None:
        """Metrics, and which machines were seen."""
        now_ms = self._now_ms()
        self._chain_up.set(1 if self.world.chain.ok else 0)
        states = [s.record.state for s in self.world.sightings.values() if s.alive(now_ms)]
        for state in ("JOIN", "SERVING", "DRAINING"):
            self._serving.labels(state).set(states.count(state))
        if self.clock.monotonic() - self._noted_at < TAKE_STOCK_EVERY_S:
            return
        self._noted_at = self.clock.monotonic()
        await self.store.off_loop(self.store.note_miners, self._seen(now_ms), now_ms // 1000)
        own, peers = self.swarm.addresses(), await self.swarm.peers()
        await self.store.off_loop(self.store.remember_swarm, own, peers, now_ms // 1000)
        counts = await self.store.off_loop(self.store.counts)
        for state in {*counts, *ENDED}:
            self._jobs.labels(state).set(counts.get(state, 0))
        self._disputes.labels("open").set(counts.get(DISPUTED, 0))
        await self.audits.take_stock()
        if self.world.chain.ok:
            self._gas.labels("matcher").set(await self.chain.balance_wei(self.signer.address))

    # --- helpers ---

    async def _advance(self, job_id: str) -> None:
        try:
            await self.settler.advance(job_id)
        except Exception:
            self._bugs.labels("advance_job").inc()
            self.settler.put_off(job_id)
            log.exception("job failed to advance", job=short(Kind.JOB, job_id))

    async def _standing(self, operator: str) -> ChainStanding:
        owner = str(await self.chain.read("MinerRegistry", "ownerOf", operator))
        miner, can_work = await asyncio.gather(
            self.chain.read("MinerRegistry", "minerOf", owner),
            self.chain.read("MinerRegistry", "canWork", operator, 0),
        )
        stake, strikes = int(miner["stake"]), int(miner["strikes"])
        machines = self._staked.machines(owner)
        return ChainStanding(owner, stake, bool(can_work), strikes, machines)

    def _seen(self, now_ms: int) -> Sequence[MinerSeen]:
        return [
            MinerSeen(
                operator=op,
                owner=self.world.standings[op].owner,
                stake_units=self.world.standings[op].stake_units,
                can_work=self.world.standings[op].can_work,
                state=sighting.record.state,
                endpoint=sighting.record.endpoint,
            )
            for op, sighting in self.world.sightings.items()
            if op in self.world.standings and sighting.alive(now_ms)
        ]

    def _lost_chain(self, error: ChainUnreachable) -> None:
        self._chain_failures += 1
        wait_s = min(LONGEST_CHAIN_BACKOFF_S, 0.5 * 2.0 ** min(self._chain_failures - 1, 10))
        self._ask_chain_at = self.clock.monotonic() + wait_s
        if self.world.chain.ok or self._chain_failures == 1:
            log.warning("chain lost", why=error.why)
        self.world.chain = replace(self.world.chain, ok=False, error=str(error))

    def _now_ms(self) -> int:
        return int(self.clock.now() * 1000)
