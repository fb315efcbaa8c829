"""What do others notice of strangers that send the largest frames, in 64 calls at once?"""

from __future__ import annotations

import asyncio
from collections import Counter

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import MINERS
from benchmarks.siege.measuring import Attack
from benchmarks.siege.strangers import again, call_all
from benchmarks.table import Row
from core.protocol import wire
from core.runtime.network.channel import STRANGER_FRAME_BYTES, Channel

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("frames", "the largest frames, in 64 calls at once", MINERS)
AT_ONCE, STREAMS = 64, 12
#: What a stranger may send, and what nobody may but those who are party to something.
SMALL, LARGE = bytes(STRANGER_FRAME_BYTES - 1024), bytes(wire.MAX_FRAME_BYTES - 1024)


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    async def turn(channel: Channel) -> None:
        await call_all(channel, [(wire.Ping(), SMALL)] * AT_ONCE, done)
        await call_all(channel, [(wire.Ping(), LARGE)] * AT_ONCE, done)

    await begin()
    miners = [target.miners[number % len(target.miners)] for number in range(STREAMS)]
    await asyncio.gather(*(again(target, miner, done, turn) for miner in miners))


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
