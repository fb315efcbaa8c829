"""Which chain of serving machines answers an order, and what is the least it must pay?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.protocol import pricing
from core.protocol.errors import HeadraceError, NoCapacity
from core.protocol.types import LayerRange, ModelSpec, Order, Stage
from core.protocol.units import format_price, price_of_nano
from matcher.fleet_view import Sighting, Standings, fleet_of, serving
from scheduler.errors import PlanError
from scheduler.fleet import ModelShape, Shard
from scheduler.parallax_route import NoRoute, Route, RouteQuery, route
from scheduler.routing_table import prepare


@dataclass(frozen=True)
class Offer:
    """One serving machine as an order sees it. Prices are nano base units per token and layer unit."""

    operator: str
    endpoint: str
    layers: LayerRange
    price_in: int
    price_out: int
    stake_units: int
    used_slots: int
    max_slots: int

    @property
    def free(self) -> bool:
        return self.used_slots < self.max_slots


@dataclass(frozen=True)
class Price:
    """The two prices an order must offer at least."""

    price_in: int
    price_out: int

    def cost(self, units: int, tokens_in: int, tokens_out: int) -> int:
        return pricing.cost(units, tokens_in, tokens_out, self.price_in, self.price_out)


@dataclass(frozen=True)
class Chosen:
    """A pipeline for an order: its plan, whom to dial, and how long one token takes through it."""

    plan: tuple[Stage, ...]
    endpoints: tuple[str, ...]
    latency_ms: float


def offers_of(
    sightings: Iterable[Sighting],
    standings: Standings,
    reserved: Mapping[str, int],
    spec: ModelSpec,
) -> tuple[Offer, ...]:
    """What serves now. A slot is used when we promised it or its machine says so, whichever is more."""
    return tuple(
        Offer(
            operator=s.operator,
            endpoint=s.record.endpoint,
            layers=s.record.layers,
            price_in=s.record.price_in,
            price_out=s.record.price_out,
            stake_units=standings[s.operator].stake_units,
            used_slots=max(s.record.active_requests, reserved.get(s.operator, 0)),
            max_slots=s.record.max_requests,
        )
        for s in serving(sightings)
        if s.record.layers is not None and s.record.layers.end <= spec.layers
    )


def covered_to(offers: Iterable[Offer]) -> int:
    """How far whole shards reach from layer 0 without a gap: the model's layers if there is a pipeline."""
    reached = {0}
    for offer in sorted(offers, key=lambda o: o.layers):
        if offer.layers.start in reached:
            reached.add(offer.layers.end)
    return max(reached)


def serves(offers: Iterable[Offer], layers: int) -> bool:
    """Whether some chain of whole shards covers [0, layers)."""
    reached = {0}
    for offer in sorted(offers, key=lambda o: o.layers):
        if offer.layers.start in reached:
            reached.add(offer.layers.end)
    return layers in reached


def cheapest(
    offers: Sequence[Offer], spec: ModelSpec, tokens_in: int, tokens_out: int
) -> Price | None:
    """The prices of least cost for these tokens at which a whole pipeline serves, None when none does at any price.

    Every stage is paid the order's prices, so the dearest stage of each kind decides. Coverage only grows with either price:
    the walk lowers one threshold while it raises the other and meets every candidate that can be best.
    """
    if not serves(offers, spec.layers):
        return None
    ins = sorted({offer.price_in for offer in offers})
    best: Price | None = None
    at = len(ins) - 1
    for price_out in sorted({offer.price_out for offer in offers}):
        affordable = [offer for offer in offers if offer.price_out <= price_out]
        if not serves([o for o in affordable if o.price_in <= ins[at]], spec.layers):
            continue
        while at and serves([o for o in affordable if o.price_in <= ins[at - 1]], spec.layers):
            at -= 1
        found = Price(ins[at], price_out)
        if best is None or _rank(found, tokens_in, tokens_out) < _rank(best, tokens_in, tokens_out):
            best = found
    return best


def _rank(price: Price, tokens_in: int, tokens_out: int) -> tuple[int, int, int]:
    # Not `Price.cost`: its rounding would make unequal prices look equal.
    total = tokens_in * price.price_in + tokens_out * price.price_out
    return total, price.price_out, price.price_in


