"""Turns at a pace: a burst, then one after the other, shared equally."""

from __future__ import annotations

import asyncio
from collections import Counter

from core.runtime.network.pace import FramePace


async def test_a_burst_is_had_at_once_and_then_turns_come_at_the_pace() -> None:
    pace, now_s = FramePace(50.0, 10), asyncio.get_running_loop().time
    began = now_s()
    for _ in range(10):
        await pace.turn()
    burst_s = now_s() - began
    for _ in range(10):
        await pace.turn()
    assert now_s() - began >= 10 / 50 > burst_s


async def test_who_asks_for_one_turn_after_the_other_gets_as_many_as_others() -> None:
    pace, had = FramePace(500.0, 1), Counter[str]()

    async def ask_on(name: str) -> None:
        while True:
            await pace.turn()
            had[name] += 1

    asking = [asyncio.create_task(ask_on(name)) for name in "ab"]
    while had.total() < 50:
        await asyncio.sleep(0.01)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    assert abs(had["a"] - had["b"]) <= 1
    await asyncio.wait_for(pace.turn(), 1)  # who left holds nobody up
