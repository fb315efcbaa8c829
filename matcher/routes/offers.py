"""What serves a model now, and what is the least an order must pay for it?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.money import pricing
from core.protocol.types import LayerRange, ModelSpec, Order
from core.protocol.units import format_price, price_of_nano
from scheduler.live.holdings import missing


@dataclass(frozen=True)
class StageOffer:
    """One serving machine as an order sees it, at nano base units per token and layer unit."""

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

    def takes(self, order: Order) -> bool:
        """Whether the order pays enough for it and its stake is enough for the order."""
        paid = self.price_in <= order.price_in and self.price_out <= order.price_out
        return paid and self.stake_units >= order.min_stake


@dataclass(frozen=True)
class Price:
    """The two prices an order must offer at least."""

    price_in: int
    price_out: int

    def cost(self, units: int, tokens_in: int, tokens_out: int) -> int:
        return pricing.cost(units, tokens_in, tokens_out, self.price_in, self.price_out)


def covered_to(offers: Iterable[StageOffer], layers: int, partial: bool = False) -> int:
    """How far chains reach from layer 0 without a gap: `layers` if one covers the model."""
    reached = {0}
    for offer in sorted(offers, key=lambda o: o.layers):
        start, end = offer.layers.start, min(offer.layers.end, layers)
        if start in reached or (partial and start <= max(reached)):
            reached.add(end)
    return max(reached)


def serves(offers: Iterable[StageOffer], layers: int, partial: bool = False) -> bool:
    """Whether some chain covers [0, layers): of whole shards, or of parts of them."""
    return not missing({offer.operator: offer.layers for offer in offers}, layers, partial)


def cheapest(
    offers: Sequence[StageOffer],
    spec: ModelSpec,
    tokens_in: int,
    tokens_out: int,
    partial: bool = False,
) -> Price | None:
    """The prices of least cost for these tokens at which a whole pipeline serves, or None.

    Every stage is paid the order's prices, so the dearest stage of each kind decides. Coverage only
    grows with either price: the walk lowers one threshold while it raises the other and meets every
    candidate that can be best.
    """

    def whole(within: Sequence[StageOffer]) -> bool:
        return serves(within, spec.layers, partial)

    if not whole(offers):
        return None
    ins = sorted({offer.price_in for offer in offers})
    best: Price | None = None
    at = len(ins) - 1
    for price_out in sorted({offer.price_out for offer in offers}):
        affordable = [offer for offer in offers if offer.price_out <= price_out]
        if not whole([o for o in affordable if o.price_in <= ins[at]]):
            continue
        while at and whole([o for o in affordable if o.price_in <= ins[at - 1]]):
            at -= 1
        found = Price(ins[at], price_out)
        if best is None or _rank(found, tokens_in, tokens_out) < _rank(best, tokens_in, tokens_out):
            best = found
    return best


def _rank(price: Price, tokens_in: int, tokens_out: int) -> tuple[int, int, int]:
    # Not `Price.cost`: its rounding would make unequal prices look equal.
    total = tokens_in * price.price_in + tokens_out * price.price_out
    return total, price.price_out, price.price_in


def show_price(price: Price, spec: ModelSpec) -> str:
    """Both prices through the whole model, for people."""
    shown_in = format_price(price_of_nano(price.price_in, spec.layer_units))
    shown_out = format_price(price_of_nano(price.price_out, spec.layer_units))
    return f"{shown_in} in and {shown_out} out"
