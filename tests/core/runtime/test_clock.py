"""Does the manual clock wake sleepers in order, each at its own time?"""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from core.runtime.clock import Clock, SystemClock
from tests.clocks import ManualClock


@given(st.lists(st.integers(1, 50), max_size=8))
def test_sleepers_wake_in_the_order_of_their_times(delays):
    async def scenario():
        clock, woken = ManualClock(), []

        async def sleeper(delay):
            await clock.sleep(delay)
            woken.append((delay, clock.monotonic()))

        async with asyncio.TaskGroup() as group:
            for delay in delays:
                group.create_task(sleeper(delay))
            await clock.advance(50)
        return woken

    woken = asyncio.run(scenario())
    assert [delay for delay, _ in woken] == sorted(delays)
    assert all(delay == at for delay, at in woken)


async def test_a_loop_that_sleeps_again_is_woken_again():
    clock, ticks = ManualClock(now=100.0), []

    async def loop():
        while True:
            await clock.sleep(1)
            ticks.append(clock.now())

    task = asyncio.create_task(loop())
    await clock.advance(3.5)
    assert ticks == [101.0, 102.0, 103.0]
    assert clock.sleepers == 1
    task.cancel()


async def test_a_cancelled_sleeper_is_forgotten():
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(2)
    assert clock.sleepers == 0


async def test_the_system_clock_moves_on():
    clock: Clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.now() > 1_600_000_000
