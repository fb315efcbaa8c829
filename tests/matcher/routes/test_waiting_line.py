"""Who waits is called in order, one at a time, and nobody waits past their time."""

from __future__ import annotations

import asyncio

from matcher.routes.waiting_line import WaitingLine
from scheduler.routing.reservations import Need, Reservations
from tests.clocks import ManualClock

ANY = frozenset({"a", "b"})


async def stand(
    line: WaitingLine, name: str, clock: ManualClock, among: frozenset[str] = ANY, s: int = 60
):
    before = len(line)
    task = asyncio.create_task(line.turn(name, among, clock.now() + s, clock))
    while len(line) == before and not task.done():
        await asyncio.sleep(0)
    return task


def full() -> tuple[Reservations, WaitingLine]:
    book = Reservations()
    for machine_id in "ab":
        book.announce(machine_id, 1)
        assert book.hold(f"on {machine_id}", {machine_id: Need(1)}, 0, 2**60)
    return book, WaitingLine(book)


async def test_room_calls_the_first_and_its_failure_the_next() -> None:
    (book, line), clock = full(), ManualClock()
    first, second = [await stand(line, name, clock) for name in ("first", "second")]
    book.release("on a", 1)
    line.wake()
    assert await first and not second.done()
    line.failed("first")  # what it needs is not there
    await asyncio.sleep(0)
    assert not second.done(), "nobody overtakes who still waits for the same machines"
    line.leave("first", 2)
    assert await second


async def test_those_who_want_other_machines_are_called_past_the_first() -> None:
    (book, line), clock = full(), ManualClock()
    wants_a = await stand(line, "x", clock, frozenset("a"))
    wants_b = await stand(line, "y", clock, frozenset("b"))
    book.release("on b", 1)
    line.wake()
    assert await wants_a
    line.failed("x")
    assert await wants_b


async def test_patience_ends_and_the_place_is_kept_until_it_is_left() -> None:
    (book, line), clock = full(), ManualClock()
    task = await stand(line, "x", clock, s=5)
    await clock.advance(4.9)
    assert not task.done()
    await clock.advance(0.2)
    assert not await task
    assert book.waiting() == ("x",)
    line.leave("x", 1)
    assert book.waiting() == () and len(line) == 0
    line.leave("x", 1)
    line.failed("x")


async def test_whoever_is_cancelled_stands_in_nobodys_way() -> None:
    (book, line), clock = full(), ManualClock()
    first, second = [await stand(line, name, clock) for name in ("first", "second")]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    line.leave("first", 1)
    book.release("on a", 2)
    line.wake()
    assert await second
