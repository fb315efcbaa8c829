"""The life of one request at one stage: which moves are possible, and that no other is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.protocol.errors import CheckFailed, ContextTooLong, PeerUnreachable
from miner.serving import request_state
from miner.serving.request_state import Request, RequestPhase

FIRST = Request(0, is_first=True, is_last=False, context=100)
MIDDLE = Request(0, is_first=False, is_last=False, context=100)
LAST = Request(0, is_first=False, is_last=True, context=100)
WHOLE = Request(0, is_first=True, is_last=True, context=100)


def some(request: Request | None) -> Request:
    assert request is not None
    return request


def test_a_first_stage_feeds_the_prompt_then_one_row_per_token() -> None:
    request = request_state.start(request_state.submit(FIRST, 5, 3))
    assert (request.phase, request.rows) == (RequestPhase.RUNNING, 5)
    request = some(request_state.token_arrives(request, 0, ""))
    request = some(request_state.token_arrives(request, 1, ""))
    assert request.rows == 7
    request = some(request_state.token_arrives(request, 2, "length"))
    assert request.rows == 7, "the last token is not fed back"
    assert some(request_state.end(request, 5, 3)).phase is RequestPhase.FINISHED


def test_a_last_stage_samples_after_the_prompt_and_after_every_row() -> None:
    request = some(request_state.rows_arrive(request_state.submit(LAST, 5, 3), 0, 5))
    for step in range(3):
        request = request_state.produce(request, is_eos=False)
        if step < 2:
            request = some(request_state.rows_arrive(request, 5 + step, 1))
    assert request.finish == "length"
    assert some(request_state.end(request, 5, 3)).phase is RequestPhase.FINISHED


def test_an_end_token_stops_before_the_limit_and_counts_as_produced() -> None:
    request = some(request_state.rows_arrive(request_state.submit(LAST, 5, 3), 0, 5))
    request = request_state.produce(request, is_eos=True)
    assert (request.finish, request.produced) == ("stop", 1)
    assert some(request_state.end(request, 5, 1)).phase is RequestPhase.FINISHED


def test_a_whole_model_is_first_and_last_at_once() -> None:
    request = request_state.start(request_state.submit(WHOLE, 2, 2))
    request = request_state.produce(request, is_eos=False)
    request = some(request_state.token_arrives(request, 0, request.finish))
    assert request.rows == 3
    request = request_state.produce(request, is_eos=False)
    request = some(request_state.token_arrives(request, 1, request.finish))
    assert request.finish == "length"
    assert some(request_state.end(request, 2, 2)).phase is RequestPhase.FINISHED


def test_rows_may_reach_a_last_stage_before_the_client_does() -> None:
    request = some(request_state.rows_arrive(LAST, 0, 5))
    assert request_state.submit(request, 5, 3).is_submitted
    with pytest.raises(CheckFailed, match="5 rows arrived for a prompt of 4"):
        request_state.submit(request, 4, 3)


@pytest.mark.parametrize(
    "move",
    [
        lambda: request_state.submit(MIDDLE, 5, 3),
        lambda: request_state.submit(request_state.submit(FIRST, 5, 3), 5, 3),
        lambda: request_state.submit(FIRST, 0, 3),
        lambda: request_state.submit(FIRST, 5, 0),
        lambda: request_state.start(FIRST),
        lambda: request_state.start(LAST),
        lambda: request_state.start(request_state.start(request_state.submit(FIRST, 5, 3))),
        lambda: request_state.rows_arrive(FIRST, 0, 1),
        lambda: request_state.rows_arrive(replace(MIDDLE, rows=3), 2, 2),
        lambda: request_state.rows_arrive(MIDDLE, 0, 101),
        lambda: request_state.rows_arrive(request_state.submit(LAST, 5, 3), 0, 6),
        lambda: request_state.produce(MIDDLE, is_eos=False),
        lambda: request_state.produce(request_state.submit(LAST, 5, 3), is_eos=False),
        lambda: request_state.produce(
            some(request_state.rows_arrive(request_state.submit(LAST, 5, 3), 0, 4)), is_eos=False
        ),
        lambda: request_state.token_arrives(LAST, 0, ""),
        lambda: request_state.token_arrives(request_state.submit(FIRST, 5, 3), 0, ""),
        lambda: request_state.token_arrives(
            request_state.start(request_state.submit(FIRST, 5, 1)), 0, ""
        ),
        lambda: request_state.end(MIDDLE, 1, 1),
        lambda: request_state.end(replace(MIDDLE, phase=RequestPhase.RUNNING, rows=7), 5, 2),
        lambda: request_state.end(replace(MIDDLE, phase=RequestPhase.RUNNING, rows=7), 0, 8),
        lambda: request_state.end(replace(MIDDLE, phase=RequestPhase.RUNNING, rows=7), 8, 0),
        lambda: request_state.end(request_state.start(request_state.submit(FIRST, 5, 3)), 5, 1),
    ],
)
def test_illegal_moves_raise_and_change_nothing(move: Callable[[], object]) -> None:
    with pytest.raises(CheckFailed):
        move()


@pytest.mark.parametrize(
    "move",
    [
        lambda: request_state.rows_arrive(MIDDLE, 1, 1),
        lambda: request_state.rows_arrive(replace(MIDDLE, rows=3), 5, 1),
        lambda: request_state.token_arrives(
            request_state.start(request_state.submit(FIRST, 5, 3)), 1, ""
        ),
    ],
)
def test_what_was_lost_on_the_way_is_nobody_s_lie(move: Callable[[], object]) -> None:
    with pytest.raises(PeerUnreachable):
        move()


def test_a_prompt_that_leaves_no_room_for_its_answer_is_too_long() -> None:
    with pytest.raises(ContextTooLong):
        request_state.submit(FIRST, 98, 3)
    assert request_state.submit(FIRST, 97, 3).is_submitted


@pytest.mark.parametrize("phase", sorted(request_state.OVER))
def test_nothing_moves_a_request_that_is_over(phase: RequestPhase) -> None:
    for request in (FIRST, MIDDLE, LAST, WHOLE):
        over = replace(request, phase=phase, prompt_tokens=5, max_new_tokens=3, rows=5)
        assert request_state.cancel(over) is None
        assert request_state.fail(over) is None
        assert request_state.end(over, 5, 1) is None
        if request.is_first:
            assert request_state.token_arrives(over, 0, "") is None
        else:
            assert request_state.rows_arrive(over, 5, 1) is None


def test_a_cancelled_request_cannot_be_submitted_again() -> None:
    with pytest.raises(CheckFailed):
        request_state.submit(some(request_state.cancel(FIRST)), 5, 3)


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
    request, ended = request_state.submit(replace(LAST, context=20), prompt, limit), None
    for name, *arguments in moves:
        before = request
        try:
            if name == "rows":
                after = request_state.rows_arrive(request, *arguments)  # type: ignore[arg-type]
            elif name == "produce":
                after = request_state.produce(request, is_eos=bool(arguments[0]))
            elif name == "end":
                after = request_state.end(request, *arguments)  # type: ignore[arg-type]
                ended = arguments if after is not None else ended
            else:
                after = getattr(request_state, str(name))(request)
        except (CheckFailed, PeerUnreachable):
            continue
        request = after or request
        assert request.rows <= prompt + request.produced <= 20
        assert request.produced <= limit
        assert not before.is_over or request == before
    if request.phase is RequestPhase.FINISHED:
        assert ended == [prompt, request.produced]
        assert request.rows == prompt + request.produced - 1
