"""Which signed orders have no job that we know, and how is one made void or its money taken back?

A matcher that took an order and did not answer may open it until its deadline. Revoking its nonce
makes it void; once it is open on chain, cancelling brings back what it locks.
"""

from __future__ import annotations

from contextlib import closing

from client.commands.ask.job_follow import Ended, close_delay_s, end_on_chain, way_out
from client.context import Context, open_context, open_store
from client.pipeline.on_chain import find_job, is_nonce_used
from client.pipeline.pipeline import Match
from client.records.store import SentOrderRow, signed_of
from core.money import pricing
from core.protocol import ids
from core.protocol.errors import UsageError
from core.protocol.types import JobState
from core.protocol.units import format_duration, format_moment
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result
from core.runtime.settings import Settings

MAY_BE_OPENED, USED, VOID = "may be opened", "opened or revoked", "void"


class SentOrder(Result, frozen=True):
    """`orders ls`: an order whose job is not known here."""

    order: str
    nonce: int
    matcher: str
    requests: int
    locks: str
    deadline: str
    state: str


class Revoked(Result, frozen=True):
    """`orders revoke`."""

    nonce: int
    order: str
    gas: int
    tx: str


async def list_orders(settings: Settings) -> list[SentOrder]:
    """Orders that were handed in and whose jobs are not known, oldest first."""
    with closing(open_store(settings)) as store:
        rows = store.orders()
    async with open_context(settings) as context:
        return [await _line(context, row) for row in rows]


async def _line(context: Context, row: SentOrderRow) -> SentOrder:
    order = signed_of(row).order
    model = await context.model(order.model_id)
    state = MAY_BE_OPENED if await context.chain.now() <= order.deadline else VOID
    if await is_nonce_used(context.chain, order):
        state = USED
    return SentOrder(
        order=ids.short(ids.Kind.JOB, row.job_id),
        nonce=order.nonce,
        matcher=order.matcher,
        requests=order.requests,
        locks=context.settings.show_token(pricing.max_amount(order, model.spec)),
        deadline=format_moment(order.deadline),
        state=state,
    )


async def revoke_order(run: Run, typed: str) -> Revoked:
    """Make an order void, by its id, or any order with a nonce. It costs gas and nothing else.

    Raises UsageError where the nonce is used, or the wallet is not the requester's.
    """
    signer, row = run.unlock(), None
    if not typed.isdecimal():
        row = _find(run.settings, typed)
    order = None if row is None else signed_of(row).order
    nonce = int(typed) if order is None else order.nonce
    name = "" if row is None else ids.short(ids.Kind.JOB, row.job_id)
    if order is not None and order.requester.lower() != signer.address.lower():
        raise UsageError(
            "only its requester revokes an order",
            f"that is {order.requester}, the wallet is {signer.address}",
            next_step="name the requester's wallet with --wallet, or let the deadline pass",
        )
    async with open_context(run.settings) as context:
        chain = context.chain
        if await chain.read("TaskRegistry", "isNonceUsed", signer.address, nonce):
            raise UsageError(
                f"nonce {nonce} is used already",
                "a job was opened with it, or it was revoked before",
                next_step=f"client orders cancel {name or 'ORDER'}, once its deadline has passed",
            )
        gas = await chain.simulate(signer.address, "TaskRegistry", "revokeNonce", nonce)
        summary = {
            "nonce": str(nonce),
            "order": name or "any with this nonce",
            "means": "no matcher can open it any more; nothing was locked for it",
            "gas": str(gas),
        }
        run.confirm("Revoke it?", summary)
        sent = await chain.transact(signer, "TaskRegistry", "revokeNonce", nonce)
    if row is not None:
        with closing(open_store(run.settings)) as store:
            store.forget_order(row.job_id)
    return Revoked(nonce, name, sent.gas_used, sent.tx_hash)


async def cancel_order(run: Run, typed: str) -> Ended:
    """Take back what an order locks that is open on chain: see `client jobs cancel`.

    One without machines returns everything at once. One that its matcher opened with a plan does so
    after its deadline and the delay, less the opening fee. Raises UsageError before.
    """
    row, signer = _find(run.settings, typed), run.unlock()
    match = Match(row.job_id, signed_of(row), (), (), "")
    name = ids.short(ids.Kind.JOB, row.job_id)
    async with open_context(run.settings) as context:
        found = await find_job(context.chain, match, context.settings.network.deploy_block)
        left_s = found.said["deadline"] - await context.chain.now()
        delay_s = await close_delay_s(context)
        if found.state is JobState.MATCHED and left_s + delay_s >= 0:
            raise UsageError(
                f"{name} cannot be cancelled yet",
                f"its matcher {found.order.matcher} opened it with machines, which nobody asks",
                state="its lock returns after its deadline and a delay, less the opening fee",
                next_step=f"wait {format_duration(left_s + delay_s)}, "
                f"then: client orders cancel {name}",
            )
        function = way_out(name, found.state, left_s, delay_s)
        ended = await end_on_chain(run, context, signer, match, function)
    with closing(open_store(run.settings)) as store:
        store.forget_order(row.job_id)
    return ended


def _find(settings: Settings, typed: str) -> SentOrderRow:
    with closing(open_store(settings)) as store:
        return ids.find(ids.Kind.JOB, typed, store.orders(), lambda row: row.job_id)
