"""What do others notice of strangers that show a miner nodes of traces that nobody disputes?"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import MINER
from benchmarks.siege.measuring import Attack
from benchmarks.siege.strangers import again, call_all
from benchmarks.table import Row
from core.protocol import wire
from core.runtime.network.channel import Channel

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("shown", "a flood of ShowNode", (MINER,))
AT_ONCE, STREAMS, SHOWN_BYTES = 64, 8, 1024


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    async def turn(channel: Channel) -> None:
        asks = [
            (wire.ShowNode("0x" + os.urandom(32).hex(), 1, number), bytes(SHOWN_BYTES))
            for number in range(AT_ONCE)
        ]
        await call_all(channel, asks, done)

    await begin()
    await asyncio.gather(*(again(target, target.miners[0], done, turn) for _ in range(STREAMS)))


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
