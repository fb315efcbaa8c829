"""What do others notice of orders that are matched and never opened, of several wallets?

Those whose sessions are open need no place; a newcomer does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target, actor
from benchmarks.siege.besieged import ATTACKERS, GATEWAY, MATCHER, MINERS, NEWCOMER, Besieged
from benchmarks.siege.measuring import Attack
from benchmarks.siege.ordering import Orders, orders_of, prompts
from benchmarks.table import Row
from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from core.protocol.errors import HeadraceError
from tests.town.requester import ToStages

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("unopened", "orders that nobody opens", (MATCHER, GATEWAY, *MINERS))
AT_ONCE, REQUESTS, NEW_TOKENS = 4, 8, 32
#: Between a newcomer's orders, and how long it waits for an answer.
NEWCOMER_S, ANSWER_S = 2.0, 20.0


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    async with AsyncExitStack() as stack:
        wallets = [await stack.enter_async_context(orders_of(target, one)) for one in ATTACKERS]
        await begin()
        await asyncio.gather(*(_again(one, done) for one in wallets * AT_ONCE))


async def _again(orders: Orders, done: Counter[str]) -> None:
    while True:
        try:
            await orders.open(prompts(REQUESTS, NEW_TOKENS))
            done["matched"] += 1
        except HeadraceError as error:
            done[f"refused: {error.api_code}"] += 1
            await asyncio.sleep(0.2)


async def order(target: Target, done: Counter[str], begin: Begin) -> None:
    """Order as an honest newcomer does, one thing after the other, and have it answered."""
    async with orders_of(target, NEWCOMER) as orders:
        await begin()
        while True:
            try:
                match, batch = await orders.open(prompts(1, NEW_TOKENS))
                await _whole(orders, match, batch)
                done["answered"] += 1
            except (HeadraceError, TimeoutError) as error:
                done[f"refused: {getattr(error, 'api_code', 'timeout')}"] += 1
            done["orders"] += 1
            await asyncio.sleep(NEWCOMER_S)


async def _whole(orders: Orders, match: Match, batch: PromptBatch) -> None:
    """Wait for every token of the one request."""
    stages = ToStages.of(orders.identity, match, batch)
    try:
        await stages.open()
        await stages.submit(0)
        await stages.until(lambda: len(stages.tokens.get(0, ())) == NEW_TOKENS, ANSWER_S)
    finally:
        await stages.close()


async def _newcomer(siege: Besieged, target: Target) -> Counter[str]:
    async with actor("unopened", target, siege.world.net.layout.logs, "order") as asking:
        await asking.begin()
        await asyncio.sleep(SECONDS)
        await asking.end()
        return asking.done


def rows() -> list[Row]:
    seen = measuring.measure(ATTACK, SECONDS, _newcomer)
    found = seen.beside
    return [
        *measuring.rows_of(ATTACK, seen),
        Row(
            f"{ATTACK.title}: a newcomer's orders that are answered",
            "all",
            _told(found),
            f"{_told(seen.beside_idle)} beside an idle one",
            "all",
            found["orders"] > 0 and found["answered"] == found["orders"],
        ),
    ]


def _told(found: Counter[str]) -> str:
    others = found - Counter({name: found[name] for name in ("orders", "answered")})
    why = "".join(f", {count} {name}" for name, count in sorted(others.items()))
    return f"{found['answered']} of {found['orders']}{why}"
