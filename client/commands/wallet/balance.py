"""`client balance`: what does a wallet hold, what do its jobs lock, and how long does it last?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing

from client.context import Context, open_context, open_store
from client.pipeline.on_chain import job_with_plan
from client.records.store import ClientStore, JobRow, match_of
from client.wallet import balances
from core.money import pricing
from core.protocol import ids
from core.protocol.types import Order
from core.protocol.units import covering_units, show_eth
from core.runtime.clock import SystemClock
from core.runtime.commands.results import Result
from core.runtime.settings import Settings

DAY_S, WEEK_DAYS = 86_400, 7
#: States of our records in which a job may still hold money.
UNFINISHED = ("open", "unacknowledged")
MOST_LOCKS = 100


class Balance(Result, frozen=True):
    """`balance` and `wallet show`."""

    address: str
    wallet: str
    prepaid: str
    locked: str
    locked_by: list[str]
    spendable: str
    lasts: str
    leaving: str
    credit: str
    gas: str


async def holdings(settings: Settings, address: str) -> Balance:
    """Everything in one table; locked and spent counts jobs that this machine opened."""
    now_s, show = int(SystemClock().now()), settings.show_token
    ours = _jobs_of(settings, address)
    async with open_context(settings) as context:
        found = await balances(context.chain, address)
        locks = await _locks(context, [row for row, _ in ours if row.state in UNFINISHED])
        spent = await _spent(
            context, [one for one in ours if one[0].created_at > now_s - WEEK_DAYS * DAY_S]
        )
    spendable, per_day = found.wallet + found.deposited, per_day_spent(spent)
    return Balance(
        address=address,
        wallet=show(found.wallet),
        prepaid=show(found.deposited),
        locked=show(sum(locks.values())),
        locked_by=[f"{ids.short(ids.Kind.JOB, job)} {show(units)}" for job, units in locks.items()],
        spendable=show(spendable),
        lasts=lasts(spendable, per_day, f"{show(per_day)} a day"),
        leaving=show(found.thawing),
        credit=show(found.credit) + (", take it by `auditor withdraw`" if found.credit else ""),
        gas=show_eth(found.gas_wei),
    )


def per_day_spent(spent: Iterable[tuple[int, int]]) -> int:
    """Mean of the days with any spending, rounded up, of (seconds since 1970, base units)."""
    days: dict[int, int] = {}
    for at_s, cost in spent:
        days[at_s // DAY_S] = days.get(at_s // DAY_S, 0) + cost
    costs = [cost for cost in days.values() if cost]
    return -(-sum(costs) // len(costs)) if costs else 0


def lasts(spendable: int, per_day: int, pace: str) -> str:
    """How long this much lasts, in words, such as `about 9 days at 0.4usd a day`."""
    if not per_day:
        return f"nothing was spent in the last {WEEK_DAYS} days"
    hours = spendable * 24 // per_day
    if hours < 1:
        return f"less than an hour at {pace}"
    many, unit = (hours // 24, "days") if hours >= 48 else (hours, "hours" if hours > 1 else "hour")
    return f"about {many:,} {unit} at {pace}"


def _jobs_of(settings: Settings, address: str) -> list[tuple[JobRow, tuple[int, int]]]:
    """This wallet's jobs, newest first, each with its delivered tokens in and out."""
    with closing(open_store(settings)) as store:
        rows = [row for row in store.jobs() if _order(row).requester.lower() == address.lower()]
        return [(row, _delivered(store, row)) for row in rows]


def _order(row: JobRow) -> Order:
    return match_of(row).signed.order


def _delivered(store: ClientStore, row: JobRow) -> tuple[int, int]:
    ended = [request for request in store.requests(row.job_id) if request.finish]
    tokens_in = sum(len(json.loads(request.prompt_ids)) for request in ended)
    return tokens_in, sum(len(json.loads(request.tokens)) for request in ended)


async def _locks(context: Context, rows: list[JobRow]) -> dict[str, int]:
    """What each of these jobs still locks, where it locks anything."""
    found = {
        row.job_id: covering_units((await job_with_plan(context.chain, match_of(row))).locked_nano)
        for row in rows[:MOST_LOCKS]
    }
    return {job: units for job, units in found.items() if units}


async def _spent(
    context: Context, jobs: list[tuple[JobRow, tuple[int, int]]]
) -> list[tuple[int, int]]:
    """When each job was opened, and what it and the tokens that it delivered cost."""
    units_of: dict[str, int] = {}
    spent = []
    for row, (tokens_in, tokens_out) in jobs:
        order = _order(row)
        if order.model_id not in units_of:
            shape = await context.chain.read("ModelRegistry", "shapeOf", order.model_id)
            units_of[order.model_id] = pricing.model_units(shape)
        units = units_of[order.model_id]
        cost = pricing.cost(units, tokens_in, tokens_out, order.price_in, order.price_out)
        spent.append((row.created_at, cost + order.opening_fee))
    return spent
