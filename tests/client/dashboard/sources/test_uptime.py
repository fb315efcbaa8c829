"""Is the time that something was there counted by looks, and only by those that were answered?"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.dashboard.sources.uptime import KEPT_HOURS, LOOK_EVERY_S, Uptime
from tests.clocks import ManualClock

NOW_S = 1_700_000_000.0


class Seen:
    """What a matcher says next; None: it says nothing."""

    def __init__(self) -> None:
        self.there: list[str] | None = []

    async def __call__(self) -> list[str] | None:
        return self.there


async def look(uptime: Uptime, seen: Seen, *answers: list[str] | None) -> None:
    for there in answers:
        seen.there = there
        await uptime.step()


async def test_a_share_is_of_the_looks_since_the_first_that_saw_it(tmp_path: Path) -> None:
    clock, seen = ManualClock(NOW_S), Seen()
    uptime = Uptime(tmp_path / "seen.sqlite", seen, clock)
    await look(uptime, seen, ["a"], ["a"], ["a"], [])
    await clock.advance(3600)
    await look(uptime, seen, ["a", "b"], ["a", "b"])
    assert await uptime.shares(1) == {"a": pytest.approx(5 / 6), "b": 1.0}
    await uptime.close()


async def test_no_answer_is_no_look(tmp_path: Path) -> None:
    seen = Seen()
    uptime = Uptime(tmp_path / "seen.sqlite", seen, ManualClock(NOW_S))
    await look(uptime, seen, ["a"], None, None)
    assert await uptime.shares(1) == {"a": 1.0}
    await uptime.close()


async def test_counts_outlive_a_restart_and_old_ones_go(tmp_path: Path) -> None:
    clock, seen = ManualClock(NOW_S), Seen()
    uptime = Uptime(tmp_path / "seen.sqlite", seen, clock)
    await look(uptime, seen, ["old"])
    await uptime.close()
    await clock.advance(86_400 * 10)
    again = Uptime(tmp_path / "seen.sqlite", seen, clock)
    await look(again, seen, ["new"])
    assert await again.shares(1) == {"new": 1.0}
    assert await again.shares(30) == {"old": 0.5, "new": 1.0}
    await clock.advance((KEPT_HOURS + 1) * 3600)
    await look(again, seen, ["new"])
    assert "old" not in await again.shares(365)
    await again.close()


async def test_it_looks_again_and_again(tmp_path: Path) -> None:
    clock, seen = ManualClock(NOW_S), Seen()
    uptime = Uptime(tmp_path / "seen.sqlite", seen, clock)
    seen.there = ["a"]
    task = asyncio.create_task(uptime.run())
    async with asyncio.timeout(10):
        while not await uptime.shares(1):
            await asyncio.sleep(0.01)
    seen.there = []
    async with asyncio.timeout(10):
        while (await uptime.shares(1))["a"] == 1.0:
            await clock.advance(LOOK_EVERY_S)
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await uptime.close()
