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


def paid(block: int, number: int, *pay: dict[str, int]) -> ChainEvent:
    """What a job paid its stages, by operator, in whole units."""
    places = [place for group in pay for place in group.items()]
    operators, nano = [who for who, _ in places], [units * NANO for _, units in places]
    return event(block, "Paid", job=job_id(number), operators=operators, payNano=nano)


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
        paid(9, 1, {OTHER: 30, OPERATOR: 70}),
    ]
    assert [rows(books(steps[:end]), "job")[0].running for end in (2, 3)] == [1, 0]
    assert rows(books(steps[:3]), "job")[0].delivered == 1
    (row,) = rows(books(steps), "job")
    assert (row.settled, row.paid, row.jobs) == (1, "70", 1)
    (by_model,) = rows(books(steps), "model")
    assert (by_model.key, by_model.paid) == ("tiny", "70")
    (begun, end) = sorted(
        rows(books(steps), "day", {5: "2026-01-01", 9: "2026-01-02"}), key=lambda r: r.key
    )
    assert (begun.jobs, begun.paid, end.jobs, end.paid) == (1, "0", 0, "70")


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
            paid(5, 1, {OPERATOR: 5}),
            paid(5, 2, {OTHER: 7}),
            paid(5, 3, {"0x" + "d" * 40: 11}),
            event(6, "Collected", to=OWNER, account=OPERATOR, payee=0, amount=4),
            event(6, "Collected", to=OWNER, account=OTHER, payee=0, amount=2),
            event(6, "Collected", to=OTHER, account="0x" + "d" * 40, payee=0, amount=11),
            event(6, "Collected", to=OWNER, account=OTHER, payee=1, amount=100),
            event(5, "Slashed", owner=OWNER, amount=9),
            event(5, "Slashed", owner=OTHER, amount=100),
        ]
    )
    assert set(found.jobs) == {job_id(1), job_id(2)}
    assert found.slashed_units == 9
    assert found.payments == [(5, 5 * NANO), (5, 7 * NANO)]
    assert found.collected_units == 6


def test_an_operator_that_stands_in_a_plan_twice_is_paid_twice() -> None:
    found = books([*matched(1, 1, OPERATOR, OTHER, OPERATOR)])
    take_in(found, [paid(2, 1, {OPERATOR: 3, OTHER: 50}, {OPERATOR: 4})], OWNER)
    (row,) = rows(found, "job")
    assert row.paid == "7"


def test_pay_of_a_session_adds_up_and_pay_of_others_is_no_payment() -> None:
    steps = [*matched(1, 1, OPERATOR), *(paid(block, 1, {OPERATOR: 2}) for block in (2, 3))]
    found = books([*steps, *matched(2, 4, OTHER), paid(5, 2, {OTHER: 9})])
    assert found.payments == [(2, 2 * NANO), (3, 2 * NANO)]
    assert [row.paid for row in rows(found, "job")] == ["4"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 10**12))))
def test_every_cut_has_the_same_sum(payments: list[tuple[int, int, int]]) -> None:
    events = [e for number in range(6) for e in matched(number, number, OPERATOR)]
    events += [
        paid(10 + day, number, {OPERATOR: amount, OTHER: 1}) for number, day, amount in payments
    ]
    found = books(events)
    days = {block: f"2026-01-{block + 1:02}" for block in range(20)}
    total = sum(amount for _, _, amount in payments)
    for by in ("job", "day", "model"):
        table = rows(found, by, days)  # type: ignore[arg-type]
        assert sum(int(row.paid) for row in table) == total
        assert sum(row.jobs for row in table) == 6
