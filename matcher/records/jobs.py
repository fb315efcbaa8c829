"""What is a job, as its matcher knows it?

Two views of one thing: `Job` is what we signed for, stored and promised; `OnChain` is what
TaskRegistry says of it. The chain is right; the stored state only says what we knew last, and
`settling` decides from both what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.protocol import signing
from core.protocol.ids import Kind, short
from core.protocol.types import Ack, SignedAcceptance, SignedOrder, SignedReceipt, Stage

OPENING = "Opening"  # every stage accepted, the chain has not confirmed yet
MATCHED = "Matched"
DELIVERED = "Delivered"
DISPUTED = "Disputed"
SETTLED = "Settled"
CANCELLED = "Cancelled"
EXPIRED = "Expired"
FAILED = "Failed"  # never opened: nothing was locked
ENDED = frozenset({SETTLED, CANCELLED, EXPIRED, FAILED})
#: While a stage may still be computing: its slot is taken.
BUSY = frozenset({OPENING, MATCHED})

#: ITaskRegistry.State, in its order.
CHAIN_STATES = ("None", "Open", MATCHED, DELIVERED, DISPUTED, SETTLED, CANCELLED, EXPIRED)


@dataclass(frozen=True)
class SignedAck:
    """The requester's acknowledgement and its signature."""

    ack: Ack
    signature: str


@dataclass(frozen=True)
class Job:
    """An order with the pipeline that accepted it. Times are chain seconds, money base units.

    `refunded_units` is all that went back to the requester, `withheld_units` the part of it that
    stages at fault were not paid.
    """

    job_id: str
    signed: SignedOrder
    plan: tuple[Stage, ...]
    endpoints: tuple[str, ...]
    acceptances: tuple[SignedAcceptance, ...]
    locked_units: int
    state: str = OPENING
    stale: bool = False
    final_at_s: int = 0
    finished_at_s: int = 0  # when we saw every request finished at every stage; 0: not yet
    tokens_in: int = 0
    tokens_out: int = 0
    paid_units: int | None = None
    refunded_units: int | None = None
    withheld_units: int | None = None
    open_tx: str = ""
    deliver_tx: str = ""
    end_tx: str = ""
    failure: str = ""
    created_at: int = 0
    updated_at: int = 0
    beacon: str = ""  # hash of the newest block that showed that its receipts are signed
    ack: SignedAck | None = None
    receipts: tuple[SignedReceipt, ...] = ()  # one a stage and in its order, or none at all

    @property
    def name(self) -> str:
        """Its printed id, for people and logs."""
        return short(Kind.JOB, self.job_id)

    @property
    def order_hash(self) -> str:
        return signing.order_hash(self.signed.order)

    @property
    def plan_hash(self) -> str:
        return signing.plan_hash(self.plan)

    @property
    def acceptances_expire_at(self) -> int:
        """The last second in which every stage keeps its word; 0 where we hold no acceptances.

        The chain does not ask for acceptances: a job adopted from it came without them.
        """
        return min((a.acceptance.expiry for a in self.acceptances), default=0)

    @property
    def complete(self) -> bool:
        """Whether we hold a receipt of every stage over every request, in a ring, to deliver it."""
        receipts = [signed.receipt for signed in self.receipts]
        return (
            len(receipts) == len(self.plan)
            and all(receipt.requests == self.signed.order.requests for receipt in receipts)
            and receipts[0].input_root == receipts[-1].output_root
        )


@dataclass(frozen=True)
class OnChain:
    """What TaskRegistry.jobOf says of an order with one plan; of another plan's job: None."""

    state: str
    deadline_s: int
    final_at_s: int
    tokens_in: int
    tokens_out: int
    open_disputes: int

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> OnChain:
        """From `Chain.read("TaskRegistry", "jobOf", id, plan_hash)`."""
        return cls(
            state=CHAIN_STATES[int(found["state"])],
            deadline_s=int(found["deadline"]),
            final_at_s=int(found["finalAt"]),
            tokens_in=int(found["tokensIn"]),
            tokens_out=int(found["tokensOut"]),
            open_disputes=int(found["openDisputes"]),
        )
