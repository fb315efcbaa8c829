"""An acknowledgement that the matcher did not bring is brought by a stage, in its turn and once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.protocol.types import JobState
from miner.daemon.claims import OpenOrderSeen, is_due, turn_s

SEEN = OpenOrderSeen(JobState.MATCHED, deadline_s=1000, tokens_in=10, tokens_out=5)
DELAY_S = 400


def due(
    seen: OpenOrderSeen = SEEN, now_s: int = 1100, stage: int = 0, acked: tuple[int, int] = (20, 9)
) -> bool:
    return is_due(seen, acked, now_s, DELAY_S, stage, 4)


def test_the_matcher_has_the_first_quarter_for_itself() -> None:
    assert not due(now_s=1099)
    assert due(now_s=1100)


def test_stages_take_turns_and_all_have_had_one_before_the_end() -> None:
    turns = [turn_s(SEEN, DELAY_S, stage, 4) for stage in range(4)]
    assert turns == [1100, 1150, 1200, 1250]
    assert turns == sorted(set(turns)) and turns[-1] < SEEN.deadline_s + DELAY_S
    assert [due(now_s=1150, stage=stage) for stage in range(4)] == [True, True, False, False]


def test_what_is_paid_is_not_brought_again() -> None:
    assert not due(acked=(10, 5))
    assert not due(acked=(9, 5))
    assert due(acked=(10, 6))


def test_an_acknowledgement_is_brought_for_one_count_that_is_not_paid() -> None:
    """A requester may have paid more of the other count, to spoil it."""
    assert due(acked=(9, 6))


@pytest.mark.parametrize("state", [s for s in JobState if s is not JobState.MATCHED])
def test_a_job_that_is_over_takes_no_acknowledgement(state: JobState) -> None:
    assert not due(replace(SEEN, state=state))
