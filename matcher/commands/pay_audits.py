"""`matcher audits pay`: how is every auditor paid what it is owed, exactly once?

A transfer is signed and stored, bound to the audits that it pays, before it is sent. Whoever dies
in between finds it again: it is sent once more, which the chain takes once, for it spends one
nonce. Only when another transaction has spent that nonce, deep enough that no reorganisation brings
it back, is what it was for owed again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from core.chain.chain import Fate
from core.chain.rpc import RpcChain
from core.protocol import ids
from core.protocol.errors import ChainUnreachable, ContractRefused, TokenShort
from core.protocol.signing import DigestSigner
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result
from core.runtime.logs import get_logger
from core.runtime.settings import Settings
from matcher.audits.audit_book import AuditBook, OwedToAuditor, Payment
from matcher.daemon.start import chain_of, database_url
from matcher.records.store import Store

TOKEN = "TestUSD"
log = get_logger(__name__)


class AuditPaid(Result, frozen=True):
    """`audits pay`: a transfer of this time, or an earlier one that was not final."""

    auditor: str
    amount: str
    state: str
    tx: str


async def pay_audits(run: Run) -> None:
    """Finish earlier payments, then pay every auditor what it has earned since, in one transfer
    each.

    Raises TokenShort and GasShort before anything is sent, and ChainUnreachable; repeating the
    command is always safe.
    """
    settings = run.settings
    signer, show = run.unlock(), settings.show_token
    async with open_books(settings) as (chain, book):
        depth = settings.network.reorg_window_blocks
        earlier = await settle(chain, book, depth, sends=not run.options.dry_run)
        owed = book.owed()
        need = sum(line.amount_units for line in owed)
        if owed:
            have = int(await chain.read(TOKEN, "balanceOf", signer.address))
            if have < need:
                raise TokenShort(
                    "the auditors cannot be paid",
                    have=have,
                    need=need,
                    address=signer.address,
                    fix=f"send {show(need - have)} to {signer.address}",
                    show=show,
                    chain_id=chain.chain_id,
                )
            run.confirm("Pay it?", _summary(owed, signer.address, show))
        paid = [await pay_one(chain, book, signer, line, depth) for line in owed]
    run.emit(
        [
            AuditPaid(
                auditor=ids.address(payment.auditor),
                amount=show(payment.amount_units),
                state=str(payment.fate),
                tx=payment.prepared.tx_hash,
            )
            for payment in [*earlier, *paid]
        ]
    )


async def pay_one(
    chain: RpcChain, book: AuditBook, signer: DigestSigner, owed: OwedToAuditor, depth_blocks: int
) -> Payment:
    """One transfer, stored before it is sent, until it is mined.

    Raises UsageError when somebody else pays it at this moment.
    """
    to = ids.address(owed.auditor)
    prepared = await chain.prepare(signer, TOKEN, "transfer", to, owed.amount_units)
    payment = book.begin_payment(owed, prepared, int(time.time()))
    try:
        await chain.push(prepared)
        await chain.mined_as(prepared)
    except ChainUnreachable as error:
        raise ChainUnreachable(
            error.what,
            error.why,
            state=f"payment {payment.number}, transaction {prepared.tx_hash}, is stored and may "
            f"still be mined",
            next_step="matcher audits pay: it finishes that payment and pays nothing twice",
        ) from None
    return await _look(chain, book, payment, depth_blocks)


async def settle(
    chain: RpcChain, book: AuditBook, depth_blocks: int, *, sends: bool = True
) -> list[Payment]:
    """Every payment that was not final, as it is now; those that no block holds are sent again.

    Raises ChainUnreachable.
    """
    found = []
    for payment in book.unsettled():
        now = await _look(chain, book, payment, depth_blocks)
        if now.fate is Fate.PENDING and sends:
            now = await _send_again(chain, book, now, depth_blocks)
        found.append(now)
    return found


async def _send_again(
    chain: RpcChain, book: AuditBook, payment: Payment, depth_blocks: int
) -> Payment:
    try:
        await chain.push(payment.prepared)
        await chain.mined_as(payment.prepared)
    except ContractRefused:
        log.warning("a transfer to an auditor failed", tx=payment.prepared.tx_hash)
    except ChainUnreachable:
        if await chain.nonce(payment.prepared.sender) <= payment.prepared.nonce:
            raise
        # Another transaction has spent its nonce; once that lies deep enough, this one is void and
        # its audits are owed again.
        log.warning("a transfer to an auditor waits", tx=payment.prepared.tx_hash)
    return await _look(chain, book, payment, depth_blocks)


async def _look(chain: RpcChain, book: AuditBook, payment: Payment, depth_blocks: int) -> Payment:
    outcome = await chain.outcome_of(payment.prepared, depth_blocks)
    book.note(payment.number, outcome)
    return replace(payment, fate=outcome.fate, is_final=outcome.is_final)


def _summary(owed: list[OwedToAuditor], wallet: str, show: Callable[[int], str]) -> dict[str, str]:
    lines: dict[str, str] = {
        ids.address(line.auditor): f"{show(line.amount_units)} for {_requests(len(line.lots))}"
        for line in owed
    }
    total = show(sum(line.amount_units for line in owed))
    return {**lines, "in all": f"{total}, from wallet {wallet}"}


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


@asynccontextmanager
async def open_books(settings: Settings) -> AsyncIterator[tuple[RpcChain, AuditBook]]:
    """The chain and the matcher's database. Raises ConfigError if they do not belong together."""
    chain, store = chain_of(settings), Store.open(database_url(settings))
    try:
        store.bind(chain.chain_id, chain.addresses["TaskRegistry"])
        await chain.check()
        yield chain, AuditBook(store.engine)
    finally:
        store.close()
        await chain.close()
