"""Do a miner's books add up to what the chain said, whichever way they are cut?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.chain.chain import ChainEvent
from core.protocol.units import NANO
from miner.commands.earnings import Books, By, rows_of, take_in

OWNER, OPERATOR, OTHER = ("0x" + c * 40 for c in "abc")
MODEL = "0x" + "12" * 32


def job_id(number: int) -> str:
    return "0x" + f"{number:064x}"


def event(block: int, name: str, **args: Any) -> ChainEvent:
    return ChainEvent("c", name, args, block, "0x" + "0" * 64, "0x" + "1" * 64, 0)


def matched(number: int, block: int, *operators: str) -> list[ChainEvent]:
    job = job_id(number)
    return [
        event(block, "JobOpened", job=job, modelId=MODEL),
        event(block, "JobMatched", job=job, plan=[{"operator": who} for who in operators]),
    ]


def books(events: Sequence[ChainEvent]) -> Books:
    found = Books()
    take_in(found, [event(0, "MinerRegistered", owner=OWNER, operator=OPERATOR), *events], OWNER)
    return found


def rows(found: Books, by: By, days: dict[int, str] | None = None) -> Any:
    return rows_of(found, by, days or {}, lambda model: "tiny", str)


def test_a_job_goes_from_running_over_delivered_to_settled_and_its_pay_stands_beside_it() -> None:
    job = job_id(1)
    steps = [
        *matched(1, 5, OTHER, OPERATOR),
        event(6, "JobDelivered", job=job, tokensIn=3, tokensOut=4),
        event(9, "JobSettled", job=job),
        event(9, "Credited", account=OWNER, nano=70 * NANO, source=job),
        event(9, "Credited", account=OTHER, nano=30 * NANO, source=job),
    ]
    assert [rows(books(steps[:end]), "job")[0].running for end in (2, 3)] == [1, 0]
    assert rows(books(steps[:3]), "job")[0].delivered == 1
    (row,) = rows(books(steps), "job")
    assert (row.settled, row.paid, row.jobs) == (1, "70", 1)
    (by_model,) = rows(books(steps), "model")
    assert (by_model.key, by_model.paid) == ("tiny", "70")
    (begun, paid) = sorted(
        rows(books(steps), "day", {5: "2026-01-01", 9: "2026-01-02"}), key=lambda r: r.key
    )
    assert (begun.jobs, begun.paid, paid.jobs, paid.paid) == (1, "0", 0, "70")


def test_a_dispute_that_ends_without_fault_is_delivered_again() -> None:
    job = job_id(1)
    steps = [*matched(1, 5, OPERATOR), event(6, "JobDelivered", job=job, tokensIn=1, tokensOut=1)]
    steps.append(event(7, "JobDisputed", job=job))
    assert rows(books(steps), "job")[0].disputed == 1
    assert rows(books([*steps, event(8, "JobResolved", job=job)]), "job")[0].delivered == 1


def test_work_of_an_operator_that_was_rotated_away_still_counts_and_others_never_do() -> None:
    found = books(
        [
            *matched(1, 1, OPERATOR),
            event(2, "OperatorRotated", owner=OWNER, oldOperator=OPERATOR, newOperator=OTHER),
            *matched(2, 3, OTHER),
            *matched(3, 4, "0x" + "d" * 40),
            event(5, "Slashed", owner=OWNER, amount=9),
            event(5, "Slashed", owner=OTHER, amount=100),
        ]
    )
    assert set(found.jobs) == {job_id(1), job_id(2)}
    assert found.slashed_units == 9


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 10**12))))
def test_every_cut_has_the_same_sum(credits: list[tuple[int, int, int]]) -> None:
    events = [e for number in range(6) for e in matched(number, number, OPERATOR)]
    events += [
        event(10 + day, "Credited", account=OWNER, nano=amount * NANO, source=job_id(number))
        for number, day, amount in credits
    ]
    found = books(events)
    days = {block: f"2026-01-{block + 1:02}" for block in range(20)}
    total = sum(amount for _, _, amount in credits)
    for by in ("job", "day", "model"):
        table = rows(found, by, days)  # type: ignore[arg-type]
        assert sum(int(row.paid) for row in table) == total
        assert sum(row.jobs for row in table) == 6
