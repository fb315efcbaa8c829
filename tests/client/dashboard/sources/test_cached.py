"""Is another program's value asked for once at a time, kept with its age, and not waited for?"""

from __future__ import annotations

import asyncio

from client.dashboard.sources.cached import Cached
from core.protocol.errors import MatcherUnreachable
from tests.clocks import ManualClock


async def test_a_value_is_read_once_while_it_is_fresh_and_says_when() -> None:
    clock, asked = ManualClock(1000.0), list[int]()

    async def fetch() -> int:
        asked.append(1)
        return len(asked)

    cached = Cached(fetch, clock, fresh_s=2.0)
    first, second = await asyncio.gather(cached.get(), cached.get())
    assert (first.value, second.value, first.at_ms, first.problem) == (1, 1, 1_000_000, "")
    await clock.advance(3.0)
    later = await cached.get()
    assert (later.value, later.at_ms) == (2, 1_003_000)
    assert (await cached.get()).value == 2


async def test_a_failure_keeps_the_old_value_with_its_old_age() -> None:
    clock, fails = ManualClock(1000.0), [False]

    async def fetch() -> str:
        if fails[0]:
            raise MatcherUnreachable("no answer", "refused")
        return "known"

    cached = Cached(fetch, clock, fresh_s=1.0)
    await cached.get()
    fails[0] = True
    await clock.advance(5.0)
    found = await cached.get()
    assert (found.value, found.at_ms, found.problem) == ("known", 1_000_000, "no answer: refused")


async def test_a_slow_owner_does_not_hold_up_who_has_an_older_value() -> None:
    clock, gate, asked = ManualClock(1000.0), asyncio.Event(), list[int]()

    async def fetch() -> int:
        asked.append(1)
        if len(asked) > 1:
            await gate.wait()
        return len(asked)

    cached = Cached(fetch, clock, fresh_s=1.0, patience_s=0.01)
    assert (await cached.get()).value == 1
    await clock.advance(2.0)
    assert (await cached.get()).value == 1
    assert (await cached.get()).value == 1 and len(asked) == 2
    gate.set()
    await asyncio.sleep(0.02)
    assert (await cached.get()).value == 2
    await cached.close()


async def test_a_first_reader_gets_an_empty_answer_rather_than_none_at_all() -> None:
    cached = Cached(asyncio.Event().wait, ManualClock(), first_patience_s=0.01)
    found = await cached.get()
    assert (found.value, found.problem) == (None, "not read yet")
    await cached.close()
