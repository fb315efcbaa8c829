"""What do others notice of ten thousand forged records a minute, and whom does a newcomer find?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target, actor
from benchmarks.siege.besieged import MATCHER, MINERS, Besieged
from benchmarks.siege.measuring import Attack
from benchmarks.table import Row
from core.protocol import records
from core.protocol.records import SwarmCheck
from core.runtime.network.transport import Swarm
from tests.siege.forging import forge_records

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("records", "forged records, 10,000 a minute", (MATCHER, *MINERS))
FOUND_WITHIN_S = 3.0
GIVES_UP_S = 30.0


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    import hivemind.dht.node  # noqa: F401  (before it begins)

    await begin()
    await forge_records(
        target.bootstrap,
        target.domain,
        lambda: None,
        lambda count: done.update({"records": count}),
    )


async def join(target: Target, done: Counter[str], begin: Begin) -> None:
    """Join the swarm as an honest peer, and look until everybody is found."""
    operators = {operator.lower() for operator, _ in target.miners}
    swarm = Swarm.start("127.0.0.1", 0, target.bootstrap, check=SwarmCheck(target.domain))
    try:
        await swarm.admit(operators)
        await begin()
        began = time.monotonic()
        while time.monotonic() < began + GIVES_UP_S:
            found = await swarm.lookup(*records.miners_topics(target.domain))
            done["miners"] = len(operators & set(found))
            done["milliseconds"] = int((time.monotonic() - began) * 1000)
            if done["miners"] == len(operators):
                return
            await asyncio.sleep(0.05)
    finally:
        swarm.close()


async def _newcomer(siege: Besieged, target: Target) -> Counter[str]:
    async with actor("records", target, siege.world.net.layout.logs, "join") as looking:
        await looking.begin()
        await looking.finished()
        return looking.done


def rows() -> list[Row]:
    seen = measuring.measure(ATTACK, SECONDS, _newcomer)
    took_s = seen.beside["milliseconds"] / 1000
    return [
        *measuring.rows_of(ATTACK, seen),
        Row(
            f"{ATTACK.title}: an honest newcomer finds every miner",
            f"≤ {FOUND_WITHIN_S:g} s",
            f"{took_s:.2f} s, {seen.beside['miners']} of {len(MINERS)}",
            f"{seen.beside_idle['milliseconds'] / 1000:.2f} s beside an idle one",
            "0 s",
            seen.beside["miners"] == len(MINERS) and took_s <= FOUND_WITHIN_S,
        ),
    ]
