"""Does a look that many ask for happen once a second, and is what it finds never old?"""

from __future__ import annotations

import asyncio

import pytest

from core.runtime.sharing import SharedLook


class Source:
    """Counts its looks, on a clock that stands still until somebody sleeps."""

    def __init__(self) -> None:
        self.now_s, self.looks, self.fails = 0.0, list[float](), False

    async def look(self) -> int:
        self.looks.append(self.now_s)
        await asyncio.sleep(0)
        if self.fails:
            raise ValueError("away")
        return len(self.looks)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def shared(self) -> SharedLook[int]:
        return SharedLook(self.look, lambda: self.now_s, sleep=self.sleep)


async def test_all_who_ask_at_once_share_a_look() -> None:
    source = Source()
    shared = source.shared()
    assert await asyncio.gather(*(shared.fresh() for _ in range(200))) == [1] * 200
    assert source.looks == [0.0]


async def test_who_asks_later_waits_for_a_look_that_began_later() -> None:
    source = Source()
    shared = source.shared()
    assert await shared.fresh() == 1
    source.now_s = 0.25
    assert await asyncio.gather(*(shared.fresh() for _ in range(50))) == [2] * 50
    assert source.looks == [0.0, 1.0]
    source.now_s = 7.5
    assert await shared.fresh() == 3
    assert source.looks == [0.0, 1.0, 7.5]


async def test_a_look_that_fails_is_told_and_tried_again_no_faster() -> None:
    source = Source()
    shared = source.shared()
    source.fails = True
    for _ in range(3):
        with pytest.raises(ValueError, match="away"):
            await shared.fresh()
    assert source.looks == [0.0, 1.0, 2.0]
    source.fails = False
    assert await shared.fresh() == 4
