"""What the network did day by day, and how its machines did beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from client.dashboard.sources.cached import Dated
from client.dashboard.sources.history import History, NetworkDay
from client.dashboard.views.common import Json, by_operator, condition

#: Ranges of days that the page offers, and the one that it opens with.
RANGES, RANGE = (7, 30, 90), 30


@dataclass(frozen=True)
class LeagueLine:
    """One machine's place: what jobs paid it in these days, and how much of the time it served."""

    operator: str
    model: str
    condition: str
    jobs: int
    paid_units: int
    share: float  # of what all machines were paid
    uptime: float | None


@dataclass(frozen=True)
class NetworkTotals:
    """Sums over the days; what is staked is at their end."""

    jobs: int
    tokens_in: int
    tokens_out: int
    paid_units: int
    fee_units: int
    slashed_units: int
    staked_units: int


@dataclass(frozen=True)
class HistoryPage:
    """The page."""

    range_days: int
    ranges: tuple[int, ...]
    totals: NetworkTotals
    days: tuple[NetworkDay, ...]
    league: tuple[LeagueLine, ...]
    at_ms: int
    problem: str


def range_of(typed: str) -> int:
    """The range that an address asks for; the usual one where it asks for none of ours."""
    return next((days for days in RANGES if typed == str(days)), RANGE)


def history_page(
    found: History,
    miners: Dated[list[Json]],
    uptimes: Mapping[str, float],
    name_of: Callable[[str], str],
    range_days: int,
    at_ms: int,
    problem: str,
) -> HistoryPage:
    return HistoryPage(
        range_days=range_days,
        ranges=RANGES,
        totals=_totals(found.days),
        days=found.days,
        league=_league(found, miners.value or [], uptimes, name_of),
        at_ms=at_ms,
        problem=problem,
    )


def _totals(days: tuple[NetworkDay, ...]) -> NetworkTotals:
    return NetworkTotals(
        jobs=sum(day.jobs for day in days),
        tokens_in=sum(day.tokens_in for day in days),
        tokens_out=sum(day.tokens_out for day in days),
        paid_units=sum(day.paid_units for day in days),
        fee_units=sum(day.fee_units for day in days),
        slashed_units=sum(day.slashed_units for day in days),
        staked_units=days[-1].staked_units if days else 0,
    )


def _league(
    found: History,
    miners: Iterable[Json],
    uptimes: Mapping[str, float],
    name_of: Callable[[str], str],
) -> tuple[LeagueLine, ...]:
    """Whom jobs paid, the best paid first, then machines that are there and were paid nothing."""
    known, seen = by_operator(miners), {one.lower(): share for one, share in uptimes.items()}
    paid = {one.operator.lower(): one for one in found.earners}
    total = sum(one.paid_units for one in found.earners)
    lines = []
    for key in dict.fromkeys([*paid, *known]):
        miner, earner = known.get(key), paid.get(key)
        units = earner.paid_units if earner else 0
        model_id = str((miner or {}).get("modelId") or "")
        lines.append(
            LeagueLine(
                operator=earner.operator if earner else str(known[key]["operator"]),
                model=name_of(model_id) if model_id else "",
                condition=condition(miner) if miner else "gone",
                jobs=earner.jobs if earner else 0,
                paid_units=units,
                share=units / total if total else 0.0,
                uptime=seen.get(key),
            )
        )
    return tuple(lines)
