"""The queue in front of a stage: admission, prompts beside decode steps, jobs in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.batching.kv_ledger import KvLedger
from core.batching.lineup import Lineup
from core.batching.step import RequestStep, StepError


class Pages:
    """A page for each request, unless told otherwise."""

    def __init__(self, pages: int) -> None:
        self.ledger = KvLedger(pages)
        self.wanted: dict[Hashable, int] = {}

    def try_admit(self, request: Hashable) -> bool:
        return self.ledger.try_book(request, self.wanted.get(request, 1))

    def release(self, request: Hashable) -> None:
        if self.ledger.holds(request):
            self.ledger.release(request)


def lineup(
    pages: int = 99, *, gated: bool = False, **limits: object
) -> tuple[Lineup[RequestStep], Pages]:
    memory = Pages(pages)
    return Lineup(memory, gated=gated, **limits), memory  # type: ignore[arg-type]


def begin(line: Lineup[RequestStep], request: int, tokens: int = 10, job: int = 0) -> None:
    line.open(request, job)
    line.add(RequestStep(request, 0, tokens, job))


def ran(line: Lineup[RequestStep]) -> tuple[list[int], list[int]]:
    batch = line.form()
    if batch is None:
        return [], []
    decodes = [s.request for s in batch.decodes]
    return decodes, [s.request for s in batch.prefills]  # type: ignore[return-value]


def test_prompts_and_decode_steps_share_a_batch() -> None:
    line, _ = lineup()
    begin(line, 1)
    assert ran(line) == ([], [1])
    line.add(RequestStep(1, 10, 11))
    begin(line, 2)
    assert ran(line) == ([1], [2])
    assert line.form() is None


def test_a_step_with_guesses_goes_before_prompts_and_by_tickets() -> None:
    line, _ = lineup(gated=True, budget_tokens=100)
    for request in (1, 2, 3):
        begin(line, request)
    assert ran(line)[1] == [1, 2, 3]
    begin(line, 4, tokens=90)
    begin(line, 5, tokens=90)
    for request in (1, 2):
        line.add(RequestStep(request, 10, 14, guessed=3))
    assert ran(line) == ([1, 2], [4])
    line.add(RequestStep(3, 10, 18, guessed=7))
    assert ran(line) == ([], [5])  # one ticket is out
    line.add(RequestStep(1, 12, 14, guessed=1))
    line.land(2)
    assert sorted(ran(line)[0]) == [1, 3]


@pytest.mark.parametrize("guessed", [-1, 4, 5])
def test_no_step_is_all_guesses(guessed: int) -> None:
    with pytest.raises(StepError):
        RequestStep(1, 10, 14, guessed=guessed)


def test_prompts_take_a_small_budget_while_somebody_decodes_and_a_large_one_else() -> None:
    line, _ = lineup(budget_tokens=100, quiet_budget_tokens=300)
    for request in range(8):
        begin(line, request, 90)
    assert ran(line) == ([], [0, 1, 2])
    line.add(RequestStep(0, 90, 91))
    assert ran(line) == ([0], [3])
    assert ran(line) == ([], [4]), "the one who decodes may come home any moment"
    line.drop(0)
    assert ran(line) == ([], [5, 6, 7])


def test_who_does_not_fit_waits_and_is_overtaken_by_nobody() -> None:
    line, memory = lineup(3)
    memory.wanted[2] = 3
    for request in (1, 2, 3):
        begin(line, request)
    assert ran(line) == ([], [1])
    assert line.form() is None
    assert (line.waiting_requests, line.is_waiting(2), line.is_waiting(1)) == (2, True, False)
    line.drop(1)
    memory.release(1)
    assert ran(line) == ([], [2])
    line.drop(2)
    memory.release(2)
    assert ran(line) == ([], [3])


def test_jobs_take_turns_at_the_door() -> None:
    line, memory = lineup(4)
    for request in range(10):
        begin(line, request, job=1)
    begin(line, 100, job=2)
    begin(line, 200, job=3)
    assert set(ran(line)[1]) == {0, 1, 100, 200}
    assert memory.ledger.free_pages == 0


def test_a_dropped_request_leaves_nothing_behind() -> None:
    line, memory = lineup(1)
    begin(line, 1)
    begin(line, 2)
    line.drop(2)
    assert ran(line) == ([], [1])
    line.add(RequestStep(1, 10, 11))
    line.drop(1)
    line.drop(1)
    memory.release(1)
    assert line.form() is None
    assert (line.open_requests, line.waiting_requests, line.waiting_rows) == (0, 0, 0)
    begin(line, 3)
    assert ran(line) == ([], [3])


def test_steps_that_could_not_run_come_back() -> None:
    line, _ = lineup()
    begin(line, 1)
    batch = line.form()
    assert batch is not None
    line.put_back(batch.prefills)
    assert ran(line) == ([], [1])
    line.drop(1)
    line.put_back(batch.prefills)
    assert line.form() is None


def test_a_first_stage_holds_back_until_a_ticket_is_home() -> None:
    line, _ = lineup(gated=True)
    for request in range(4):
        begin(line, request)
    line.form()
    for request in range(4):
        line.add(RequestStep(request, 10, 11))
    ((_, ring),) = line.rings()
    ring.tickets, ring.rows = 2, 2
    assert [ran(line)[0] for _ in range(3)] == [[0, 1], [2, 3], []]
    line.land(0)
    line.land(1)
    line.add(RequestStep(0, 11, 12))
    assert ran(line)[0] == [0]


def test_rings_share_batches_and_each_keeps_its_tickets() -> None:
    line, _ = lineup(gated=True)
    for request, ring in ((1, "a"), (2, "b")):
        line.open(request, 0, ring)
        line.add(RequestStep(request, 0, 5))
    line.form()
    for request in (1, 2):
        line.add(RequestStep(request, 5, 6))
    assert ran(line)[0] == [1, 2]


def test_a_later_stage_keeps_apart_what_does_not_join_and_lets_no_ring_wait_for_ever() -> None:
    line, _ = lineup(joins=lambda rows, more: rows + more <= 3)
    for request in range(6):
        line.open(request, 0, "ab"[request // 4])
        line.add(RequestStep(request, 0, 5))
    line.form()
    for request in range(6):
        line.add(RequestStep(request, 5, 6, leads=request in (0, 2, 4)))
    assert ran(line)[0] == [0, 1]
    assert ran(line)[0] == [4, 5], "the other ring's turn"
    assert ran(line)[0] == [2, 3]
    line.add(RequestStep(0, 6, 7, leads=True))
    for request in (4, 5):
        line.add(RequestStep(request, 6, 7, leads=request == 4))
    assert sorted(ran(line)[0]) == [0, 4, 5], "rings join as microbatches do"


def test_strangers_have_no_steps() -> None:
    line, _ = lineup()
    with pytest.raises(StepError):
        line.add(RequestStep(1, 0, 5))
    line.open(1, 0)
    with pytest.raises(StepError):
        line.open(1, 0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_step_of_those_who_stay_runs_once_and_in_order(data: st.DataObject) -> None:
    pages = data.draw(st.integers(2, 8))
    line, memory = lineup(
        pages,
        gated=data.draw(st.booleans()),
        max_rows=data.draw(st.integers(1, 5)),
        budget_tokens=20,
        quiet_budget_tokens=40,
    )
    position: dict[int, int] = {}
    goal: dict[int, int] = {}
    dropped: set[int] = set()
    per_job: Counter[int] = Counter()

    def run_batch() -> bool:
        batch = line.form()
        if batch is None:
            return False
        assert len(batch.decodes) <= line.max_rows
        assert batch.prefill_tokens <= 40
        for s in [*batch.decodes, *batch.prefills]:
            request: int = s.request  # type: ignore[assignment]
            assert request not in dropped
            assert s.first == position[request]
            position[request] = s.end
            per_job[s.job] += s.tokens  # type: ignore[index]
            if s.end < goal[request]:
                line.add(RequestStep(request, s.end, s.end + 1, s.job))
            else:
                drop(request)
        return True

    def drop(request: int) -> None:
        line.drop(request)
        memory.release(request)
        dropped.add(request)

    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["open", "open", "run", "run", "drop"])):
            case "open":
                new, job = len(position), data.draw(st.integers(0, 3))
                prompt = data.draw(st.integers(1, 20))
                memory.wanted[new] = data.draw(st.integers(1, pages))
                position[new], goal[new] = 0, prompt + data.draw(st.integers(0, 5))
                begin(line, new, prompt, job)
            case "run":
                run_batch()
            case "drop" if set(position) - dropped:
                drop(data.draw(st.sampled_from(sorted(set(position) - dropped))))
        assert memory.ledger.used_pages <= pages
    while run_batch():
        pass
    assert set(position) == dropped, "nobody waits for ever"
    assert (line.open_requests, line.waiting_rows, memory.ledger.used_pages) == (0, 0, 0)


def groups_of(line: Lineup[RequestStep]) -> list[tuple[set[int], int | None]]:
    """Of every batch that runs now: the groups (tens of the requests' numbers) in it, and which is
    said to follow.
    """
    found = []
    while (batch := line.form()) is not None:
        steps = [*batch.decodes, *batch.prefills]
        requests = {int(s.request) for s in steps}  # type: ignore[call-overload]
        assert {request // 10 for request in requests} == {batch.group}
        found.append((requests, batch.following))
    return found


def in_groups(pages: int = 99, **limits: object) -> Lineup[RequestStep]:
    """Requests 0 to 9 are in group 0, 10 to 19 in group 1, and so on."""
    return Lineup(
        Pages(pages),
        group_of=lambda request: int(request) // 10,  # type: ignore[call-overload]
        **{"gated": False, **limits},  # type: ignore[arg-type]
    )


def test_groups_take_turns_and_a_batch_is_of_one() -> None:
    line = in_groups()
    for request in (1, 10, 2, 20, 11):
        begin(line, request)
    assert groups_of(line) == [({1, 2}, 1), ({10, 11}, 2), ({20}, 0)]
    for request in (10, 2, 20):
        line.add(RequestStep(request, 10, 11))
    assert groups_of(line) == [({2}, 1), ({10}, 2), ({20}, 0)], "longest ago first"
    line.add(RequestStep(20, 11, 12))
    batch = line.form()
    assert batch is not None
    assert (batch.group, batch.following) == (2, 0), "nobody else is ready: whose turn is"
    for request in (1, 2):
        line.drop(request)
    line.add(RequestStep(20, 12, 13))
    assert groups_of(line) == [({20}, 1)], "nobody is in group 0"


def test_microbatches_of_a_group_share_its_turn() -> None:
    line = in_groups(joins=lambda *_: False)
    for request in (1, 2, 11):
        begin(line, request)
    while line.form():
        pass
    for request in (1, 2, 11):
        line.add(RequestStep(request, 10, 11, leads=True))
    assert [members for members, _ in groups_of(line)] == [{1, 2}, {11}]


def test_each_group_of_a_ring_has_tickets_of_its_own() -> None:
    line = in_groups(gated=True)
    for request in (0, 1, 10, 11):
        begin(line, request)
    groups_of(line)
    for request in (0, 1, 10, 11):
        line.add(RequestStep(request, 10, 11))
    assert [len(tickets.members) for _, tickets in line.rings()] == [2, 2]
    assert groups_of(line) == [({0, 1}, 1), ({10, 11}, 0)]
    line.add(RequestStep(10, 11, 12))
    assert line.form() is None, "its company is not home"
    line.land(11)
    assert groups_of(line) == [({10}, 0)]
    assert line.recall(10, 0, None)
    line.add(RequestStep(10, 12, 13))
    assert groups_of(line) == [({10}, 0)]
