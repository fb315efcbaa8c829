"""What must be done next about a job, and can what the parties signed settle it?

Pure decisions over what we stored and what the chain says. Each step reads the chain first, so that
a step done twice, or done by another matcher, is seen as done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from core.money.spending import payers
from core.protocol import signing
from core.protocol.errors import CheckFailed, HeadraceError
from core.protocol.types import SignedReceipt
from matcher.records.jobs import (
    CANCELLED,
    DELIVERED,
    DISPUTED,
    EXPIRED,
    MATCHED,
    OPENING,
    SETTLED,
    Job,
    OnChain,
    SignedAck,
)


class SettlingStep(Enum):
    """What to do now."""

    WAIT = "wait"
    OPEN = "open"  # send it, as long as its acceptances hold
    FAIL = "fail"  # it was never opened and cannot be any more: nothing is locked
    ACK = "ack"
    COLLECT = "collect"  # ask the stages what they finished and for their receipts
    DELIVER = "deliver"
    FINALIZE = "finalize"
    CLOSE = "close"  # an open order has ended and everything is counted: it may be paid
    EXPIRE = "expire"  # pays what was counted, and gives back the rest
    RECORD = "record"  # it ended on chain


@dataclass(frozen=True)
class Patience:
    """How long a requester may take to acknowledge finished work (`ack_grace_s`).

    `deadline_margin_s` before the deadline the grace ends: a delivery must be mined in time. An
    open order's newest acknowledgement goes on chain then too, or when its requester ends it.
    """

    ack_grace_s: int = 20
    deadline_margin_s: int = 30


def next_step(
    job: Job,
    chain: OnChain,
    now_s: int,
    patience: Patience = Patience(),
    *,
    close_delay_s: int = 0,
) -> SettlingStep:
    """The one thing to do about a job at chain time `now_s`.

    `close_delay_s` is how long after its deadline the chain still takes acknowledgements, and
    stages' receipts of what was done.
    """
    if chain.state == "None":
        lapsed = now_s > min(job.acceptances_expire_at, job.signed.order.deadline)
        return SettlingStep.FAIL if lapsed else SettlingStep.OPEN
    if chain.state == MATCHED and job.signed.order.is_open:
        return _when_open(job, chain, now_s, patience, close_delay_s)
    if chain.state == MATCHED:
        return _when_matched(job, chain, now_s, patience, close_delay_s)
    if chain.state == DELIVERED:
        if job.ack is not None and agrees(job.ack, chain, job.signed.order.window):
            return SettlingStep.ACK
        over = now_s > chain.final_at_s and chain.open_disputes == 0
        return SettlingStep.FINALIZE if over else SettlingStep.WAIT
    ended = chain.state in (SETTLED, CANCELLED, EXPIRED)
    return SettlingStep.RECORD if ended else SettlingStep.WAIT


def _when_matched(
    job: Job, chain: OnChain, now_s: int, patience: Patience, close_delay_s: int
) -> SettlingStep:
    if job.ack is not None:
        return SettlingStep.ACK
    if now_s > chain.deadline_s:
        is_over = now_s > chain.deadline_s + close_delay_s
        return SettlingStep.EXPIRE if is_over else SettlingStep.WAIT
    if not job.complete:
        return SettlingStep.COLLECT
    last_s = chain.deadline_s - patience.deadline_margin_s
    patient_until = min(job.finished_at_s + patience.ack_grace_s, last_s)
    return SettlingStep.DELIVER if now_s >= patient_until else SettlingStep.WAIT


def _when_open(
    job: Job, chain: OnChain, now_s: int, patience: Patience, close_delay_s: int
) -> SettlingStep:
    is_late = now_s >= chain.deadline_s - patience.deadline_margin_s
    if adds(job.ack, chain):
        return SettlingStep.ACK if is_late or is_ended(job) else SettlingStep.WAIT
    if now_s > chain.deadline_s + close_delay_s:
        return SettlingStep.EXPIRE
    return SettlingStep.CLOSE if is_ended(job) and now_s < chain.deadline_s else SettlingStep.WAIT


def is_ended(job: Job) -> bool:
    """Whether the requester of an open order has ended it."""
    return job.finished_at_s > 0


def adds(signed: SignedAck | None, chain: OnChain) -> bool:
    """Whether an acknowledgement of an open order covers more than the chain has counted."""
    if signed is None:
        return False
    ack = signed.ack
    return ack.tokens_in > chain.tokens_in or ack.tokens_out > chain.tokens_out


def agrees(signed: SignedAck, chain: OnChain, window_s: int) -> bool:
    """Whether an acknowledgement ends a delivered job before its window is over: one of what was
    delivered by the deadline, or of no less than was delivered later.
    """
    acked = signed.ack.tokens_in, signed.ack.tokens_out
    delivered = chain.tokens_in, chain.tokens_out
    if chain.final_at_s <= chain.deadline_s + window_s:
        return acked == delivered
    return acked[0] >= delivered[0] and acked[1] >= delivered[1]


def check_ack(job: Job, signed: SignedAck, domain: signing.Domain) -> HeadraceError | None:
    """Whether an acknowledgement is of this job, by its requester and within its caps."""
    ack, order = signed.ack, job.signed.order
    what = "the acknowledgement is refused"
    if (ack.order_hash, ack.plan_hash) != (job.order_hash, job.plan_hash):
        return CheckFailed(what, why="it is about another order or another plan")
    if ack.tokens_in > order.max_tokens_in or ack.tokens_out > order.max_tokens_out:
        return CheckFailed(
            what,
            why=f"{ack.tokens_in} in and {ack.tokens_out} out exceed the order's caps of "
            f"{order.max_tokens_in} and {order.max_tokens_out}",
        )
    signer = signing.recover(domain, ack, signed.signature)
    if signer is None or signer.lower() not in payers(job.signed, domain):
        return CheckFailed(what, why=f"it is not signed by {order.requester}")
    return None


def check_ack_pays(
    signed: SignedAck, before: SignedAck | None, receipts: Sequence[SignedReceipt]
) -> HeadraceError | None:
    """Whether an acknowledgement covers what every stage finished, and no less than before.

    The contract takes any counts from the order's matcher, so the matcher must not help a requester
    to pay for less than was done. `receipts` are of all stages over the requests that all of them
    finished; none means that some stage did not answer, and the requester's word stands.
    """
    ack, least = signed.ack, (0, 0)
    if before is not None:
        least = (before.ack.tokens_in, before.ack.tokens_out)
    if receipts:
        done = receipts[-1].receipt
        least = max(least[0], done.tokens_in), max(least[1], done.tokens_out)
    if ack.tokens_in >= least[0] and ack.tokens_out >= least[1]:
        return None
    return CheckFailed(
        "the acknowledgement is refused",
        why=f"it pays for {ack.tokens_in} tokens in and {ack.tokens_out} out, receipts or an "
        f"earlier acknowledgement show {least[0]} and {least[1]}",
        state="nothing was settled; finished work is delivered with the stages' receipts instead",
        next_step="acknowledge what was finished, or dispute it after delivery",
        tokens_in=least[0],
        tokens_out=least[1],
    )


#: What the stored state becomes when the chain says so.
STORED = {"None": OPENING} | {
    state: state for state in (MATCHED, DELIVERED, DISPUTED, SETTLED, CANCELLED, EXPIRED)
}
