"""When does a miner bring an acknowledgement on chain itself?

When its matcher has not, and time runs out.

The newest acknowledgement of an open order pays every stage, from any sender; the chain takes it
until a while after the order's deadline or closing. Stages take turns in that while, the first one
first, so that only one pays for the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.chain.chain import Chain
from core.protocol.errors import ContractRefused, GasShort
from core.protocol.signing import DigestSigner
from core.protocol.types import JobState
from core.runtime.logs import get_logger
from miner.records.store import StoredJob
from miner.serving.receipts import ReceiptBook

log = get_logger(__name__)


@dataclass(frozen=True)
class OpenOrderSeen:
    """What the chain says of an open order's job with the plan that was worked for."""

    state: JobState
    deadline_s: int
    tokens_in: int
    tokens_out: int


def turn_s(seen: OpenOrderSeen, close_delay_s: int, stage: int, stages: int) -> int:
    """When it is this stage's turn: in the second and third quarter after the deadline."""
    quarter = close_delay_s // 4
    return seen.deadline_s + quarter + 2 * quarter * stage // stages


def is_due(
    seen: OpenOrderSeen,
    acked: tuple[int, int],
    now_s: int,
    close_delay_s: int,
    stage: int,
    stages: int,
) -> bool:
    """Whether this stage should bring an acknowledgement over these tokens in and out now."""
    adds = acked[0] > seen.tokens_in or acked[1] > seen.tokens_out
    is_open = seen.state is JobState.MATCHED
    return adds and is_open and now_s >= turn_s(seen, close_delay_s, stage, stages)


class Claims:
    """Looks after the acknowledgements that this miner holds."""

    def __init__(self, chain: Chain, signer: DigestSigner, book: ReceiptBook) -> None:
        self._chain, self._signer, self._book = chain, signer, book
        self._close_delay_s: int | None = None

    async def look(self, now_s: int) -> int:
        """Bring what is due at chain time `now_s`; how many were. Raises ChainUnreachable."""
        store, brought = self._book.store, 0
        for job in await self._book.disk(store.live_jobs):
            if not job.order.is_open:
                continue
            kept = await self._book.disk(store.ack, job.order_hash, job.plan_hash)
            if kept is not None and await self._is_due(job, kept[0], now_s):
                brought += await self._bring(job, *kept)
        return brought

    async def _is_due(self, job: StoredJob, ack: Any, now_s: int) -> bool:
        if self._close_delay_s is None:
            params = await self._chain.read("TaskRegistry", "params")
            self._close_delay_s = int(params["closeDelaySeconds"])
        found = await self._chain.read("TaskRegistry", "jobOf", job.job_id, job.plan_hash)
        seen = OpenOrderSeen(
            JobState(int(found["state"])),
            int(found["deadline"]),
            int(found["tokensIn"]),
            int(found["tokensOut"]),
        )
        acked = (ack.tokens_in, ack.tokens_out)
        return is_due(seen, acked, now_s, self._close_delay_s, job.stage, len(job.plan))

    async def _bring(self, job: StoredJob, ack: Any, signature: str) -> bool:
        try:
            sent = await self._chain.transact(
                self._signer, "TaskRegistry", "settleAck", job.order, ack, signature, list(job.plan)
            )
        except ContractRefused as error:  # another sender was quicker, or the job ended meanwhile
            log.info("an acknowledgement is not taken", job=job.job_id[:10], why=str(error))
            return False
        except GasShort as error:
            log.warning("an acknowledgement waits for fees", job=job.job_id[:10], why=str(error))
            return False
        log.info("acknowledgement brought", job=job.job_id[:10], tx=sent.tx_hash)
        return True
