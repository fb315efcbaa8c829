"""Which chain of serving machines answers an order now, and what has it been promised?

One `LiveRouter` a model and placement, kept current: by what machines announce, and at once by what
we promise. A machine that goes is masked, one that comes back is unmasked; only other shards, or
latencies that moved, make a new router.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from core.protocol.errors import HeadraceError, NoCapacity
from core.protocol.types import LayerRange, ModelSpec, Order, SignedOrder, Stage
from matcher.fleet.fleet_view import Sighting, Standings, fleet_of, machine_of, serving
from matcher.records.jobs import BUSY, Job
from matcher.routes.offers import Price, StageOffer, cheapest, covered_to, serves, show_price
from matcher.routes.round_robin import FlowTurns, PromisedCache
from scheduler.fleet.fleet import Machine, ModelShape, Shard, in_layer_order
from scheduler.live.holdings import missing
from scheduler.routing.bridge import bridge
from scheduler.routing.live import LiveRouter
from scheduler.routing.parallax_route import NoRoute, Route, without_returns
from scheduler.routing.reservations import MOST, Need, Reservations
from scheduler.routing.routing_table import prepare

#: Most requests of one job at once: what a client keeps in flight and a miner sets aside.
JOB_SLOTS = 8
#: A promise is a lease: by its end the machine's own record shows what it set aside, or that it has
#: dropped the job. Many announcements long: a late record does not free a machine.
LEASE_MS = 5_000
#: A latency changed when it moved by more than both; else every ping would make a new router.
MOVED_MS, MOVED_SHARE = 1.0, 0.2
#: A link's speed changed when it is so many times what it was, or less than that part of it.
MOVED_TIMES = 2.0
#: Changed links make at most one new router in this time.
ANEW_MS = 5_000
NO_PIPELINE = "no pipeline serves this order"


@dataclass(frozen=True)
class Chosen:
    """Stages for an order, or for a part of the model, and how long one token takes."""

    plan: tuple[Stage, ...]
    endpoints: tuple[str, ...]
    latency_ms: float


class _Facts(NamedTuple):
    """What of a machine makes another router if it changes. The measured τ is not part of it."""

    machine: Machine
    layers: LayerRange


@dataclass
class _SeenMachine:
    """The newest record of a serving machine, its stake, and the most KV room it said was free."""

    sighting: Sighting
    stake_units: int
    facts: _Facts
    kv_tokens: int


def slots_of(signed: SignedOrder) -> int:
    """How many requests of an order run at once at most."""
    if signed.order.is_open and signed.terms is not None:
        return min(JOB_SLOTS, signed.terms.in_flight)
    return JOB_SLOTS


def _latency_moved(before_ms: float, now_ms: float) -> bool:
    return abs(now_ms - before_ms) > max(MOVED_MS, MOVED_SHARE * before_ms)


def _speed_moved(before_mb_s: float, now_mb_s: float) -> bool:
    low, high = sorted((before_mb_s, now_mb_s))
    return high > MOVED_TIMES * low


class LiveRoutes:
    """Routes and promises over the machines that serve a model. Times are ours, in milliseconds."""

    def __init__(
        self,
        spec: ModelSpec,
        shape: ModelShape,
        *,
        partial: bool = False,
        by_turns: bool = False,
    ) -> None:
        self.spec, self.shape, self.partial = spec, shape, partial
        self.book = Reservations()
        self.routers = 0  # made so far
        self._by_turns = by_turns
        self._turns: FlowTurns | None = None
        self._seen: dict[str, _SeenMachine] = {}
        self._router = self._router_of(())
        self._facts: dict[str, _Facts] = {}  # the router's
        self._rho_ms: dict[str, Mapping[str, float]] = {}
        self._mb_s: dict[str, Mapping[str, float]] = {}
        self._made_ms = 0

    # --- what is known ---

    def see(self, present: Iterable[Sighting], standings: Standings, now_ms: int) -> None:
        """Take in who serves now and what they say. Records that have not changed cost nothing."""
        before, self._seen = self._seen, {}
        fresh: list[Sighting] = []
        for sighting in serving(present):
            known = before.pop(sighting.operator, None)
            stake = standings[sighting.operator].stake_units
            if known is not None and known.sighting is sighting:
                known.stake_units = stake
                self._seen[sighting.operator] = known
            elif (now := self._read(sighting, stake, known)) is not None:
                self._seen[sighting.operator] = now
                fresh.append(sighting)
        for operator in before:
            self.book.forget(operator)
        for sighting in fresh:
            self._count(self._seen[sighting.operator], now_ms)
        if self._is_another(fresh, now_ms):
            self._make(now_ms)
        else:
            for operator in before:
                self._router.ready(operator, False)
            for sighting in fresh:
                self._router.ready(sighting.operator, True)
        for sighting in fresh:
            self._router.measured(sighting.operator, sighting.record.tau_ms_per_layer, 1)
        self._settle(now_ms)

    def offers(self, now_ms: int) -> tuple[StageOffer, ...]:
        """What serves now. A slot is used when we promised it or its machine says so."""
        self._settle(now_ms)
        found = []
        for operator, seen in sorted(self._seen.items()):
            record = seen.sighting.record
            found.append(
                StageOffer(
                    operator=operator,
                    endpoint=record.endpoint,
                    layers=seen.facts.layers,
                    price_in=record.price_in,
                    price_out=record.price_out,
                    stake_units=seen.stake_units,
                    used_slots=record.max_requests - self.book.free(operator).slots,
                    max_slots=record.max_requests,
                )
            )
        return tuple(found)

    # --- routes ---

    def take(
        self,
        name: str,
        order: Order,
        now_ms: int,
        excluded: Collection[str] = (),
        *,
        slots: int = JOB_SLOTS,
    ) -> Chosen | HeadraceError:
        """The fastest chain now with room for its pay, promised to this job, or NoCapacity.

        The promise replaces what the job held.

        Machines that an earlier order waits for count as full. A job is promised one slot at each
        stage, which is what a stage sets aside for it: more are its own once it uses them. `slots`
        are what it could use at most, and count for which chain is faster.
        """
        found = self._find(order, now_ms, excluded, self.book.claimed(name), slots)
        if isinstance(found, Chosen):
            needs = self._needs(order, found.plan, slots)
            taken = self.book.hold(name, needs, now_ms, now_ms + LEASE_MS)
            assert taken, "the router masks whoever has no room, and claims were left out"
        return found

    def mend(
        self,
        name: str,
        order: Order,
        plan: Sequence[Stage],
        now_ms: int,
        gone: Collection[str],
        *,
        slots: int = JOB_SLOTS,
    ) -> Chosen | HeadraceError:
        """`take` for an order after a broken chain: what is left stays, others step in."""
        self._settle(now_ms)
        stays = [stage for stage in plan if self._is_left(order, stage, gone)]
        kept = {stage.operator for stage in stays}
        stages: list[Stage] = []
        endpoints: list[str] = []
        for stage in [*stays, None]:
            at = stages[-1].layer_to if stages else 0
            until = stage.layer_from if stage is not None else self.spec.layers
            if at < until:
                found = self.stand_in(
                    order,
                    LayerRange(at, until),
                    now_ms,
                    before=stages[-1].operator if stages else None,
                    after=stage.operator if stage is not None else None,
                    excluded={*gone, *kept, *(s.operator for s in stages)},
                )
                if isinstance(found, HeadraceError):
                    return found
                stages += found.plan
                endpoints += found.endpoints
            if stage is not None:
                stages.append(stage)
                endpoints.append(self._seen[stage.operator].sighting.record.endpoint)
        needs = self._needs(order, stages, slots)
        if not self.book.hold(name, needs, now_ms, now_ms + LEASE_MS):
            return NoCapacity(NO_PIPELINE, why="who is left of the chain has no room any more")
        return Chosen(tuple(stages), tuple(endpoints), 0.0)

    def _is_left(self, order: Order, stage: Stage, gone: Collection[str]) -> bool:
        seen = self._seen.get(stage.operator)
        return (
            seen is not None
            and seen.facts.layers == stage.layers
            and stage.operator not in gone
            and stage.operator not in self._barred(order)
        )

    def stand_in(
        self,
        order: Order,
        span: LayerRange,
        now_ms: int,
        *,
        before: str | None = None,
        after: str | None = None,
        excluded: Collection[str] = (),
    ) -> Chosen | HeadraceError:
        """The fastest stages for these layers between two that stay (None: an end of the chain).

        `excluded` should name the other stages of the chain too: a machine stands in a plan once.
        """
        self._settle(now_ms)
        barred = self._barred(order) | frozenset(excluded)
        found = bridge(self._router, span, before, after, self.kv_tokens(order), barred)
        if isinstance(found, Route):
            return self._chosen(found)
        return NoCapacity(
            f"no machine stands in for layers {span}",
            why=found.text,
            next_step="order the rest anew",
            layers=[span.start, span.end],
        )

    def fastest(self, now_ms: int, excluded: Collection[str] = ()) -> Chosen | NoRoute:
        """The fastest chain with room, whatever it costs."""
        self._settle(now_ms)
        found = self._router.route(0, excluded)
        return self._chosen(found) if isinstance(found, Route) else found

    def disjoint(self, now_ms: int) -> tuple[Chosen, ...]:
        """Chains with room that share no machine, fastest first."""
        first = self.fastest(now_ms)
        if isinstance(first, NoRoute):
            return ()
        others = self._router.backups(len(self._seen))
        return (first, *(self._chosen(route) for route in others))

    # --- promises ---

    def kv_tokens(self, order: Order) -> int:
        """KV room of one request at every stage: the mean of what it may, at most the context."""
        mean = -(-(order.max_tokens_in + order.max_tokens_out) // order.requests)
        return min(mean, self.spec.context)

    def restore(self, jobs: Iterable[Job], now_ms: int) -> None:
        """After a restart: what may still be computing holds its slots until machines are heard."""
        for job in jobs:
            if job.state in BUSY and not job.finished_at_s:
                order = job.signed.order
                need = self._need(order, slots_of(job.signed))
                needs = {stage.operator: need for stage in job.plan}
                self.book.hold(job.job_id, needs, now_ms, now_ms + LEASE_MS, agreed=True)

    def would_do(self, order: Order, excluded: Collection[str] = ()) -> frozenset[str]:
        """Machines that the order may use once they have room; none if they are no whole chain."""
        need, barred = self.kv_tokens(order), self._barred(order)
        allowed = {
            operator: seen.facts.layers
            for operator, seen in self._seen.items()
            if operator not in barred
            and operator not in excluded
            and seen.kv_tokens >= need
            and seen.facts.machine.max_concurrent
        }
        if missing(allowed, self.spec.layers, self.partial):
            return frozenset()
        return frozenset(allowed)

    # --- inside ---

    def _find(
        self,
        order: Order,
        now_ms: int,
        excluded: Collection[str],
        claimed: frozenset[str],
        slots: int = JOB_SLOTS,
    ) -> Chosen | HeadraceError:
        self._settle(now_ms)
        gone, need = frozenset(excluded), self.kv_tokens(order)
        barred = self._barred(order) | gone | claimed
        if self._turns is not None:
            barred |= {operator for operator in self._seen if not self._takes(operator, need)}
            allowed = self._seen.keys() - barred
            chain = self._turns.next(min(order.requests, slots), allowed.__contains__)
            if chain is not None:
                return self._chosen(self._router.priced(chain))
            # Turns may lead nowhere while another chain of these machines is whole.
        found = self._router.route(need, barred)
        if isinstance(found, Route):
            return self._chosen(found)
        return self._why_not(order, gone, now_ms)

    def _takes(self, operator: str, tokens: int) -> bool:
        """Whether a machine has a slot, and stays under the high-water mark of its KV cache."""
        free = self.book.free(operator)
        cache = PromisedCache(self._seen[operator].kv_tokens, free.kv_tokens)
        return free.slots > 0 and cache.takes(tokens)

    def _read(
        self, sighting: Sighting, stake_units: int, known: _SeenMachine | None
    ) -> _SeenMachine | None:
        """None for a record that no machine of this model could have."""
        machine, layers = machine_of(sighting), sighting.record.layers
        if machine is None or layers is None or layers.end > self.spec.layers:
            return None
        facts = _Facts(replace(machine, tau_ms_per_layer=None), layers)
        kv_tokens = min(sighting.record.kv_free_tokens, MOST)
        if known is not None and known.facts.layers == layers:
            kv_tokens = max(kv_tokens, known.kv_tokens)
        return _SeenMachine(sighting, stake_units, facts, kv_tokens)

    def _count(self, seen: _SeenMachine, now_ms: int) -> None:
        """What the machine has, and what of it is in use, into the book."""
        sighting, record = seen.sighting, seen.sighting.record
        self.book.announce(sighting.operator, record.max_requests, seen.kv_tokens)
        in_use = seen.kv_tokens - min(record.kv_free_tokens, MOST)
        said_ms = min(record.sent_at_ms, sighting.seen_ms)  # a clock ahead of ours must not count
        self.book.observe(sighting.operator, record.active_requests, in_use, said_ms, now_ms)

    def _is_another(self, fresh: Sequence[Sighting], now_ms: int) -> bool:
        """Whether the router's table does not describe these machines any more."""
        moved = False
        for sighting in fresh:
            if self._facts.get(sighting.operator) != self._seen[sighting.operator].facts:
                return True
            moved = moved or self._has_moved(sighting)
        return moved and now_ms - self._made_ms >= ANEW_MS

    def _has_moved(self, sighting: Sighting) -> bool:
        operator, record = sighting.operator, sighting.record
        return self._differs(self._rho_ms.get(operator, {}), record.rho_ms, _latency_moved) or (
            self._differs(self._mb_s.get(operator, {}), record.link_mb_s, _speed_moved)
        )

    def _differs(
        self,
        before: Mapping[str, float],
        now: Mapping[str, float],
        moved: Callable[[float, float], bool],
    ) -> bool:
        if before == now:
            return False
        return any(
            peer not in before or moved(before[peer], value)
            for peer, value in now.items()
            if peer in self._facts
        )

    def _make(self, now_ms: int) -> None:
        """A router over what serves now."""
        self._router = self._router_of([seen.sighting for seen in self._seen.values()])
        self._facts = {operator: seen.facts for operator, seen in self._seen.items()}
        self._rho_ms = {op: seen.sighting.record.rho_ms for op, seen in self._seen.items()}
        self._mb_s = {op: seen.sighting.record.link_mb_s for op, seen in self._seen.items()}
        self._made_ms = now_ms
        for operator in self._facts:
            self._tell(operator)

    def _router_of(self, sightings: Sequence[Sighting]) -> LiveRouter:
        self.routers += 1
        layers = {operator: seen.facts.layers for operator, seen in self._seen.items()}
        shards = [Shard(operator, held) for operator, held in layers.items()]
        fleet = fleet_of(sightings)
        if self._by_turns:
            placement = in_layer_order(shards)
            self._turns = FlowTurns(fleet, self.shape, placement, partial=self.partial)
        return LiveRouter(prepare(fleet, self.shape, shards), partial=self.partial)

    def _settle(self, now_ms: int) -> None:
        """What was promised, or has ended, into the router."""
        self.book.expire(now_ms)
        for operator in self.book.touched():
            self._tell(operator)

    def _tell(self, operator: str) -> None:
        if operator not in self._router.table.index or operator not in self._seen:
            return
        free, slots = self.book.free(operator), self._seen[operator].facts.machine.max_concurrent
        in_use = slots - free.slots
        if free.slots > 0:  # what may come makes no machine full
            in_use = min(slots - 1, in_use + self.book.wished(operator))
        self._router.load(operator, in_use)
        self._router.room(operator, free.kv_tokens)

    def _needs(self, order: Order, plan: Sequence[Stage], most: int) -> dict[str, Need]:
        return {stage.operator: self._need(order, most) for stage in plan}

    def _need(self, order: Order, most: int) -> Need:
        return Need(1, self.kv_tokens(order), min(order.requests, most, JOB_SLOTS) - 1)

    def _barred(self, order: Order) -> frozenset[str]:
        """Machines that this order does not pay, or that have too little stake for it."""
        return frozenset(
            operator
            for operator, seen in self._seen.items()
            if seen.sighting.record.price_in > order.price_in
            or seen.sighting.record.price_out > order.price_out
            or seen.stake_units < order.min_stake
        )

    def _chosen(self, found: Route) -> Chosen:
        shards = without_returns(found.stages)  # a machine stands in a plan once
        if len(shards) < len(found.stages):
            found = self._router.priced(shards)
        return Chosen(
            plan=tuple(Stage(s.machine_id, s.layers.start, s.layers.end) for s in shards),
            endpoints=tuple(self._seen[s.machine_id].sighting.record.endpoint for s in shards),
            latency_ms=found.latency_ms,
        )

    def _why_not(self, order: Order, excluded: frozenset[str], now_ms: int) -> NoCapacity:
        """The first obstacle in the order in which a person would remove it."""
        spec, partial = self.spec, self.partial
        offers = self.offers(now_ms)
        reachable = [offer for offer in offers if offer.operator not in excluded]
        if not serves(offers, spec.layers, partial):
            hole = covered_to(offers, spec.layers, partial)
            return NoCapacity(
                NO_PIPELINE,
                why=f"of {spec.layers} layers, no chain of machines reaches past layer {hole}",
                next_step="wait for machines with the rest, or choose another: `client models`",
                covered_to=hole,
                layers=spec.layers,
            )
        if not serves(reachable, spec.layers, partial):
            return NoCapacity(
                NO_PIPELINE,
                why=f"{len(excluded)} machines refused or did not answer, no other serves here",
                next_step="try again in a moment",
                excluded=sorted(excluded),
            )
        staked = [offer for offer in reachable if offer.stake_units >= order.min_stake]
        price = cheapest(staked, spec, order.max_tokens_in, order.max_tokens_out, partial)
        if price is None:
            return NoCapacity(
                NO_PIPELINE,
                why=f"no whole pipeline has {order.min_stake} base units of stake at every stage",
                next_step="lower the order's minimum stake",
                min_stake=order.min_stake,
            )
        nearest = show_price(price, spec)
        if not serves([o for o in reachable if o.takes(order)], spec.layers, partial):
            asked = show_price(Price(order.price_in, order.price_out), spec)
            cost = price.cost(spec.layer_units, order.max_tokens_in, order.max_tokens_out)
            return NoCapacity(
                NO_PIPELINE,
                why=f"the order pays {asked}",
                next_step=f"offer at least {nearest}",
                nearest_offer=nearest,
                price_in=price.price_in,
                price_out=price.price_out,
                cost_units=str(cost),
            )
        if not self.would_do(order, excluded):
            return NoCapacity(
                NO_PIPELINE,
                why=f"one of its requests takes {self.kv_tokens(order)} tokens of KV cache at "
                "every stage, and no whole pipeline that the order pays for has as many",
                next_step="order shorter prompts or answers",
                kv_tokens=self.kv_tokens(order),
            )
        return NoCapacity(
            NO_PIPELINE,
            why="every pipeline that the order pays for has all its slots or KV cache taken",
            next_step="try again in a moment, or offer more",
            nearest_offer=nearest,
            busy=True,
        )
