"""What a job costs and who gets what: `docs/protocol.md` §4, twin of `libraries/Split.sol`.

Shares are exact, in nano base units. People, quotes and limits see whole base units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.protocol.types import JobState, ModelSpec, Order, Stage
from core.protocol.units import NANO, covering_units

BPS = 10**4
#: Base units of work that stages do before it is acknowledged (`docs/protocol.md` §9).
CREDIT_UNITS = 1000
#: Rows of it at least, however dear: what eight requests have under way.
LEAST_CREDIT_ROWS = 128
#: Of work that costs nothing.
UNBOUNDED_ROWS = 2**31 - 1
UNPAID_STATES = (JobState.OPEN, JobState.MATCHED, JobState.DELIVERED, JobState.DISPUTED)


class Split(msgspec.Struct, frozen=True):
    """In nano units: `locked == sum(pays) + matcher_fee + opening + protocol_fee + refund`."""

    locked: int
    gross: tuple[int, ...]
    pays: tuple[int, ...]
    matcher_fee: int  # without what the matcher is paid for opening
    opening: int
    protocol_fee: int
    withheld: int  # gross of the stages at fault, which is part of the refund

    @property
    def refund(self) -> int:
        """What goes back to the requester."""
        return self.locked - self.paid

    @property
    def paid(self) -> int:
        """What the requester pays in all."""
        return sum(self.gross) - self.withheld + self.opening


def model_units(shape: Mapping[str, Any]) -> int:
    """Layer units of a model, by its fields as `ModelRegistry.shapeOf` and JSON name them."""
    return int(shape["layers"]) + int(shape["embedUnits"]) + int(shape["headUnits"])


def stage_units(stage: Stage, model: ModelSpec) -> int:
    """Layer units a stage is paid for: its layers, at the ends the embedding's or head's too."""
    units = stage.layer_to - stage.layer_from
    if stage.layer_from == 0:
        units += model.embed_units
    if stage.layer_to == model.layers:
        units += model.head_units
    return units


def cost_nano(units: int, tokens_in: int, tokens_out: int, price_in: int, price_out: int) -> int:
    """units·(tokensIn·priceIn + tokensOut·priceOut), exactly, in nano units."""
    return units * (tokens_in * price_in + tokens_out * price_out)


def cost(units: int, tokens_in: int, tokens_out: int, price_in: int, price_out: int) -> int:
    """As `cost_nano`, in whole base units that cover it."""
    return covering_units(cost_nano(units, tokens_in, tokens_out, price_in, price_out))


def max_nano(order: Order, model: ModelSpec) -> int:
    """What opening the job locks: its fee and every token the order allows, in nano units."""
    return _most_nano(order, model.layer_units)


def _most_nano(order: Order, units: int) -> int:
    tokens_in, tokens_out = order.max_tokens_in, order.max_tokens_out
    most = cost_nano(units, tokens_in, tokens_out, order.price_in, order.price_out)
    return most + opening_nano(order)


def opening_nano(order: Order) -> int:
    """What the matcher is paid for opening the job, whatever comes of it, in nano units."""
    return order.opening_fee * NANO


def max_amount(order: Order, model: ModelSpec) -> int:
    """As `max_nano`, in whole base units that cover it."""
    return covering_units(max_nano(order, model))


def credit_rows(order: Order, model: ModelSpec, credit_units: int = CREDIT_UNITS) -> int:
    """Rows that a job's stages do before the requester acknowledges tokens.

    What anyone can take without paying is worth this, or the gas of another order.
    """
    a_row = model.layer_units * max(order.price_in, order.price_out)
    rows = max(LEAST_CREDIT_ROWS, credit_units * NANO // a_row) if a_row else UNBOUNDED_ROWS
    return min(rows, UNBOUNDED_ROWS)


def locked_nano(order: Order, job: Mapping[str, Any]) -> int:
    """What a job has locked, by its `TaskRegistry.jobOf`, in nano units.

    All that opening it locked, until the job ends: zero of one that is over or not there.
    """
    if JobState(job["state"]) not in UNPAID_STATES:
        return 0
    return _most_nano(order, model_units(job))


def fees(gross: int, matcher_fee_bps: int, protocol_fee_bps: int) -> tuple[int, int]:
    """(matcher's, protocol's) of a stage's gross: their sum floored, the matcher's part floored.

    Promise: neither of them, nor what they leave, falls as the gross grows.
    """
    bps = matcher_fee_bps + protocol_fee_bps
    both = gross * bps // BPS
    to_matcher = both * matcher_fee_bps // bps if bps else 0
    return to_matcher, both - to_matcher


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
    """Settlement of a job with these counts, in nano units.

    Fees are floored per stage (`fees`) and come off the stage's gross. A stage at fault is paid
    nothing and charged no fee: its gross returns to the requester. Promise: nothing is created or
    lost, and refund ≥ 0 as long as the counts are within the caps.
    """
    gross, pays, matcher_fee, protocol_fee, withheld = [], [], 0, 0, 0
    for index, stage in enumerate(plan):
        units = stage_units(stage, model)
        total = cost_nano(units, tokens_in, tokens_out, order.price_in, order.price_out)
        gross.append(total)
        if index in at_fault:
            pays.append(0)
            withheld += total
            continue
        due = fees(total, order.matcher_fee_bps, protocol_fee_bps)
        matcher_fee += due[0]
        protocol_fee += due[1]
        pays.append(total - sum(due))
    return Split(
        locked=max_nano(order, model),
        gross=tuple(gross),
        pays=tuple(pays),
        matcher_fee=matcher_fee,
        opening=opening_nano(order),
        protocol_fee=protocol_fee,
        withheld=withheld,
    )
