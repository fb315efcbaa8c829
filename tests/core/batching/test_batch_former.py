"""The batch former: within its limits, in order, fair, and nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.batching import BatchFormer, RequestStep, StepError
from core.protocol.types import LayerRange
from tests.core.batching.microbatches import microbatches


def spans(batch):
    return [(step.request, step.first, step.end) for step in batch.prefills]


def test_decode_steps_do_not_wait_for_prompts():
    former = BatchFormer(chunk_tokens=256, budget_tokens=256)
    former.add_prefill(RequestStep("long", 0, 2000))
    former.add_decode(RequestStep("d"))
    batch = former.form()
    assert [step.request for step in batch.decodes] == ["d"]
    assert spans(batch) == [("long", 0, 256)]
    assert (batch.prefill_tokens, len(batch)) == (256, 2)


def test_a_prompt_is_cut_at_multiples_of_the_chunk_whatever_came_before():
    former = BatchFormer(chunk_tokens=100, budget_tokens=150)
    former.add_prefill(RequestStep("a", 30, 330))
    cuts = []
    while (batch := former.form()) is not None:
        cuts += spans(batch)
    assert cuts == [("a", 30, 100), ("a", 100, 200), ("a", 200, 300), ("a", 300, 330)]


def test_whole_prompts_stay_whole():
    former = BatchFormer(max_prefills=1)
    former.add_prefill(RequestStep("a", 0, 700))
    former.add_prefill(RequestStep("b", 0, 5))
    assert spans(former.form()) == [("a", 0, 700)]
    assert spans(former.form()) == [("b", 0, 5)]
    assert former.form() is None


def test_nobody_overtakes_a_prompt_that_does_not_fit():
    former = BatchFormer(budget_tokens=100)
    for request, tokens in (("a", 60), ("b", 60), ("c", 10)):
        former.add_prefill(RequestStep(request, 0, tokens))
    assert spans(former.form()) == [("a", 0, 60)]
    assert spans(former.form()) == [("b", 0, 60), ("c", 0, 10)]


def test_jobs_with_prompts_take_turns_by_tokens():
    former = BatchFormer(chunk_tokens=10, budget_tokens=10)
    for i in range(3):
        former.add_prefill(RequestStep(f"a{i}", 0, 20, job="a"))
    former.add_prefill(RequestStep("b0", 0, 20, job="b"))
    order = [spans(former.form())[0][0] for _ in range(8)]
    assert order == ["a0", "b0", "a0", "b0", "a1", "a1", "a2", "a2"]


def test_a_job_that_returns_gets_no_credit_for_its_absence():
    former = BatchFormer(chunk_tokens=10, budget_tokens=10)
    former.add_prefill(RequestStep("b0", 0, 10, job="b"))
    former.add_prefill(RequestStep("a0", 0, 1000, job="a"))
    for _ in range(50):
        former.form()
    former.add_prefill(RequestStep("b1", 0, 100, job="b"))
    jobs = [former.form().prefills[0].job for _ in range(10)]
    assert jobs.count("b") == 5


def test_decode_steps_over_the_limit_are_shared_among_jobs_in_turn():
    former = BatchFormer(max_decodes=2)
    for i in range(4):
        former.add_decode(RequestStep(f"a{i}", job="a"))
    former.add_decode(RequestStep("b0", job="b"))
    assert [step.request for step in former.form().decodes] == ["a0", "b0"]
    assert [step.request for step in former.form().decodes] == ["a1", "a2"]
    assert [step.request for step in former.form().decodes] == ["a3"]


def test_a_flood_of_new_jobs_does_not_starve_an_old_one():
    former = BatchFormer(max_decodes=1)
    former.add_decode(RequestStep("old", job="old"))
    for i in range(100):
        former.add_decode(RequestStep(i, job=i))
        if former.form().decodes[0].request == "old":
            break
    assert i == 0


def test_a_decode_step_is_used_again_and_keeps_its_layers():
    former = BatchFormer()
    step = RequestStep("a", 7, 8, layers=LayerRange(3, 5))
    for _ in range(3):
        former.add_decode(step)
        assert former.form().decodes == [step]
    assert step.layers == LayerRange(3, 5)


def test_chunks_keep_the_layers_and_the_job_of_their_prompt():
    former = BatchFormer(chunk_tokens=4, budget_tokens=4)
    former.add_prefill(RequestStep("a", 0, 6, job="j", layers=LayerRange(3, 5)))
    for _ in range(2):
        (chunk,) = former.form().prefills
        assert (chunk.layers, chunk.job) == (LayerRange(3, 5), "j")


def test_microbatches_leave_whole_and_together_as_asked():
    former = BatchFormer()
    former.add_decodes(microbatches(3, 2, 4))
    asked = []

    def joins(rows: int, more: int) -> bool:
        asked.append((rows, more))
        return more < 4

    assert [s.request for s in former.form_microbatches(0, 99, joins)] == [0, 1, 2, 3, 4]
    assert asked == [(3, 2), (5, 4)]
    assert [s.request for s in former.form_microbatches(0, 99, joins)] == [5, 6, 7, 8]
    assert former.form_microbatches(0, 99, joins) == []


def test_no_microbatch_is_cut_where_a_smaller_batch_will_do():
    former = BatchFormer()
    former.add_decodes(microbatches(3, 3))
    assert len(former.form_microbatches(0, 5, lambda *_: True)) == 3
    assert former.form_microbatches(0, 2, lambda *_: True) == []
    assert len(former.form_microbatches(0, 3, lambda *_: True)) == 3


def test_who_comes_after_others_is_asked_whether_to_join_them():
    former = BatchFormer()
    former.add_decodes(microbatches(3))
    assert former.form_microbatches(7, 99, lambda rows, more: (rows, more) != (7, 3)) == []
    assert former.form_microbatches(7, 2, lambda *_: True) == []
    assert len(former.form_microbatches(7, 99, lambda rows, more: (rows, more) == (7, 3))) == 3


def test_guesses_are_rows_of_a_microbatch():
    former = BatchFormer()
    former.add_decode(RequestStep(0, 5, 9, guessed=3, leads=True))
    former.add_decode(RequestStep(1, 5, 6, leads=True))
    assert len(former.form_microbatches(0, 99, lambda rows, more: (rows, more) == (4, 1))) == 2


def test_cancel_takes_out_everything_of_a_request_and_nothing_else():
    former = BatchFormer(chunk_tokens=10, budget_tokens=10)
    former.add_prefill(RequestStep("a", 0, 30, job="j"))
    former.add_prefill(RequestStep("b", 0, 10, job="j"))
    former.form()
    former.add_decode(RequestStep("a"))
    former.add_decode(RequestStep("c"))
    assert former.cancel("a") == 2
    assert former.cancel("a") == 0
    batch = former.form()
    assert ([s.request for s in batch.decodes], spans(batch)) == (["c"], [("b", 0, 10)])
    assert former.form() is None
    assert (len(former), former.waiting_prefill_tokens) == (0, 0)


def test_a_cancelled_step_may_be_queued_again():
    former = BatchFormer()
    step = RequestStep("a")
    former.add_decode(step)
    former.cancel("a")
    former.add_decode(step)
    assert former.form().decodes == [step]


@pytest.mark.parametrize(
    "limits",
    [
        {"chunk_tokens": 0},
        {"budget_tokens": -1},
        {"max_decodes": 0},
        {"max_prefills": 0},
        {"chunk_tokens": 10, "budget_tokens": 9},
    ],
)
def test_limits_that_let_nothing_through_are_errors(limits):
    with pytest.raises(StepError):
        BatchFormer(**limits)


def test_illegal_moves_are_errors():
    former = BatchFormer(budget_tokens=10)
    step = RequestStep("a")
    former.add_decode(step)
    for illegal in (
        lambda: former.add_decode(step),
        lambda: former.add_decodes([step]),
        lambda: former.add_prefill(step),
        lambda: former.add_prefill(RequestStep("b", 0, 11)),
        lambda: RequestStep("c", 5, 5),
        lambda: RequestStep("c", -1, 5),
        lambda: RequestStep("c", 0, 5).cut(5),
        lambda: RequestStep("c", 2, 5).cut(2),
    ):
        with pytest.raises(StepError):
            illegal()
    assert len(former) == 1


prompts = st.lists(
    st.tuples(st.integers(1, 700), st.integers(0, 3), st.integers(0, 300)), max_size=12
)


@given(
    prompts,
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(0, 500),
    st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(1, 8),
)
@settings(max_examples=100, deadline=None)
def test_every_token_runs_once_in_order_and_no_limit_is_passed(
    prompts, chunk, spare, max_prefills, decode_jobs, max_decodes
):
    budget = 1000 if chunk is None else chunk + spare
    former = BatchFormer(
        chunk_tokens=chunk,
        budget_tokens=budget,
        max_prefills=max_prefills,
        max_decodes=max_decodes,
    )
    for i, (tokens, job, first) in enumerate(prompts):
        former.add_prefill(RequestStep(i, first, first + tokens, job=job))
    decodes = [RequestStep(("d", i), job=job) for i, job in enumerate(decode_jobs)]
    former.add_decodes(decodes)
    ran: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    begun: dict[int, list[int]] = {}
    decoded = []
    batches = 0
    while (batch := former.form()) is not None:
        batches += 1
        assert len(batch) > 0
        assert batch.prefill_tokens == sum(step.tokens for step in batch.prefills) <= budget
        assert len(batch.decodes) <= max_decodes
        assert len(batch.prefills) <= max_prefills
        decoded += batch.decodes
        for step in batch.prefills:
            ran[step.request] += range(step.first, step.end)
            if begun.setdefault(step.job, [step.request])[-1] != step.request:
                begun[step.job].append(step.request)
    for i, (tokens, _, first) in enumerate(prompts):
        assert ran[i] == list(range(first, first + tokens))
    for job, order in begun.items():
        assert order == [i for i, (_, of, _) in enumerate(prompts) if of == job]
    assert sorted(map(id, decoded)) == sorted(map(id, decodes))
    for job in set(decode_jobs):
        mine = [step for step in decoded if step.job == job]
        assert mine == [step for step in decodes if step.job == job]
    chunks = (
        sum(-(-(f + t) // chunk) - f // chunk for t, _, f in prompts) if chunk else len(prompts)
    )
    assert batches <= chunks + len(decodes)


@given(st.integers(2, 6), st.integers(1, 3), st.data())
@settings(max_examples=15, deadline=None)
def test_no_job_waits_longer_than_one_turn_of_the_others(jobs, max_decodes, data):
    former = BatchFormer(max_decodes=max_decodes)
    waiting = dict.fromkeys(range(jobs), 0)
    since = dict.fromkeys(waiting, 0)
    serial = 0
    for batch_no in range(60):
        for job in range(jobs):
            for _ in range(data.draw(st.integers(0 if job else 1, 3))):
                serial += 1
                if not waiting[job]:
                    since[job] = batch_no
                waiting[job] += 1
                former.add_decode(RequestStep(serial, job=job))
        batch = former.form()
        for step in batch.decodes:
            waiting[step.job] -= 1
            since[step.job] = batch_no + 1
        for job, many in waiting.items():
            assert not many or batch_no + 1 - since[job] <= jobs


class FormerUnderAnyOrder(RuleBasedStateMachine):
    """Adding, forming and cancelling in any order: what was added is run once or cancelled, never
    both.
    """

    def __init__(self):
        super().__init__()
        self.former = BatchFormer(chunk_tokens=8, budget_tokens=20, max_decodes=3, max_prefills=2)
        self.owed: dict[int, int] = {}
        self.serial = 0

    @rule(tokens=st.integers(1, 40), job=st.integers(0, 2))
    def add_prompt(self, tokens, job):
        self.serial += 1
        self.former.add_prefill(RequestStep(self.serial, 0, tokens, job=job))
        self.owed[self.serial] = tokens

    @rule(job=st.integers(0, 2))
    def add_decode(self, job):
        self.serial += 1
        self.former.add_decode(RequestStep(self.serial, job=job))
        self.owed[self.serial] = 1

    @rule()
    def form(self):
        batch = self.former.form()
        assert (batch is None) == (not self.owed)
        for step in [] if batch is None else [*batch.decodes, *batch.prefills]:
            self.owed[step.request] -= step.tokens
            if not self.owed[step.request]:
                del self.owed[step.request]

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(sorted(self.owed)))
        assert self.former.cancel(request) == 1
        del self.owed[request]

    @invariant()
    def count_agrees(self):
        assert len(self.former) == len(self.owed)


TestFormerUnderAnyOrder = FormerUnderAnyOrder.TestCase
TestFormerUnderAnyOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
