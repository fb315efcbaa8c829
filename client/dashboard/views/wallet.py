"""The requester's money: where it is, what holds it, and every movement with its transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from client.dashboard.sources.chain_log import LoggedEvent
from client.dashboard.views.overview import WalletCard
from client.gateway.copied import copied
from core.protocol.units import covering_units, whole_units
from core.runtime.commands.spreadsheet import csv_text

#: Event → what it did, the argument with the amount (in nano units where its name says so), and its
#: sign on the prepaid balance.
MOVES = {
    "Deposited": ("deposited", "amount", 1),
    "JobOpened": ("locked for a job", "maxNano", -1),
    "Paid": ("returned from a job", "refundNano", 1),
    "WithdrawRequested": ("on its way out", "amount", -1),
    "Withdrawn": ("withdrawn", "amount", 0),
    "Collected": ("collected", "amount", 0),
    "CreditWithdrawn": ("credit withdrawn", "amount", 0),
    "SpenderSet": ("a spender's limit set", "limit", 0),
}


@dataclass(frozen=True)
class Movement:
    """One line of the ledger, in whole units. `change_units` is what it did to the prepaid balance.

    What takes from it is rounded up, what adds to it is rounded down.
    """

    id: int
    name: str
    text: str
    amount_units: int
    change_units: int
    paid_units: int | None
    job_id: str | None
    tx: str
    block: int
    at_s: int | None


@dataclass(frozen=True)
class Lock:
    """Money that an unfinished job holds."""

    job_id: str
    amount_units: int
    block: int
    at_s: int | None
    back_by_s: int | None = None  # when what is not used returns at the latest; None: not known


@dataclass(frozen=True)
class WalletPage:
    """The page."""

    card: WalletCard
    thawing_units: int | None
    thaw_ready_at: int
    credit_units: int | None
    locks: tuple[Lock, ...]
    movements: tuple[Movement, ...]
    next_before: int | None
    escrow: str
    at_ms: int
    problem: str


def movement(event: LoggedEvent) -> Movement:
    """What an event of `ChainLog.movements` did."""
    text, argument, sign = MOVES[event.name]
    amount, paid = int(event.args[argument]), None
    if argument.endswith("Nano"):
        amount = covering_units(amount) if sign < 0 else whole_units(amount)
    if event.name == "Paid":
        args = event.args
        fees = int(args["matcherNano"]) + int(args["protocolNano"])
        paid = whole_units(sum(map(int, args["payNano"])) + fees)
        text = text if amount else "paid for a job"
    return copied(
        Movement,
        event,
        text=text,
        amount_units=amount,
        change_units=sign * amount,
        paid_units=paid,
        job_id=event.args.get("job"),
    )


def movements_csv(movements: Iterable[Movement]) -> str:
    """The ledger for a spreadsheet: base units, times in seconds since 1970."""
    head = ("time_s", "block", "event", "amount_units", "change_units", "job", "transaction")
    rows = (
        (m.at_s or "", m.block, m.name, m.amount_units, m.change_units, m.job_id or "", m.tx)
        for m in movements
    )
    return csv_text(head, rows)
