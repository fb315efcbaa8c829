"""What do others notice of orders that are matched and never opened, of several wallets?"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import ATTACKERS, GATEWAY, MATCHER, MINERS
from benchmarks.siege.measuring import Attack
from benchmarks.siege.ordering import Orders, orders_of, prompts
from benchmarks.table import Row
from core.protocol.errors import HeadraceError

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("unopened", "orders that nobody opens", (MATCHER, GATEWAY, *MINERS))
AT_ONCE, REQUESTS, NEW_TOKENS = 4, 8, 32


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


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
