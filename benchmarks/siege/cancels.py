"""What has a requester that cancels just before the end, and what do others notice of it?

It pays for nothing by its own will: it signs no acknowledgement. What stages did for it is
delivered from their receipts, and what is not is for free.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import ATTACKERS, GATEWAY, MINERS, Besieged, besieged
from benchmarks.siege.measuring import Attack
from benchmarks.siege.ordering import DEADLINE_S, Orders, orders_of, prompts
from benchmarks.table import Row
from core.money import pricing
from core.protocol import wire
from core.protocol.errors import HeadraceError
from core.protocol.network_file import USD
from core.protocol.types import JobState
from core.protocol.units import format_token
from tests.town.requester import ToStages

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack(
    "cancels",
    "cancelled just before the end, or streams dropped",
    (GATEWAY, *MINERS),
    paying="keep",
)
#: Jobs at once, the requests of each, the tokens of an answer, and how many of these it leaves. A
#: job's rows stay below the credit of 128, at which stages would wait for an acknowledgement.
AT_ONCE, REQUESTS, NEW_TOKENS, LEFT = 4, 2, 32, 2
#: What its own transactions cost: a token's approval, and what `contracts/snapshots` has.
APPROVE_GAS = 46_000
GAS_PRICE_GWEI, USD_PER_ETH = 0.01, 2_500
SNAPSHOT = Path("contracts/snapshots/Escrow.json")
DELIVERED_WITHIN_S = DEADLINE_S + 90.0


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    async with orders_of(target, ATTACKERS[0]) as orders:
        await begin()
        ways = ("cancelled", "dropped")
        await asyncio.gather(*(_again(orders, done, ways) for _ in range(AT_ONCE)))


async def keep(target: Target, done: Counter[str], begin: Begin) -> None:
    """Ask for as much, and let every answer end."""
    async with orders_of(target, ATTACKERS[1]) as orders:
        await begin()
        await asyncio.gather(*(_again(orders, done, ("whole",)) for _ in range(AT_ONCE)))


async def _again(orders: Orders, done: Counter[str], ways: Sequence[str]) -> None:
    for way in cycle(ways):
        try:
            await _one(orders, done, way)
        except (HeadraceError, TimeoutError) as error:
            done[f"{type(error).__name__}"] += 1
            await asyncio.sleep(0.2)


async def _one(orders: Orders, done: Counter[str], way: str) -> None:
    match, batch = await orders.open(prompts(REQUESTS, NEW_TOKENS))
    done["jobs"] += 1
    stages = ToStages.of(orders.identity, match, batch)
    try:
        await stages.open()
        await asyncio.gather(*(stages.submit(index) for index in range(REQUESTS)))
        wanted = NEW_TOKENS if way == "whole" else NEW_TOKENS - LEFT
        told = stages.tokens
        await stages.until(
            lambda: all(len(told.get(index, ())) >= wanted for index in range(REQUESTS)), 20.0
        )
        if way == "cancelled":
            for channel in stages.channels:
                for index in range(REQUESTS):
                    await channel.send(wire.Cancel(match.order_hash, index))
        done[way] += REQUESTS
    finally:
        tokens_out = sum(map(len, stages.tokens.values()))
        read = sum(len(batch.prompts[index].ids) for index in stages.tokens)
        done["units worth"] += orders.cost_units(match, read, tokens_out)
        await stages.close()


def rows() -> list[Row]:
    with besieged() as siege:
        seen = measuring.measure(ATTACK, SECONDS)
        paid_units, still_open = siege.loop.run(_paid_units(siege))
    return [*measuring.rows_of(ATTACK, seen), _free_work(seen.done, paid_units, still_open)]


async def _paid_units(siege: Besieged) -> tuple[int, int]:
    """What the attacker's jobs paid on chain, and how many of them did not end in time."""
    world = siege.world
    me = world.net.addresses[ATTACKERS[0]].lower()
    deadline = time.monotonic() + DELIVERED_WITHIN_S
    while True:
        jobs = [job for job in await world.jobs() if job.order.requester.lower() == me]
        still_open = sum(job.state in (JobState.OPEN, JobState.MATCHED) for job in jobs)
        if not still_open or time.monotonic() > deadline:
            break
        await asyncio.sleep(1.0)
    model = await world.chain.read("ModelRegistry", "specOf", world.net.model_id)
    units = pricing.model_units(model)
    paid = (
        pricing.cost(units, job.tokens_in, job.tokens_out, job.order.price_in, job.order.price_out)
        for job in jobs
    )
    return sum(paid), still_open


def _free_work(done: Counter[str], paid_units: int, still_open: int) -> Row:
    """What it was given and did not pay, against what its transactions cost."""
    worth, jobs = done["units worth"], done["jobs"]
    gas = APPROVE_GAS + int(json.loads(SNAPSHOT.read_text())["deposit, later"])
    gas_usd = gas * GAS_PRICE_GWEI * 1e-9 * USD_PER_ETH
    free = max(0, worth - paid_units)
    return Row(
        "free work: what was computed for a requester that cancels, and not paid",
        f"≤ {gas_usd:.4f} usd, the gas of its deposit",
        f"{format_token(free)} of {format_token(worth)} in {jobs} jobs; "
        f"{format_token(paid_units)} paid, {still_open} jobs not over",
        "",
        "0 usd",
        jobs > 0 and not still_open and free / USD <= gas_usd,
    )
