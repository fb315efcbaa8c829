"""When does a miner bring its work or an acknowledgement on chain itself, and end a job to be paid?

When its matcher has not, and time runs out.

A batch that every stage finished and nobody acknowledged is delivered with all stages' receipts,
or words where one keeps its back, in the last quarter before the deadline, and ended after its
window. Of a batch that was not finished, what all stages did is delivered in the delay after the
deadline. A stage that signed for other rows than its words are of is convicted by them.

The newest acknowledgement counts for every stage, from any sender; the chain takes it until that
delay is over. Then anybody may end the job, which pays what was counted. Stages take turns, the
first one first, so that only one pays for a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from core.chain.chain import Chain
from core.protocol import wire
from core.protocol.errors import ContractRefused, GasShort
from core.protocol.receipts import equivocation, told
from core.protocol.signing import DigestSigner
from core.protocol.types import Ack, JobState, SignedReceipt
from core.runtime.logs import get_logger
from core.runtime.network.collecting import Ask, Dialer, collect, dialled
from miner.records.store import StoredJob
from miner.serving import answers
from miner.serving.receipts import ReceiptBook

log = get_logger(__name__)
#: How long whole work waits for its requester's acknowledgement, where the deadline leaves time.
ACK_GRACE_S = 30


class ClaimStep(Enum):
    """What a stage should do about a job now."""

    NOTHING = "nothing"
    ACK = "acknowledgement"
    DELIVER = "delivery"
    FINALIZE = "end of a delivery"
    END = "end"


@dataclass(frozen=True)
class JobSeen:
    """What the chain says of a job with the plan that was worked for.

    `is_late`: it was delivered after its deadline, where more counts until the delay is over.
    """

    state: JobState
    deadline_s: int
    final_at_s: int
    tokens_in: int
    tokens_out: int
    open_disputes: int = 0
    is_late: bool = False


@dataclass(frozen=True)
class WorkHeld:
    """What a stage has in hand: the counts (in, out) of its newest acknowledgement and of the
    requests of a batch that it finished; both zero where it has none. It finished all of them at
    chain time `whole_since_s`, if that is not None.
    """

    acked: tuple[int, int] = (0, 0)
    done: tuple[int, int] = (0, 0)
    whole_since_s: int | None = None


def turn_s(since_s: int, while_s: int, stage: int, stages: int) -> int:
    """When it is this stage's turn: in the second and third quarter of `while_s` from then."""
    quarter = while_s // 4
    return since_s + quarter + 2 * quarter * stage // stages


def delivery_turn_s(started_s: int, deadline_s: int, stage: int, stages: int) -> int:
    """When this stage may deliver: in the last quarter of a batch's time, all in its first half."""
    span_s = max(deadline_s - started_s, 0)
    return deadline_s - span_s // 4 + span_s // 8 * stage // stages


def due_now(
    seen: JobSeen, held: WorkHeld, now_s: int, close_delay_s: int, stage: int, stages: int
) -> ClaimStep:
    """What this stage should do, once `delivery_turn_s` of a batch has come."""
    if seen.state not in (JobState.MATCHED, JobState.DELIVERED):
        return ClaimStep.NOTHING
    counted = seen.tokens_in, seen.tokens_out
    is_matched, until_s = seen.state is JobState.MATCHED, seen.deadline_s + close_delay_s
    if now_s <= seen.deadline_s and is_matched:
        known = max(held.acked[0], counted[0]), max(held.acked[1], counted[1])
        if held.whole_since_s is None or not _adds(held.done, known):
            return ClaimStep.NOTHING
        patient_s = min(held.whole_since_s + ACK_GRACE_S, seen.deadline_s - ACK_GRACE_S)
        return ClaimStep.DELIVER if now_s >= patient_s else ClaimStep.NOTHING
    if seen.deadline_s < now_s:
        is_open = now_s <= until_s and (is_matched or seen.is_late)
        is_turn = now_s >= turn_s(seen.deadline_s, close_delay_s, stage, stages)
        if _adds(held.acked, counted) and (is_matched or is_open):
            return ClaimStep.ACK if is_turn else ClaimStep.NOTHING
        if _adds(held.done, counted) and is_open:
            return ClaimStep.DELIVER if is_turn else ClaimStep.NOTHING
    since_s = until_s if is_matched else seen.final_at_s
    if now_s < turn_s(since_s, close_delay_s, stage, stages):
        return ClaimStep.NOTHING
    if is_matched:
        return ClaimStep.END if any(counted) else ClaimStep.NOTHING
    return ClaimStep.NOTHING if seen.open_disputes else ClaimStep.FINALIZE


def _adds(counts: tuple[int, int], known: tuple[int, int]) -> bool:
    return counts[0] > known[0] or counts[1] > known[1]


