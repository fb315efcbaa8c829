"""What a job costs and who gets what: integer arithmetic of `docs/protocol.md` §4, twin of `libraries/Split.sol`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from core.protocol.types import ModelSpec, Order, Stage

NANO = 10**9
BPS = 10**4


class Split(msgspec.Struct, frozen=True):
    """Who gets what, in base units. `locked == sum(pays) + matcher_fee + protocol_fee + refund`."""

    locked: int
    gross: tuple[int, ...]
    pays: tuple[int, ...]
    matcher_fee: int
    protocol_fee: int
    refund: int


def stage_units(stage: Stage, model: ModelSpec) -> int:
    """Layer units a stage is paid for: its layers, plus the embedding's and head's share at the ends."""
    units = stage.layer_to - stage.layer_from
    if stage.layer_from == 0:
        units += model.embed_units
    if stage.layer_to == model.layers:
        units += model.head_units
    return units


def cost(units: int, tokens_in: int, tokens_out: int, price_in: int, price_out: int) -> int:
    """⌊units·(tokensIn·priceIn + tokensOut·priceOut) / 10⁹⌋ base units: rounded down, in the requester's favour."""
    return units * (tokens_in * price_in + tokens_out * price_out) // NANO


def max_amount(order: Order, model: ModelSpec) -> int:
    """What opening the job locks: the price of every token the order allows."""
    return cost(
        model.layer_units,
        order.max_tokens_in,
        order.max_tokens_out,
        order.price_in,
        order.price_out,
    )


def split(
    order: Order,
    plan: Sequence[Stage],
    model: ModelSpec,
    tokens_in: int,
    tokens_out: int,
    *,
    protocol_fee_bps: int = 0,
    at_fault: frozenset[int] = frozenset(),
) -> Split:
    """Settlement of a job with these counts.

    Fees are floored per stage and come off the stage's gross. A stage at fault is paid nothing and charged
    no fee: its gross returns to the requester. Promise: nothing is created or lost, and refund ≥ 0 as long
    as the counts are within the caps.
    """
    locked = max_amount(order, model)
    gross = tuple(
        cost(stage_units(s, model), tokens_in, tokens_out, order.price_in, order.price_out)
        for s in plan
    )
    pays, matcher_fee, protocol_fee = [], 0, 0
    for index, amount in enumerate(gross):
        if index in at_fault:
            pays.append(0)
            continue
        to_matcher = amount * order.matcher_fee_bps // BPS
        to_protocol = amount * protocol_fee_bps // BPS
        matcher_fee += to_matcher
        protocol_fee += to_protocol
        pays.append(amount - to_matcher - to_protocol)
    refund = locked - sum(pays) - matcher_fee - protocol_fee
    return Split(locked, gross, tuple(pays), matcher_fee, protocol_fee, refund)
