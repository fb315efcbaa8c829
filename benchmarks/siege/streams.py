"""What do others notice of 300 streams of one key to a miner, and of hundreds of throwaway keys?"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import MINER
from benchmarks.siege.measuring import Attack
from benchmarks.siege.strangers import dial, throwaway
from benchmarks.table import Row
from core.protocol.errors import HeadraceError
from core.runtime.network.channel import Channel, StreamIdentity

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("streams", "hundreds of streams to a miner", (MINER,))
OF_ONE_KEY, HELD, DIALLING = 300, 600, 16
FROM = "127.0.0.2"


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    _come_from(FROM)
    held: deque[Channel] = deque()
    greedy = throwaway(target)
    left = iter([greedy] * OF_ONE_KEY)
    await begin()

    async def dial_on() -> None:
        while True:
            await _hold(next(left, None) or throwaway(target), target, held, done)

    await asyncio.gather(*(dial_on() for _ in range(DIALLING)))


def _come_from(address: str) -> None:
    """Dial from an address of its own, as others' machines do."""
    dial_plainly = asyncio.open_connection

    async def dial_from(host: str, port: int, **more: Any) -> Any:
        return await dial_plainly(host, port, local_addr=(address, 0), **more)

    asyncio.open_connection = dial_from  # type: ignore[assignment]


async def _hold(
    identity: StreamIdentity, target: Target, held: deque[Channel], done: Counter[str]
) -> None:
    """One stream more, in the place of the oldest where there are too many."""
    try:
        held.append(await dial(identity, target.miners[0]))
        done["streams"] += 1
    except HeadraceError as error:
        done[type(error).__name__] += 1
    if len(held) > HELD:
        await held.popleft().close()


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
