"""What a matcher's owner reads of the audits that it pays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.chain.chain import Fate, PreparedTransaction, TransactionFate
from core.money.paid_audits import AuditEnd, AuditFinding, SignedFinding
from core.runtime.database import sqlite_url
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from matcher.audits.audit_book import AuditBook
from matcher.commands.audit_lists import list_auditors, list_audits, state_of
from matcher.records.store import Store
from tests.town.chain import FakeChain
from tests.town.fleet import make_job, make_order
from tests.town.orders import key, sign_order

AUDITOR, OTHER = key(60).address, key(61).address
JOB, SECOND, GONE = ("0x" + byte * 32 for byte in ("0b", "0c", "0d"))
FEE, DUE = 10_000, 2_000_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    url = sqlite_url(tmp_path / "m.sqlite")
    return load(flags={"matcher.db_url": url}, environ={}, folders=Folders.at(tmp_path))


@pytest.fixture
def book(settings: Settings) -> Iterator[AuditBook]:
    store = Store.open(settings.matcher.db_url)
    yield AuditBook(store.engine)
    store.close()


def draw(book: AuditBook, auditor: str, job: str, *requests: int, due_at: int = DUE) -> None:
    book.draw(
        job, auditor, requests, lambda r: True, fee_units=FEE, cap_units=10**9, now=1, due_at=due_at
    )


def find(book: AuditBook, auditor: str, job: str, request: int, found: AuditEnd, at: int) -> None:
    finding = AuditFinding(auditor, job, request, found, 1)
    assert book.keep(SignedFinding(finding, "0x" + "00" * 65), at)


def begin(book: AuditBook) -> int:
    (owed,) = book.owed()
    prepared = PreparedTransaction("TestUSD.transfer", key(1).address, 1, "0x" + "ab" * 32, "0x02")
    return book.begin_payment(owed, prepared, 3).number


def states(settings: Settings) -> dict[int, str]:
    return {row.request: row.state for row in list_audits(settings, 10)}


def test_request_goes_from_drawn_to_paid(book: AuditBook, settings: Settings) -> None:
    draw(book, AUDITOR, JOB, 0, 1)
    assert states(settings) == {0: "drawn", 1: "drawn"}
    find(book, AUDITOR, JOB, 1, AuditEnd.FAULT, 5)
    assert states(settings) == {0: "drawn", 1: "owed"}
    payment = begin(book)
    assert states(settings) == {0: "drawn", 1: "being paid"}
    book.note(payment, TransactionFate(Fate.DONE, is_final=False, block_number=7))
    assert states(settings) == {0: "drawn", 1: "paid"}
    (row,) = [row for row in list_audits(settings, 10) if row.request == 1]
    assert (row.auditor, row.found, row.stage, row.fee) == (AUDITOR, "fault", 1, "0.01usd")
    assert row.tx == "0x" + "ab" * 32
    assert len(list_audits(settings, 1)) == 1


@pytest.mark.parametrize("fate", [Fate.VOID, Fate.REVERTED])
def test_payment_that_failed_is_owed_once_that_is_final(
    book: AuditBook, settings: Settings, fate: Fate
) -> None:
    draw(book, AUDITOR, JOB, 0)
    find(book, AUDITOR, JOB, 0, AuditEnd.CLEAN, 5)
    payment = begin(book)
    book.note(payment, TransactionFate(fate, is_final=False))
    assert states(settings) == {0: "being paid"}
    book.note(payment, TransactionFate(fate, is_final=True))
    assert states(settings) == {0: "owed"}


def test_what_was_due_and_did_not_come_is_late(book: AuditBook) -> None:
    draw(book, AUDITOR, JOB, 0, due_at=9)
    (lot,) = book.lots()
    assert [state_of(lot, {}, now) for now in (9, 10)] == ["drawn", "late"]


async def test_auditor_that_cleared_what_the_chain_convicted_is_shown(
    book: AuditBook, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = FakeChain()
    guilty, sound = (
        make_job(sign_order(make_order(nonce=nonce)), [(1, 0, 10), (2, 10, 30)]) for nonce in (1, 2)
    )
    store = Store.open(settings.matcher.db_url)
    for job in (guilty, sound):
        store.begin(job, 1)
    store.close()

    def job_of(job_id: str, plan_hash: str) -> dict[str, int]:
        is_guilty = (job_id, plan_hash) == (guilty.job_id, guilty.plan_hash)
        return {"faultMask": 0b10 if is_guilty else 0}

    chain.answers["TaskRegistry.jobOf"] = job_of

    @asynccontextmanager
    async def opened(settings: Settings) -> AsyncIterator[Any]:
        yield chain, book

    monkeypatch.setattr("matcher.commands.audit_lists.open_books", opened)
    draw(book, AUDITOR, guilty.job_id, 0, 1)
    draw(book, OTHER, SECOND, 0, 1)
    draw(book, OTHER, sound.job_id, 0)
    draw(book, OTHER, GONE, 0)
    for at, (who, job, request, found) in enumerate(
        [
            (AUDITOR, guilty.job_id, 0, AuditEnd.CLEAN),
            (AUDITOR, guilty.job_id, 1, AuditEnd.CLEAN),
            (OTHER, SECOND, 0, AuditEnd.CLEAN),
            (OTHER, SECOND, 1, AuditEnd.FAULT),
            (OTHER, sound.job_id, 0, AuditEnd.CLEAN),
            (OTHER, GONE, 0, AuditEnd.CLEAN),
        ]
    ):
        find(book, who, job, request, found, at)
    rows = {row.auditor: row for row in await list_auditors(settings, 10)}
    assert msgspec.to_builtins(rows[AUDITOR]) == {
        "auditor": AUDITOR,
        "drawn": 2,
        "late": 0,
        "owed": 2,
        "being_paid": 0,
        "paid": 0,
        "owed_amount": "0.02usd",
        "cleared_jobs": 1,
        "contradicted": 1,
    }
    assert (rows[OTHER].cleared_jobs, rows[OTHER].contradicted) == (2, 0)
    assert book.cleared(1) == [(OTHER.lower(), GONE)], "the newest"
