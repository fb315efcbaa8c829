"""What leaves a first stage together, and when."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from core.batching.step import RequestStep
from core.batching.tickets import Tickets
from tests.core.batching.microbatches import microbatches


def step(request: int, at: int = 1) -> RequestStep:
    return RequestStep(request, at, at + 1, job=request % 3)


def filled(count: int, tickets: int | None, rows: int) -> Tickets[RequestStep]:
    ring: Tickets[RequestStep] = Tickets(tickets, rows)
    for request in range(count):
        ring.join(request)
        ring.add(step(request))
    return ring


def later_stage(*sizes: int) -> Tickets[RequestStep]:
    """No tickets, and microbatches of so many steps that wait."""
    ring: Tickets[RequestStep] = Tickets()
    for waiting in microbatches(*sizes):
        ring.join(waiting.request)
        ring.add(waiting)
    return ring


def names(steps: list[RequestStep]) -> list[int]:
    return [s.request for s in steps]  # type: ignore[misc]


def test_nothing_leaves_while_all_tickets_are_out() -> None:
    ring = filled(6, tickets=2, rows=2)
    assert names(ring.leave(99)) == [0, 1]
    assert names(ring.leave(99)) == [2, 3]
    assert (ring.leave(99), ring.flying, len(ring)) == ([], 2, 2)


def test_a_ticket_is_home_when_each_of_its_requests_is_ready_again_or_over() -> None:
    ring = filled(4, tickets=1, rows=4)
    assert names(ring.leave(99)) == [0, 1, 2, 3]
    ring.add(step(0, 2))
    ring.add(step(1, 2))
    assert ring.leave(99) == []
    ring.drop(2)
    assert ring.leave(99) == []
    ring.land(3)
    assert names(ring.leave(99)) == [0, 1]


def test_sizes_even_out_after_one_round() -> None:
    """Eight are on their way, three join them: of two tickets neither stays much larger than the
    other.
    """
    ring = filled(8, tickets=2, rows=8)
    away = [ring.leave(8)]
    for request in (8, 9, 10):
        ring.join(request)
        ring.add(step(request))
    ring.rows = 6
    away.append(ring.leave(6))
    for round_ in range(2, 8):
        home = away.pop(0)
        for s in home:
            ring.add(step(s.request, round_))  # type: ignore[arg-type]
        away.append(ring.leave(6))
    assert sorted(len(ticket) for ticket in away) == [5, 6]


def test_without_tickets_everything_leaves_that_fits() -> None:
    ring = filled(6, tickets=None, rows=4)
    assert names(ring.leave(99)) == [0, 1, 2, 3]
    assert names(ring.leave(1)) == [4]
    assert ring.flying == 0


def test_a_microbatch_larger_than_a_batch_leaves_in_several() -> None:
    ring = later_stage(3)
    assert ring.leave(2, 7, lambda *_: True) == [], (
        "others leave already, and it does not fit beside them"
    )
    assert len(ring.leave(2, 0, lambda *_: False)) == 2
    assert len(ring.leave(2, 0, lambda *_: False)) == 1


@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 12), st.randoms())
def test_microbatches_leave_once_and_in_order(sizes: list[int], room: int, random: Random) -> None:
    ring = later_stage(*sizes)
    left = list[list[int]]()
    while len(ring):
        batch = ring.leave(room, 0, lambda *_: random.random() < 0.5)
        assert 0 < len(batch) <= room
        left.append(names(batch))
    flat = [request for batch in left for request in batch]
    assert sorted(flat) == list(range(sum(sizes)))
    if all(size <= room for size in sizes):
        assert flat == sorted(flat)
        ends, at = set(), 0
        for size in sizes:
            at += size
            ends.add(at)
        assert all(batch[-1] + 1 in ends for batch in left)


def test_a_withdrawn_request_may_come_again() -> None:
    ring = filled(2, tickets=1, rows=2)
    assert ring.withdraw(0) == 1
    assert names(ring.leave(2)) == [1]
    ring.add(step(0, 5))
    assert ring.leave(2) == []
    ring.add(step(1, 2))
    assert names(ring.leave(2)) == [0, 1]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_step_leaves_once_and_never_more_tickets_than_allowed(data: st.DataObject) -> None:
    ring: Tickets[RequestStep] = Tickets(1, 1)
    waiting: set[int] = set()
    away: list[int] = []
    position: Counter[int] = Counter()
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["join", "home", "drop", "leave", "tune"])):
            case "join":
                new = len(position)
                position[new] = 1
                ring.join(new)
                ring.add(step(new))
                waiting.add(new)
            case "home" if away:
                request = away.pop(data.draw(st.integers(0, len(away) - 1)))
                position[request] += 1
                ring.add(step(request, position[request]))
                waiting.add(request)
            case "drop" if ring.members:
                request = data.draw(st.sampled_from(sorted(ring.members)))  # type: ignore[type-var]
                assert ring.drop(request) == (request in waiting)
                waiting.discard(request)  # type: ignore[arg-type]
                away = [r for r in away if r != request]
            case "leave":
                was_full = ring.tickets is not None and ring.flying >= ring.tickets
                left = names(ring.leave(data.draw(st.integers(0, 9))))
                assert not (left and was_full)
                assert len(left) <= ring.rows
                assert set(left) <= waiting
                assert len(set(left)) == len(left)
                waiting -= set(left)
                away += left
            case "tune":
                ring.tickets = data.draw(st.integers(1, 5))
                ring.rows = data.draw(st.integers(1, 6))
        assert len(ring) == len(waiting)
        assert (ring.flying == 0) == (not away)