def find_route(
    order: Order,
    spec: ModelSpec,
    shape: ModelShape,
    sightings: Sequence[Sighting],
    offers: Sequence[Offer],
    excluded: frozenset[str] = frozenset(),
) -> Chosen | HeadraceError:
    """Phase 2 over whole shards that the order's terms allow, or NoCapacity saying what is in the way."""
    allowed = [
        offer
        for offer in offers
        if offer.operator not in excluded
        and offer.price_in <= order.price_in
        and offer.price_out <= order.price_out
        and offer.stake_units >= order.min_stake
    ]
    if not serves([offer for offer in allowed if offer.free], spec.layers):
        return _why_not(order, spec, offers, allowed, excluded)
    found = fastest(spec, shape, sightings, allowed)
    if isinstance(found, NoRoute):
        return NoCapacity("no pipeline serves this order", why=found.text)
    return found


def fastest(
    spec: ModelSpec, shape: ModelShape, sightings: Sequence[Sighting], offers: Sequence[Offer]
) -> Chosen | NoRoute:
    """The chain of least latency over these offers, with every promised slot counted."""
    by_operator = {offer.operator: offer for offer in offers}
    fleet = fleet_of(s for s in sightings if s.operator in by_operator)
    shards = [Shard(machine.id, by_operator[machine.id].layers) for machine in fleet.machines]
    query = RouteQuery(in_flight={offer.operator: offer.used_slots for offer in offers})
    try:
        found: Route | NoRoute = route(prepare(fleet, shape, shards), query)
    except PlanError as error:
        return NoRoute("uncovered", (LayerRange(0, spec.layers),), str(error))
    if isinstance(found, NoRoute):
        return found
    return Chosen(
        plan=tuple(
            Stage(shard.machine_id, shard.layers.start, shard.layers.end) for shard in found.stages
        ),
        endpoints=tuple(by_operator[shard.machine_id].endpoint for shard in found.stages),
        latency_ms=found.latency_ms,
    )


def _why_not(
    order: Order,
    spec: ModelSpec,
    offers: Sequence[Offer],
    allowed: Sequence[Offer],
    excluded: frozenset[str],
) -> NoCapacity:
    """The first obstacle in the order in which a person would remove it, with the nearest offer."""
    what = "no pipeline serves this order"
    reachable = [offer for offer in offers if offer.operator not in excluded]
    if not serves(offers, spec.layers):
        hole = covered_to(offers)
        return NoCapacity(
            what,
            why=f"of {spec.layers} layers, no chain of serving machines reaches past layer {hole}",
            next_step="wait until machines serve the rest, or choose another model: `client models`",
            covered_to=hole,
            layers=spec.layers,
        )
    if not serves(reachable, spec.layers):
        return NoCapacity(
            what,
            why=f"{len(excluded)} machines refused or did not answer, and nobody else holds their layers",
            next_step="try again in a moment",
            excluded=sorted(excluded),
        )
    staked = [offer for offer in reachable if offer.stake_units >= order.min_stake]
    price = cheapest(staked, spec, order.max_tokens_in, order.max_tokens_out)
    if price is None:
        return NoCapacity(
            what,
            why=f"no whole pipeline has {order.min_stake} base units of stake at every stage",
            next_step="lower the order's minimum stake",
            min_stake=order.min_stake,
        )
    if not serves(allowed, spec.layers):
        nearest = show_price(price, spec)
        asked = show_price(Price(order.price_in, order.price_out), spec)
        return NoCapacity(
            what,
            why=f"the order pays {asked}",
            next_step=f"offer at least {nearest}",
            nearest_offer=nearest,
            price_in=price.price_in,
            price_out=price.price_out,
            cost_units=str(price.cost(spec.layer_units, order.max_tokens_in, order.max_tokens_out)),
        )
    return NoCapacity(
        what,
        why="every pipeline that the order pays for has all its slots taken",
        next_step="try again in a moment, or offer more",
        nearest_offer=show_price(price, spec),
    )


def show_price(price: Price, spec: ModelSpec) -> str:
    """Both prices through the whole model, for people."""
    shown_in = format_price(price_of_nano(price.price_in, spec.layer_units))
    shown_out = format_price(price_of_nano(price.price_out, spec.layer_units))
    return f"{shown_in} in and {shown_out} out"
