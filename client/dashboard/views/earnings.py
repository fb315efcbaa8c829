"""What did a miner's owner earn, by day and by job, and from which rate on does a machine pay?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from client.dashboard.sources.chain_log import LoggedEvent
from client.gateway.copied import copied
from core.money.break_even import (
    Earning,
    HourlyCost,
    break_even_tokens_per_s,
    profit_units_per_hour,
)
from core.protocol.types import JobState

#: DeServe's machines: dollars an hour at 0.90 usd/Mtok, and the tokens/s from which they pay.
PAPER_COSTS_CENTS = (35, 369, 552, 1388)
PAPER_PRICE_CENTS = 90


@dataclass(frozen=True)
class Payout:
    """One job that this owner's machines served."""

    job_id: str
    state: str
    paid_units: int
    at_s: int | None
    block: int
    tx: str


@dataclass(frozen=True)
class Day:
    """What was paid on a day (UTC)."""

    day: str
    paid_units: int
    jobs: int


@dataclass(frozen=True)
class EarningsPage:
    """The page of one owner; empty without one."""

    owner: str
    operator: str
    credit_units: int | None
    stake_units: int | None
    leaving_units: int
    paid_units: int
    slashed_units: int
    counts: dict[str, int]
    days: tuple[Day, ...]
    payouts: tuple[Payout, ...]
    slashes: tuple[LoggedEvent, ...]
    next_before: int | None
    at_ms: int
    problem: str


@dataclass(frozen=True)
class BreakEven:
    """The calculator's answer."""

    cost_units_per_hour: int
    price_units_per_mtok: int
    tokens_per_s: float | None
    profit_units_per_day: int | None
    measured_tokens_per_s: float | None


@dataclass(frozen=True)
class DeServeRow:
    """A row of DeServe's table."""

    cost_units_per_hour: int
    tokens_per_s: int


def payout(matched: LoggedEvent, state: int, income: Mapping[str, int]) -> Payout:
    """A job from the event that matched it, its state now, and what it brought the owner."""
    job_id = str(matched.args["job"])
    paid_units, named = income.get(job_id.lower(), 0), JobState(state).name.lower()
    return copied(Payout, matched, job_id=job_id, state=named, paid_units=paid_units)


def counts(payouts: Iterable[Payout]) -> dict[str, int]:
    """Jobs by state: worked on, waiting for their window, disputed, paid, and the rest."""
    found = {"matched": 0, "delivered": 0, "disputed": 0, "settled": 0, "other": 0}
    for one in payouts:
        found[one.state if one.state in found else "other"] += 1
    return found


def days(rows: Iterable[tuple[str, int, int]]) -> tuple[Day, ...]:
    return tuple(Day(day, paid, jobs) for day, paid, jobs in rows)


def break_even(
    cost: HourlyCost, earning: Earning, tokens_per_s: float | None, utilisation: float
) -> BreakEven:
    """From values that a person typed."""
    rate = break_even_tokens_per_s(cost, earning)
    profit = None
    if tokens_per_s is not None:
        hourly = profit_units_per_hour(
            cost, earning, Fraction(tokens_per_s), Fraction(utilisation).limit_denominator(10_000)
        )
        profit = int(hourly * 24)
    return BreakEven(
        cost_units_per_hour=int(cost.units_per_hour),
        price_units_per_mtok=earning.price_out,
        tokens_per_s=None if rate is None else float(rate),
        profit_units_per_day=profit,
        measured_tokens_per_s=tokens_per_s,
    )


def paper_table(units_per_token: int) -> tuple[DeServeRow, ...]:
    """DeServe's own four rows, computed; `units_per_token` are the base units of one usd."""
    earning = Earning(0, PAPER_PRICE_CENTS * units_per_token // 100)
    rows = []
    for cents in PAPER_COSTS_CENTS:
        cost = HourlyCost(cents * units_per_token // 100)
        rate = break_even_tokens_per_s(cost, earning)
        rows.append(DeServeRow(int(cost.units_per_hour), round(rate or 0)))
    return tuple(rows)
