"""The life of one request at one stage: which moves are possible, and that no other is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.protocol.errors import CheckFailed, ContextTooLong, PeerUnreachable
from miner import jobs
from miner.jobs import Request, RequestPhase

FIRST = Request(0, is_first=True, is_last=False, context=100)
MIDDLE = Request(0, is_first=False, is_last=False, context=100)
LAST = Request(0, is_first=False, is_last=True, context=100)
WHOLE = Request(0, is_first=True, is_last=True, context=100)


def some(request: Request | None) -> Request:
    assert request is not None
    return request


def test_a_first_stage_feeds_the_prompt_then_one_row_per_token() -> None:
    request = jobs.start(jobs.submit(FIRST, 5, 3))
    assert (request.phase, request.rows) == (RequestPhase.RUNNING, 5)
    request = some(jobs.token_arrives(request, 0, ""))
    request = some(jobs.token_arrives(request, 1, ""))
    assert request.rows == 7
    request = some(jobs.token_arrives(request, 2, "length"))
    assert request.rows == 7, "the last token is not fed back"
    assert some(jobs.end(request, 5, 3)).phase is RequestPhase.FINISHED


def test_a_last_stage_samples_after_the_prompt_and_after_every_row() -> None:
    request = some(jobs.rows_arrive(jobs.submit(LAST, 5, 3), 0, 5))
    for step in range(3):
        request = jobs.produce(request, is_eos=False)
        if step < 2:
            request = some(jobs.rows_arrive(request, 5 + step, 1))
    assert request.finish == "length"
    assert some(jobs.end(request, 5, 3)).phase is RequestPhase.FINISHED


def test_an_end_token_stops_before_the_limit_and_counts_as_produced() -> None:
    request = some(jobs.rows_arrive(jobs.submit(LAST, 5, 3), 0, 5))
    request = jobs.produce(request, is_eos=True)
    assert (request.finish, request.produced) == ("stop", 1)
    assert some(jobs.end(request, 5, 1)).phase is RequestPhase.FINISHED


def test_a_whole_model_is_first_and_last_at_once() -> None:
    request = jobs.start(jobs.submit(WHOLE, 2, 2))
    request = jobs.produce(request, is_eos=False)
    request = some(jobs.token_arrives(request, 0, request.finish))
    assert request.rows == 3
    request = jobs.produce(request, is_eos=False)
    request = some(jobs.token_arrives(request, 1, request.finish))
    assert request.finish == "length"
    assert some(jobs.end(request, 2, 2)).phase is RequestPhase.FINISHED


def test_rows_may_reach_a_last_stage_before_the_client_does() -> None:
    request = some(jobs.rows_arrive(LAST, 0, 5))
    assert jobs.submit(request, 5, 3).is_submitted
    with pytest.raises(CheckFailed, match="5 rows arrived for a prompt of 4"):
        jobs.submit(request, 4, 3)


@pytest.mark.parametrize(
    "move",
    [
        lambda: jobs.submit(MIDDLE, 5, 3),
        lambda: jobs.submit(jobs.submit(FIRST, 5, 3), 5, 3),
        lambda: jobs.submit(FIRST, 0, 3),
        lambda: jobs.submit(FIRST, 5, 0),
        lambda: jobs.start(FIRST),
        lambda: jobs.start(LAST),
        lambda: jobs.start(jobs.start(jobs.submit(FIRST, 5, 3))),
        lambda: jobs.rows_arrive(FIRST, 0, 1),
        lambda: jobs.rows_arrive(replace(MIDDLE, rows=3), 2, 2),
        lambda: jobs.rows_arrive(MIDDLE, 0, 101),
        lambda: jobs.rows_arrive(jobs.submit(LAST, 5, 3), 0, 6),
        lambda: jobs.produce(MIDDLE, is_eos=False),
        lambda: jobs.produce(jobs.submit(LAST, 5, 3), is_eos=False),
        lambda: jobs.produce(some(jobs.rows_arrive(jobs.submit(LAST, 5, 3), 0, 4)), is_eos=False),
        lambda: jobs.token_arrives(LAST, 0, ""),
        lambda: jobs.token_arrives(jobs.submit(FIRST, 5, 3), 0, ""),
        lambda: jobs.token_arrives(jobs.start(jobs.submit(FIRST, 5, 1)), 0, ""),
        lambda: jobs.end(MIDDLE, 1, 1),
        lambda: jobs.end(replace(MIDDLE, phase=RequestPhase.RUNNING, rows=7), 5, 2),
        lambda: jobs.end(replace(MIDDLE, phase=RequestPhase.RUNNING, rows=7), 0, 8),
        lambda: jobs.end(replace(MIDDLE, phase=RequestPhase.RUNNING, rows=7), 8, 0),
        lambda: jobs.end(jobs.start(jobs.submit(FIRST, 5, 3)), 5, 1),
    ],
)
def test_illegal_moves_raise_and_change_nothing(move: Callable[[], object]) -> None:
    with pytest.raises(CheckFailed):
        move()


@pytest.mark.parametrize(
    "move",
    [
        lambda: jobs.rows_arrive(MIDDLE, 1, 1),
        lambda: jobs.rows_arrive(replace(MIDDLE, rows=3), 5, 1),
        lambda: jobs.token_arrives(jobs.start(jobs.submit(FIRST, 5, 3)), 1, ""),
    ],
)
def test_what_was_lost_on_the_way_is_nobody_s_lie(move: Callable[[], object]) -> None:
    with pytest.raises(PeerUnreachable):
        move()


def test_a_prompt_that_leaves_no_room_for_its_answer_is_too_long() -> None:
    with pytest.raises(ContextTooLong):
        jobs.submit(FIRST, 98, 3)
    assert jobs.submit(FIRST, 97, 3).is_submitted


@pytest.mark.parametrize("phase", sorted(jobs.OVER))
def test_nothing_moves_a_request_that_is_over(phase: RequestPhase) -> None:
    for request in (FIRST, MIDDLE, LAST, WHOLE):
        over = replace(request, phase=phase, prompt_tokens=5, max_new_tokens=3, rows=5)
        assert jobs.cancel(over) is None
        assert jobs.fail(over) is None
        assert jobs.end(over, 5, 1) is None
        if request.is_first:
            assert jobs.token_arrives(over, 0, "") is None
        else:
            assert jobs.rows_arrive(over, 5, 1) is None


def test_a_cancelled_request_cannot_be_submitted_again() -> None:
    with pytest.raises(CheckFailed):
        jobs.submit(some(jobs.cancel(FIRST)), 5, 3)


_MOVES = st.one_of(
    st.tuples(st.just("rows"), st.integers(0, 12), st.integers(1, 5)),
    st.tuples(st.just("produce"), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 12), st.integers(0, 12)),
    st.tuples(st.sampled_from(["cancel", "fail"])),
)


@given(prompt=st.integers(1, 6), limit=st.integers(1, 4), moves=st.lists(_MOVES, max_size=30))
def test_whatever_arrives_a_last_stage_ends_only_with_counts_it_saw(
    prompt: int, limit: int, moves: list[tuple[object, ...]]
) -> None:
    request, ended = jobs.submit(replace(LAST, context=20), prompt, limit), None
    for name, *arguments in moves:
        before = request
        try:
            if name == "rows":
                after = jobs.rows_arrive(request, *arguments)  # type: ignore[arg-type]
            elif name == "produce":
                after = jobs.produce(request, is_eos=bool(arguments[0]))
            elif name == "end":
                after = jobs.end(request, *arguments)  # type: ignore[arg-type]
                ended = arguments if after is not None else ended
            else:
                after = getattr(jobs, str(name))(request)
        except (CheckFailed, PeerUnreachable):
            continue
        request = after or request
        assert request.rows <= prompt + request.produced <= 20
        assert request.produced <= limit
        assert not before.is_over or request == before
    if request.phase is RequestPhase.FINISHED:
        assert ended == [prompt, request.produced]
        assert request.rows == prompt + request.produced - 1
