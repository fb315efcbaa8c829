"""When does a miner bring an acknowledgement on chain itself, or end a job to be paid?

When its matcher has not, and time runs out.

The newest acknowledgement counts for every stage, from any sender; the chain takes it until a while
after the order's deadline or closing. When that is over anybody may end the job, which pays what
was counted. Stages take turns, the first one first, so that only one pays for the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from core.chain.chain import Chain
from core.protocol.errors import ContractRefused, GasShort
from core.protocol.signing import DigestSigner
from core.protocol.types import JobState
from core.runtime.logs import get_logger
from miner.records.store import StoredJob
from miner.serving.receipts import ReceiptBook

log = get_logger(__name__)


class ClaimStep(Enum):
    """What a stage should do about a job now."""

    NOTHING = "nothing"
    ACK = "acknowledgement"
    END = "end"


@dataclass(frozen=True)
class JobSeen:
    """What the chain says of a job with the plan that was worked for."""

    state: JobState
    deadline_s: int
    tokens_in: int
    tokens_out: int


def turn_s(since_s: int, while_s: int, stage: int, stages: int) -> int:
    """When it is this stage's turn: in the second and third quarter of `while_s` from then."""
    quarter = while_s // 4
    return since_s + quarter + 2 * quarter * stage // stages


def due_now(
    seen: JobSeen,
    acked: tuple[int, int],
    now_s: int,
    close_delay_s: int,
    stage: int,
    stages: int,
) -> ClaimStep:
    """What this stage should do, who holds an acknowledgement over these tokens in and out."""
    if seen.state is not JobState.MATCHED:
        return ClaimStep.NOTHING
    over_s = seen.deadline_s + close_delay_s
    if acked[0] > seen.tokens_in or acked[1] > seen.tokens_out:
        is_turn = now_s >= turn_s(seen.deadline_s, close_delay_s, stage, stages)
        return ClaimStep.ACK if is_turn else ClaimStep.NOTHING
    is_counted = seen.tokens_in > 0 or seen.tokens_out > 0
    is_turn = now_s >= turn_s(over_s, close_delay_s, stage, stages)
    return ClaimStep.END if is_counted and is_turn else ClaimStep.NOTHING


class Claims:
    """Looks after the acknowledgements that this miner holds, and the pay that they bring."""

    def __init__(self, chain: Chain, signer: DigestSigner, book: ReceiptBook) -> None:
        self._chain, self._signer, self._book = chain, signer, book
        self._close_delay_s: int | None = None

    async def look(self, now_s: int) -> int:
        """Send what is due at chain time `now_s`; how many were. Raises ChainUnreachable."""
        store, sent = self._book.store, 0
        for job in await self._book.disk(store.live_jobs):
            kept = await self._book.disk(store.ack, job.order_hash, job.plan_hash)
            if kept is None and now_s <= job.order.deadline:
                continue
            plan, acked = list(job.plan), (0, 0)
            if kept is not None:
                acked = kept[0].tokens_in, kept[0].tokens_out
            match await self._due_now(job, acked, now_s):
                case ClaimStep.ACK if kept is not None:
                    sent += await self._send(job, "settleAck", job.order, *kept, plan)
                case ClaimStep.END:
                    sent += await self._send(job, "expire", job.order, plan)
        return sent

    async def _due_now(self, job: StoredJob, acked: tuple[int, int], now_s: int) -> ClaimStep:
        if self._close_delay_s is None:
            params = await self._chain.read("TaskRegistry", "params")
            self._close_delay_s = int(params["closeDelaySeconds"])
        found = await self._chain.read("TaskRegistry", "jobOf", job.job_id, job.plan_hash)
        seen = JobSeen(
            JobState(int(found["state"])),
            int(found["deadline"]),
            int(found["tokensIn"]),
            int(found["tokensOut"]),
        )
        return due_now(seen, acked, now_s, self._close_delay_s, job.stage, len(job.plan))

    async def _send(self, job: StoredJob, function: str, *args: Any) -> bool:
        name = job.job_id[:10]
        try:
            sent = await self._chain.transact(self._signer, "TaskRegistry", function, *args)
        except ContractRefused as error:  # another sender was quicker, or the job ended meanwhile
            log.info("a claim is not taken", job=name, by=function, why=str(error))
            return False
        except GasShort as error:
            log.warning("a claim waits for fees", job=name, by=function, why=str(error))
            return False
        log.info("claim sent", job=name, by=function, tx=sent.tx_hash)
        return True