class Claims:
    """Looks after what this miner can claim. `is_running`: whether a job's requests still run."""

    def __init__(
        self,
        chain: Chain,
        signer: DigestSigner,
        book: ReceiptBook,
        peers: Dialer,
        is_running: Callable[[str], bool],
    ) -> None:
        self._chain, self._signer, self._book = chain, signer, book
        self._peers, self._is_running = peers, is_running
        self._whole_since_s = dict[str, int]()
        self._close_delay_s: int | None = None

    async def look(self, now_s: int) -> int:
        """Send what is due at chain time `now_s`; how many were. Raises ChainUnreachable."""
        store, sent = self._book.store, 0
        deliveries = list[tuple[StoredJob, bool]]()
        jobs = await self._book.disk(store.live_jobs)
        live = {job.order_hash for job in jobs}
        self._whole_since_s = {k: v for k, v in self._whole_since_s.items() if k in live}
        for job in jobs:
            kept = await self._book.disk(store.ack, job.order_hash, job.plan_hash)
            may_deliver = not job.order.is_open and now_s >= _delivery_turn_s(job)
            if kept is not None or may_deliver or now_s > job.order.deadline:
                delay_s = await self._delay_s()
                held = await self._held(job, kept[0] if kept else None, now_s, delay_s)
                step = await self._due_now(job, held, now_s, delay_s)
                if step is ClaimStep.DELIVER:
                    deliveries.append((job, now_s > job.order.deadline))
                else:
                    sent += await self._do(job, step, kept)
        # Beside each other: a stage that does not answer for one job delays no other.
        sending = (self._deliver(job, is_late) for job, is_late in deliveries)
        delivered = await asyncio.gather(*sending, return_exceptions=True)
        for one in delivered:
            if isinstance(one, BaseException):
                raise one
            sent += one
        return sent

    async def _held(self, job: StoredJob, ack: Ack | None, now_s: int, delay_s: int) -> WorkHeld:
        acked = (ack.tokens_in, ack.tokens_out) if ack else (0, 0)
        deadline_s = job.order.deadline
        is_time = _delivery_turn_s(job) <= now_s <= deadline_s + delay_s
        is_running = now_s <= deadline_s and self._is_running(job.order_hash)
        if job.order.is_open or not is_time or is_running:
            return WorkHeld(acked)
        found = await self._book.disk(self._book.store.leaves, job.order_hash, job.plan_hash)
        leaves = [kept.leaf for kept in found.values()]
        done = sum(leaf.tokens_in for leaf in leaves), sum(leaf.tokens_out for leaf in leaves)
        if len(found) < job.order.requests:
            return WorkHeld(acked, done)
        return WorkHeld(acked, done, self._whole_since_s.setdefault(job.order_hash, now_s))

    async def _delay_s(self) -> int:
        """How long after a deadline the chain still counts."""
        if self._close_delay_s is None:
            params = await self._chain.read("TaskRegistry", "params")
            self._close_delay_s = int(params["closeDelaySeconds"])
        return self._close_delay_s

    async def _due_now(self, job: StoredJob, held: WorkHeld, now_s: int, delay_s: int) -> ClaimStep:
        found = await self._chain.read("TaskRegistry", "jobOf", job.job_id, job.plan_hash)
        seen = JobSeen(
            JobState(int(found["state"])),
            int(found["deadline"]),
            int(found["finalAt"]),
            int(found["tokensIn"]),
            int(found["tokensOut"]),
            int(found["openDisputes"]),
            int(found["finalAt"]) > int(found["deadline"]) + job.order.window,
        )
        return due_now(seen, held, now_s, delay_s, job.stage, len(job.plan))

    async def _do(self, job: StoredJob, step: ClaimStep, kept: tuple[Ack, str] | None) -> bool:
        order, plan = job.order, list(job.plan)
        match step:
            case ClaimStep.ACK if kept is not None:
                return await self._send(job, "settleAck", order, *kept, plan)
            case ClaimStep.FINALIZE:
                return await self._send(job, "finalize", order, plan)
            case ClaimStep.END:
                return await self._send(job, "expire", order, plan)
        return False

    async def _deliver(self, job: StoredJob, is_late: bool) -> bool:
        """With every stage's receipt, or words, over the whole batch; late, over what all have."""
        ask, domain = self._ask(job), self._chain.domain
        found = await collect(ask, job.order, job.plan, domain, all_requests=not is_late)
        if not found.receipts:
            log.info("a batch is not delivered", job=job.job_id[:10], why=found.problem)
            return False
        receipts = [signed.receipt for signed in found.receipts]
        signatures = [signed.signature for signed in found.receipts]
        sent = await self._send(job, "deliver", job.order, list(job.plan), receipts, signatures)
        if sent and "Evidence" in self._chain.addresses:
            for signed in found.taken_back:
                await self._convict(job, signed, found.receipts[signed.receipt.stage])
        return sent

    async def _convict(self, job: StoredJob, *signed: SignedReceipt) -> None:
        """Of a stage whose words contradict its receipt: its requester may be its friend."""
        two = equivocation(signed)
        if two is not None:
            shown = (told(*one) for one in two)
            await self._send(job, "equivocation", job.order, list(job.plan), *shown, of="Evidence")

    def _ask(self, job: StoredJob) -> Ask:
        """Asks other stages over their streams, and our own book."""
        others = dialled(self._peers, job.plan, job.endpoints)

        async def ask(stage: int, message: wire.AnyMessage) -> wire.AnyMessage:
            if stage != job.stage:
                return await others(stage, message)
            if isinstance(message, wire.CloseJob):
                return wire.Receipt(await self._book.sign_over(job, message.requests))
            if isinstance(message, wire.FetchReceipts):
                found = await self._book.disk(answers.answer, self._book.store, job, message)
                return found[0] if isinstance(found, tuple) else found
            found_here = self._book.store.leaves, job.order_hash, job.plan_hash
            return wire.Finished(requests=sorted(await self._book.disk(*found_here)))

        return ask

    async def _send(
        self, job: StoredJob, function: str, *args: Any, of: str = "TaskRegistry"
    ) -> bool:
        name = job.job_id[:10]
        try:
            sent = await self._chain.transact(self._signer, of, function, *args)
        except ContractRefused as error:  # another sender was quicker, or the job ended meanwhile
            log.info("a claim is not taken", job=name, by=function, why=str(error))
            return False
        except GasShort as error:
            log.warning("a claim waits for fees", job=name, by=function, why=str(error))
            return False
        log.info("claim sent", job=name, by=function, tx=sent.tx_hash)
        return True


def _delivery_turn_s(job: StoredJob) -> int:
    return delivery_turn_s(job.started_at, job.order.deadline, job.stage, len(job.plan))
