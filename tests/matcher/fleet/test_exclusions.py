"""Whom strikes and auditors' words leave out, whom they put last, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.money.audit_report import AuditReport, OperatorAudits
from matcher.fleet.exclusions import Marks, marks_of, named
from matcher.fleet.fleet_view import ChainStanding
from tests.town.fleet import machine_key
from tests.town.orders import NOW_S, key

AUDITOR, OTHER = key(50).address, key(51).address
DAY = 86_400
ONE, TWO, OLD_KEY = (machine_key(n).address for n in (1, 2, 3))
OWNER_1, OWNER_2 = key(201).address, key(202).address
STANDINGS = {ONE: ChainStanding(OWNER_1, 500, True), TWO: ChainStanding(OWNER_2, 500, True)}


def said(
    operator: str,
    *,
    faults: int = 0,
    withheld: int = 0,
    suspicious: int = 0,
    at: int = NOW_S,
    by: str = AUDITOR,
) -> AuditReport:
    audits = OperatorAudits(
        operator=operator.lower(),
        jobs=9,
        clean=9 - faults - withheld - suspicious,
        faults=faults,
        withheld=withheld,
        suspicious=suspicious,
        last_fault_at=at if faults or suspicious else 0,
        last_withheld_at=at if withheld else 0,
    )
    return AuditReport(by, 1, (audits,))


def marks(*reports: AuditReport, owners: dict[str, str] | None = None, now: int = NOW_S) -> Marks:
    return marks_of(STANDINGS, reports, owners or {}, now, 30 * DAY)


def test_good_words_and_none_change_nothing() -> None:
    assert marks() == Marks()
    assert marks(said(ONE)) == Marks()
    assert marks().of(ONE) == ("good", "")


def test_fault_leaves_out_and_withheld_rows_put_last() -> None:
    found = marks(said(ONE, faults=2), said(TWO, withheld=1, by=OTHER))
    assert found.of(ONE)[0] == "left out" and AUDITOR in found.of(ONE)[1]
    assert found.of(TWO)[0] == "last" and OTHER in found.of(TWO)[1]


def test_what_stands_out_of_honest_noise_is_evicted_though_nobody_is_slashed_for_it() -> None:
    assert marks(said(ONE, suspicious=1)).of(ONE)[0] == "left out"


def test_strikes_put_last_for_good() -> None:
    struck = STANDINGS | {ONE: ChainStanding(OWNER_1, 500, True, strikes=1)}
    assert marks_of(struck, (), {}, NOW_S + 1000 * DAY, DAY).of(ONE)[0] == "last"


def test_another_key_of_the_same_owner_is_the_same_machine() -> None:
    owners = {OLD_KEY.lower(): OWNER_1.lower()}
    assert marks(said(OLD_KEY, faults=1), owners=owners).of(ONE)[0] == "left out"
    assert marks(said(OLD_KEY, faults=1)) == Marks(), "nobody knows yet whose it was"
    assert named([said(OLD_KEY, faults=1), said(ONE)]) == {OLD_KEY.lower()}


@given(st.integers(0, 100 * DAY))
def test_findings_count_for_so_long_and_no_longer(age: int) -> None:
    found = marks(said(ONE, faults=1, at=NOW_S - age), said(TWO, withheld=1, at=NOW_S - age))
    places = ("left out", "last") if age <= 30 * DAY else ("good", "good")
    assert (found.of(ONE)[0], found.of(TWO)[0]) == places


def test_one_auditors_good_word_does_not_undo_anothers_finding() -> None:
    assert marks(said(ONE, faults=1), said(ONE, by=OTHER)).of(ONE)[0] == "left out"
