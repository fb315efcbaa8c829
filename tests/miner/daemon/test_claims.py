"""What the matcher did not bring, or end, a stage does, in its turn and once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.protocol.types import JobState
from miner.daemon.claims import (
    ACK_GRACE_S,
    ClaimStep,
    JobSeen,
    WorkHeld,
    delivery_turn_s,
    due_now,
    turn_s,
)

SEEN = JobSeen(JobState.MATCHED, deadline_s=1000, final_at_s=0, tokens_in=10, tokens_out=5)
DELIVERED = replace(SEEN, state=JobState.DELIVERED, final_at_s=1000)
DELAY_S = 400
NOTHING, ACK, DELIVER = ClaimStep.NOTHING, ClaimStep.ACK, ClaimStep.DELIVER
FINALIZE, END = ClaimStep.FINALIZE, ClaimStep.END


def due(
    seen: JobSeen = SEEN, now_s: int = 1100, stage: int = 0, acked: tuple[int, int] = (20, 9)
) -> ClaimStep:
    return due_now(seen, WorkHeld(acked), now_s, DELAY_S, stage, 4)


def test_the_matcher_has_the_first_quarter_for_itself() -> None:
    assert due(now_s=1099) is NOTHING
    assert due(now_s=1100) is ACK


def test_stages_take_turns_and_all_have_had_one_before_the_end() -> None:
    turns = [turn_s(1000, DELAY_S, stage, 4) for stage in range(4)]
    assert turns == [1100, 1150, 1200, 1250]
    assert turns == sorted(set(turns)) and turns[-1] < SEEN.deadline_s + DELAY_S
    found = [due(now_s=1150, stage=stage) for stage in range(4)]
    assert found == [ACK, ACK, NOTHING, NOTHING]


def test_what_is_counted_is_not_brought_again() -> None:
    assert due(acked=(10, 5)) is NOTHING
    assert due(acked=(9, 5)) is NOTHING
    assert due(acked=(10, 6)) is ACK


def test_an_acknowledgement_is_brought_for_one_count_that_is_not_counted() -> None:
    """A requester may have had more of the other counted, to spoil it."""
    assert due(acked=(9, 6)) is ACK


def test_a_counted_job_is_ended_by_turns_once_its_delay_is_over() -> None:
    assert due(acked=(10, 5), now_s=1400) is NOTHING
    found = [due(acked=(0, 0), now_s=1550, stage=stage) for stage in range(4)]
    assert found == [END, END, NOTHING, NOTHING]


def test_a_late_acknowledgement_is_brought_before_the_job_is_ended() -> None:
    assert due(now_s=9999) is ACK


def test_a_job_that_came_to_nothing_is_left_to_its_requester() -> None:
    assert due(replace(SEEN, tokens_in=0, tokens_out=0), acked=(0, 0), now_s=9999) is NOTHING


@pytest.mark.parametrize(
    "state", [s for s in JobState if s not in (JobState.MATCHED, JobState.DELIVERED)]
)
def test_a_job_that_is_over_takes_nothing(state: JobState) -> None:
    for now_s in (900, 1100, 9999):
        seen = replace(SEEN, state=state)
        held = WorkHeld((20, 9), (20, 9), 100)
        assert due_now(seen, held, now_s, DELAY_S, 0, 4) is NOTHING


# --- whole work that nobody acknowledged ---


def test_deliveries_take_turns_in_the_last_quarter_and_leave_half_of_it() -> None:
    assert [delivery_turn_s(200, 1000, stage, 4) for stage in range(4)] == [800, 825, 850, 875]
    assert delivery_turn_s(1001, 1000, 0, 4) == 1000, "a clock behind that of the chain"


@pytest.mark.parametrize(
    ("held", "now_s", "step"),
    [
        (WorkHeld(done=(20, 9), whole_since_s=800), 800 + ACK_GRACE_S - 1, NOTHING),
        (WorkHeld(done=(20, 9), whole_since_s=800), 800 + ACK_GRACE_S, DELIVER),
        (WorkHeld(done=(20, 9), whole_since_s=990), 990, DELIVER),  # no time to be patient
        (WorkHeld(done=(20, 9), whole_since_s=800), 1000, DELIVER),
        (WorkHeld(done=(20, 9)), 1000, NOTHING),  # a part, while more can be done
        (WorkHeld((20, 9), (20, 9), 800), 900, NOTHING),  # its acknowledgement pays as much
        (WorkHeld((20, 8), (20, 9), 800), 900, DELIVER),
        (WorkHeld(done=(10, 5), whole_since_s=800), 900, NOTHING),  # counted already
        (WorkHeld(), 900, NOTHING),
    ],
)
def test_whole_work_is_delivered_where_nothing_else_pays_it(
    held: WorkHeld, now_s: int, step: ClaimStep
) -> None:
    assert due_now(SEEN, held, now_s, DELAY_S, 3, 4) is step


def test_a_delivery_is_ended_by_turns_after_its_window_unless_a_dispute_is_open() -> None:
    found = [due(DELIVERED, now_s=1150, stage=stage) for stage in range(4)]
    assert found == [FINALIZE, FINALIZE, NOTHING, NOTHING]
    assert due(DELIVERED, now_s=1000) is NOTHING
    assert due(replace(DELIVERED, open_disputes=1), now_s=9999) is NOTHING


# --- a part of a batch, once its deadline is over ---

PART = WorkHeld(done=(20, 9))
LATE = replace(SEEN, state=JobState.DELIVERED, final_at_s=1460, is_late=True)


def test_a_part_is_delivered_by_turns_after_the_deadline() -> None:
    found = [due_now(SEEN, PART, 1150, DELAY_S, stage, 4) for stage in range(4)]
    assert found == [DELIVER, DELIVER, NOTHING, NOTHING]
    assert due_now(SEEN, PART, 1400, DELAY_S, 3, 4) is DELIVER
    assert due_now(SEEN, PART, 1401, DELAY_S, 3, 4) is NOTHING, "the chain takes no more"


def test_more_is_delivered_over_a_part_and_the_same_is_not() -> None:
    assert due_now(LATE, PART, 1300, DELAY_S, 3, 4) is DELIVER
    assert due_now(replace(LATE, tokens_in=20, tokens_out=9), PART, 1300, DELAY_S, 3, 4) is NOTHING


def test_an_acknowledgement_of_more_goes_before_a_delivery() -> None:
    assert due_now(SEEN, WorkHeld((20, 9), (20, 8)), 1300, DELAY_S, 3, 4) is ACK
    assert due_now(LATE, WorkHeld((20, 9), (20, 8)), 1300, DELAY_S, 3, 4) is ACK


def test_a_part_is_ended_after_its_window() -> None:
    assert due_now(LATE, WorkHeld(), 1559, DELAY_S, 0, 4) is NOTHING
    assert due_now(LATE, PART, 1560, DELAY_S, 0, 4) is FINALIZE
