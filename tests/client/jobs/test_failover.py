"""What is ordered anew after a loss, what it goes on from, and what is not asked for twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client.jobs.failover import Ongoing, continues, go_on
from client.orders.orders import Prompt
from client.pipeline.pipeline import PipelineOutcome, RequestState
from core.protocol import types as t
from core.protocol.errors import CheckFailed, PeerUnreachable

GONE = PeerUnreachable("a stage", "it died")
FIRST, SECOND = "0x" + "01" * 32, "0x" + "02" * 32


def prompt(name: str, *ids: int, new: int = 8, **sampling: int) -> Prompt:
    params = t.SamplingParams(max_new_tokens=new, **sampling)
    return Prompt(name, ids or (1, 2, 3), params, bytes(32))


def part(of: Ongoing, *tokens: int, finish: str = "") -> RequestState:
    state = RequestState(of.prompt.ids, of.left_tokens)
    state.tokens, state.logprobs, state.finish = list(tokens), [None] * len(tokens), finish
    return state


def broken(
    begun: dict[int, RequestState], unfinished: int, finished: dict[int, RequestState] | None = None
) -> PipelineOutcome:
    done = finished or {}
    left = {i: GONE for i in range(unfinished) if i not in done}
    return PipelineOutcome(done, left, begun)


def test_the_rest_of_an_answer_is_drawn_with_the_first_orders_noise() -> None:
    answer = Ongoing(prompt("a", 5, 6, seed=3))
    assert answer.next_prompt(bytes).ids == (5, 6), "nothing has come yet"
    left, whole = go_on([Ongoing(prompt("x")), answer], broken({1: part(answer, 7, 8)}, 2), FIRST)
    assert not whole
    asked = left[1].next_prompt(bytes)
    assert asked.ids == (5, 6, 7, 8)
    assert asked.sampling.max_new_tokens == 6
    assert (asked.sampling.key_index, asked.sampling.first_step) == (1, 2)
    assert asked.sampling.seed == 3


def test_an_answer_keeps_its_first_index_however_often_it_moves() -> None:
    answers = [Ongoing(prompt("a")), Ongoing(prompt("b"))]
    answers, _ = go_on(
        answers, broken({1: part(answers[1], 9)}, 2, {0: part(answers[0], 1)}), FIRST
    )
    assert [a.prompt.custom_id for a in answers] == ["b"]
    answers, _ = go_on(answers, broken({0: part(answers[0], 10, 11)}, 1), SECOND)
    assert (answers[0].key_index, answers[0].place) == (1, (SECOND, 0))
    assert answers[0].tokens == [9, 10, 11]


def test_what_has_all_its_tokens_is_whole_without_its_receipts() -> None:
    ended, full = Ongoing(prompt("a")), Ongoing(prompt("b", new=2))
    begun = {0: part(ended, 4, 5, finish="stop"), 1: part(full, 6, 7)}
    left, whole = go_on([ended, full], broken(begun, 2), FIRST)
    assert not left
    assert {i: state.tokens for i, state in whole.items()} == {0: [4, 5], 1: [6, 7]}


def test_a_job_that_was_never_open_leaves_answers_where_they_were() -> None:
    answer = Ongoing(prompt("a"), tokens=[4], key_index=3, place=(FIRST, 2))
    outcome = PipelineOutcome({}, {0: GONE}, was_opened=False)
    (left,), _ = go_on([answer], outcome, SECOND)
    assert (left.place, left.tokens, left.key_index) == ((FIRST, 2), [4], 3)


def test_tokens_of_a_stage_that_was_caught_lying_are_not_gone_on_from() -> None:
    answer = Ongoing(prompt("a"))
    lie = part(answer, 4, 5)
    lie.fail(CheckFailed("it lied", "about a token"))
    assert not lie.is_trusted
    (left,), _ = go_on([answer], broken({}, 1), FIRST)
    assert left.tokens == []


def test_stages_are_told_the_newest_order_and_each_requests_place_in_it() -> None:
    here = Ongoing(prompt("a"), place=(SECOND, 4))
    older = Ongoing(prompt("b"), place=(FIRST, 1))
    assert continues([Ongoing(prompt("new"))]) is None
    told = continues([older, Ongoing(prompt("new")), here])
    assert told is not None
    assert (told.order_hash, told.requests) == (SECOND, [None, None, 4])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 12))
def test_every_token_is_asked_for_once_over_any_number_of_losses(
    given_each: list[int], new: int
) -> None:
    answers, received = [Ongoing(prompt("a", new=new))], list[int]()
    for number, count in enumerate(given_each):
        asked = answers[0].next_prompt(bytes)
        assert asked.ids == (1, 2, 3, *received)
        assert asked.sampling.max_new_tokens == new - len(received) > 0
        came = list(range(100 * number, 100 * number + min(count, new - len(received))))
        received += came
        begun = {0: part(answers[0], *came)} if came else {}
        if begun:
            begun[0].max_new_tokens = asked.sampling.max_new_tokens
        answers, whole = go_on(answers, broken(begun, 1), f"{number}")
        if len(received) == new:
            assert not answers
            assert whole[0].tokens == came
            return
        assert answers[0].tokens == received
