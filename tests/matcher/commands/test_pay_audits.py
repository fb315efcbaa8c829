"""Auditors are paid what they are owed, once, wherever the payer dies; on a real chain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.chain.chain import Fate, PreparedTransaction
from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.money.paid_audits import AuditEnd, AuditFinding, SignedFinding
from core.protocol.errors import TokenShort, UsageError
from core.runtime.commands.console import DryRunEnds
from core.runtime.database import sqlite_url
from core.runtime.folders import Folders
from core.runtime.settings import load
from matcher.audits.audit_book import AuditBook, OwedToAuditor
from matcher.commands.pay_audits import TOKEN, pay_audits, pay_one, settle
from matcher.records.store import Store
from tests.conftest import CHAIN_ID, Anvil
from tests.town.orders import key

pytestmark = pytest.mark.chain

AUDITOR, OTHER = key(60).address, key(61).address
JOB = "0x" + "0b" * 32
FEE, DEPTH = 10_000, 3


@dataclass
class Till:
    """A matcher's database, its owner's wallet, and a chain with the token."""

    chain: RpcChain
    owner: Signer
    book: AuditBook

    def earn(
        self, auditor: str, *requests: int, job: str = JOB, found: AuditEnd = AuditEnd.CLEAN
    ) -> None:
        """The auditor has answered for these."""
        self.book.draw(
            job, auditor, requests, lambda r: True, fee_units=FEE, cap_units=10**9, now=1, due_at=9
        )
        for request in requests:
            finding = AuditFinding(auditor, job, request, found, 0)
            assert self.book.keep(SignedFinding(finding, "0x" + "00" * 65), 2)

    def line(self, auditor: str = AUDITOR) -> OwedToAuditor:
        return next(line for line in self.book.owed() if line.auditor == auditor.lower())

    async def has(self, account: str = AUDITOR) -> int:
        return int(await self.chain.read(TOKEN, "balanceOf", account))

    async def begin(self) -> PreparedTransaction:
        """Sign and store the payment of `AUDITOR`, and die."""
        line = self.line()
        prepared = await self.chain.prepare(
            self.owner, TOKEN, "transfer", AUDITOR, line.amount_units
        )
        self.book.begin_payment(line, prepared, 3)
        return prepared

    async def settle(self) -> list[Fate]:
        return [payment.fate for payment in await settle(self.chain, self.book, DEPTH)]

    async def bury(self) -> None:
        await self.chain.rpc("anvil_mine", hex(DEPTH))


@pytest.fixture
async def till(
    own_anvil: Callable[..., Anvil], signers: list[Signer], tmp_path: Path
) -> AsyncIterator[Till]:
    owner = signers[0]
    chain = RpcChain(own_anvil().rpc_url, CHAIN_ID, {})
    store = Store.open(sqlite_url(tmp_path / "m.sqlite"))
    try:
        await chain.deploy(owner, TOKEN, owner.address)
        await chain.transact(owner, TOKEN, "mint", owner.address, 10 * FEE)
        made = Till(chain, owner, AuditBook(store.engine))
        made.earn(AUDITOR, 0, 1)
        yield made
    finally:
        store.close()
        await chain.close()


async def test_everybody_gets_what_it_has_earned_in_one_transfer(till: Till) -> None:
    till.earn(OTHER, 2)
    assert {line.auditor: line.amount_units for line in till.book.owed()} == {
        AUDITOR.lower(): 2 * FEE,
        OTHER.lower(): FEE,
    }
    for line in till.book.owed():
        paid = await pay_one(till.chain, till.book, till.owner, line, DEPTH)
        assert (paid.fate, paid.amount_units) == (Fate.DONE, line.amount_units)
    assert (await till.has(), await till.has(OTHER)) == (2 * FEE, FEE)
    assert till.book.owed() == []
    assert till.book.owed_units() == 0
    till.earn(AUDITOR, 3)
    assert till.line().lots == ((JOB, 3),), "only what came since"


async def test_who_dies_before_sending_pays_at_the_next_try_and_once(till: Till) -> None:
    await till.begin()
    assert await till.has() == 0
    assert till.book.owed() == [], "it is bound to the stored transfer"
    assert await till.settle() == [Fate.DONE]
    assert await till.settle() == [Fate.DONE], "not deep enough to be forgotten"
    await till.bury()
    assert await till.settle() == [Fate.DONE]
    assert await till.settle() == []
    assert await till.has() == 2 * FEE


async def test_who_dies_after_sending_pays_once(till: Till) -> None:
    prepared = await till.begin()
    await till.chain.push(prepared)
    await till.chain.mined_as(prepared)
    assert [p.fate for p in till.book.unsettled()] == [Fate.PENDING], "nobody noted it"
    assert await till.settle() == [Fate.DONE]
    assert await till.has() == 2 * FEE
    assert till.book.owed() == []


async def test_what_waits_for_a_block_is_not_sent_as_another(till: Till) -> None:
    await till.chain.rpc("evm_setAutomine", False)
    prepared = await till.begin()
    for _ in range(2):
        await till.chain.push(prepared)
    assert [p.fate for p in await settle(till.chain, till.book, DEPTH, sends=False)] == [
        Fate.PENDING
    ]
    assert till.book.owed() == []
    await till.chain.rpc("anvil_mine", hex(1))
    assert await till.settle() == [Fate.DONE]
    assert await till.has() == 2 * FEE


async def test_a_transfer_whose_nonce_is_gone_is_paid_by_another_one_and_not_before_it_is_sure(
    till: Till,
) -> None:
    await till.begin()
    await till.chain.send_eth(till.owner, OTHER, 1)  # the daemon, with the same key
    assert await till.settle() == [Fate.PENDING]
    assert till.book.owed() == [], "a reorganisation could bring it back"
    await till.bury()
    assert await till.settle() == [Fate.VOID]
    assert await till.settle() == []
    paid = await pay_one(till.chain, till.book, till.owner, till.line(), DEPTH)
    assert paid.fate is Fate.DONE
    assert await till.has() == 2 * FEE


async def test_a_transfer_that_failed_is_owed_again_once_that_is_sure(till: Till) -> None:
    prepared = await till.begin()
    await till.chain.rpc("anvil_setCode", till.chain.addresses[TOKEN], "0xfe")  # every call fails
    assert await till.settle() == [Fate.REVERTED]
    assert till.book.owed() == [], "a reorganisation could let it succeed"
    await till.bury()
    assert await till.settle() == [Fate.REVERTED]
    assert await till.settle() == []
    assert till.line().amount_units == 2 * FEE
    assert (await till.chain.outcome_of(prepared, DEPTH)).is_final


async def test_a_block_that_is_lost_loses_no_payment(till: Till) -> None:
    before = await till.chain.rpc("evm_snapshot")
    await pay_one(till.chain, till.book, till.owner, till.line(), DEPTH)
    assert await till.has() == 2 * FEE
    await till.chain.rpc("evm_revert", before)
    assert await till.has() == 0
    assert await till.settle() == [Fate.DONE], "sent again, the same one"
    assert await till.has() == 2 * FEE


async def test_two_payers_at_once_are_one(till: Till) -> None:
    line = till.line()
    prepared = [
        await till.chain.prepare(till.owner, TOKEN, "transfer", AUDITOR, line.amount_units + more)
        for more in (0, 1)
    ]
    till.book.begin_payment(line, prepared[0], 3)
    with pytest.raises(UsageError, match="being paid already"):
        till.book.begin_payment(line, prepared[1], 3)
    assert len(till.book.unsettled()) == 1
    assert await till.settle() == [Fate.DONE]
    assert await till.has() == 2 * FEE


class Asking:
    """`Run` of a person who pays, as far as `pay_audits` needs it."""

    def __init__(self, owner: Signer, *, dry_run: bool = False) -> None:
        self.settings = load(environ={}, folders=Folders.at(Path("/nowhere")))
        self.options = SimpleNamespace(dry_run=dry_run)
        self.owner, self.said, self.shown = owner, list[Any](), dict[str, str]()

    def unlock(self) -> Signer:
        return self.owner

    def confirm(self, question: str, summary: dict[str, str]) -> None:
        self.shown = summary
        if self.options.dry_run:
            raise DryRunEnds

    def emit(self, result: Any) -> None:
        self.said = result


async def pay(till: Till, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Asking:
    @asynccontextmanager
    async def opened(settings: Any) -> AsyncIterator[Any]:
        yield till.chain, till.book

    monkeypatch.setattr("matcher.commands.pay_audits.open_books", opened)
    run: Any = Asking(till.owner, **options)
    with suppress(DryRunEnds):
        await pay_audits(run)
    return run


async def test_command_finishes_what_was_begun_and_pays_what_came_since(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    await till.begin()
    till.earn(OTHER, 5)
    run = await pay(till, monkeypatch)
    assert run.shown[OTHER] == "0.01usd for 1 request"
    assert [(row.auditor, row.amount, row.state) for row in run.said] == [
        (AUDITOR, "0.02usd", "done"),
        (OTHER, "0.01usd", "done"),
    ]
    assert (await till.has(), await till.has(OTHER)) == (2 * FEE, FEE)
    again = await pay(till, monkeypatch)
    assert again.shown == {}, "nothing is asked where nothing is owed"
    assert (await till.has(), await till.has(OTHER)) == (2 * FEE, FEE)


async def test_dry_run_sends_nothing_not_even_what_was_begun(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    await till.begin()
    till.earn(OTHER, 5)
    before = await till.chain.nonce(till.owner.address)
    run = await pay(till, monkeypatch, dry_run=True)
    assert OTHER in run.shown
    assert await till.chain.nonce(till.owner.address) == before
    assert [line.auditor for line in till.book.owed()] == [OTHER.lower()]


async def test_wallet_that_cannot_pay_all_pays_nobody_and_says_how_much_is_short(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    till.earn(OTHER, *range(10, 19))  # with the others 11 fees, and the wallet has 10
    with pytest.raises(TokenShort) as caught:
        await pay(till, monkeypatch)
    assert "0.01usd" in caught.value.next_step
    assert till.book.unsettled() == []
    assert await till.has() == 0
