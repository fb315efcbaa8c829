"""How is a job brought to its end, also where a party fell silent?

Acknowledged: `settleAck`, of an open order again and again, until it is closed and expires. Silent
requester: receipts of all stages → `deliver` → after the window `finalize`. Nothing finished:
`expire`, when the delay after the deadline is over in which only an acknowledgement counts. Before
each step the chain is asked, so that a step that was done before we died, or by another account, is
recorded instead of done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from core.protocol.errors import ChainUnreachable, HeadraceError, IdInvalid
from core.protocol.ids import Kind, short
from core.runtime.logs import get_logger
from core.runtime.network.collecting import TIMEOUT_S, Collected, collect, dialled
from matcher.records.jobs import ENDED, FAILED, Job, OnChain, SignedAck
from matcher.records.store import JobChange, Store
from matcher.settling.following import job_change
from matcher.settling.next_step import (
    STORED,
    Patience,
    SettlingStep,
    check_ack,
    check_ack_pays,
    is_ended,
    next_step,
)

if TYPE_CHECKING:
    from core.chain.chain import Chain, Sent
    from core.protocol.signing import DigestSigner
    from core.runtime.clock import Clock
    from core.runtime.network.collecting import Dialer
    from matcher.matching.matching import Matchmaker
    from matcher.world import MatcherWorld

COLLECT_EVERY_S = 2.0
LONGEST_WAIT_S = 15.0
LONGEST_BACKOFF_S = 60.0
ACK_LOOK_S = 4.0
log = get_logger(__name__)


class Settler:
    """Advances jobs one step at a time, each job by one task at a time."""

    def __init__(
        self,
        chain: Chain,
        signer: DigestSigner,
        peers: Dialer,
        store: Store,
        world: MatcherWorld,
        matchmaker: Matchmaker,
        clock: Clock,
        patience: Patience,
    ) -> None:
        self._chain, self._signer, self._peers = chain, signer, peers
        self._store, self._world, self._matchmaker = store, world, matchmaker
        self._clock, self._patience = clock, patience
        self._locks: dict[str, asyncio.Lock] = {}
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._close_delay: int | None = None

    def due(self, job_id: str) -> bool:
        """Whether there may be something to do about a job now."""
        return (
            self._clock.monotonic() >= self._not_before.get(job_id, 0.0)
            and not self._matchmaker.under_way(job_id)
            and not self._lock(job_id).locked()
        )

    def wake(self, job_id: str) -> None:
        """Something happened to it: look at once."""
        self._not_before.pop(job_id, None)

    def wake_all(self) -> None:
        """Time has leapt: look at every job at once."""
        self._not_before.clear()

    def put_off(self, job_id: str, seconds: float = LONGEST_WAIT_S) -> None:
        """Do not look at it for a while."""
        self._not_before[job_id] = self._clock.monotonic() + seconds

    def keep_only(self, unfinished: Iterable[str]) -> None:
        """Forget about jobs that have ended."""
        wanted = set(unfinished)
        for book in (self._not_before, self._failures):
            for job_id in book.keys() - wanted:
                del book[job_id]
        for job_id in self._locks.keys() - wanted:
            if not self._locks[job_id].locked():
                del self._locks[job_id]

    async def advance(self, job_id: str) -> SettlingStep | None:
        """Do the next thing about a job. Failures of others are noted and tried again later."""
        async with self._lock(job_id):
            try:
                step = await self._advance(job_id)
                self._failures.pop(job_id, None)
                return step
            except HeadraceError as error:
                await self._put_off(job_id, error)
                return None

    async def receive_ack(self, job_id: str, signed: SignedAck, *, closing: bool = False) -> Job:
        """Take an acknowledgement and settle with it, of an open order when that is worth it.

        Raises IdInvalid for an unknown job, CheckFailed for one that is forged, over the caps or
        pays less than all stages can show. An equal one again, or one for a settled job, changes
        nothing. `closing` ends an open order.
        """
        async with self._lock(job_id):
            job = await self._job(job_id)
            if job is None:
                raise IdInvalid(f"no job {job_id}", why="this matcher did not open it")
            is_open = job.signed.order.is_open
            problem = check_ack(job, signed, self._chain.domain)
            if problem is None and job.state not in ENDED and job.ack != signed:
                # Of an open order stages bound what may be unacknowledged: they are not asked.
                shown = () if is_open else await self._receipts_now(job)
                problem = check_ack_pays(signed, job.ack, shown)
                if problem is None:
                    await self._off(self._store.save_ack, job_id, signed, self._now())
            if problem is not None:
                raise problem
            if is_open and closing and job.state not in ENDED and not is_ended(job):
                await self._note(job_id, finished_at_s=self._now())
                self._world.release(job_id, self._now_ms())
        self.wake(job_id)
        if job.state not in ENDED and not is_open:
            await self.advance(job_id)
        return await self._job(job_id) or job

    # --- one step ---

    async def _advance(self, job_id: str) -> SettlingStep:
        job = await self._job(job_id)
        assert job is not None, "only stored jobs are advanced"
        found = await self._chain.read("TaskRegistry", "jobOf", job_id, job.plan_hash)
        seen = OnChain.of(found)
        now_s = await self._matchmaker.chain_time()
        delay_s = await self._close_delay_s()
        step = next_step(job, seen, now_s, self._patience, close_delay_s=delay_s)
        if step is not SettlingStep.FAIL:
            await self._agree(job, seen)
        match step:
            case SettlingStep.OPEN:
                await self._matchmaker.send(job)
            case SettlingStep.FAIL:
                await self._fail(job)
            case SettlingStep.COLLECT:
                await self._collect(job, now_s)
            case SettlingStep.ACK:
                assert job.ack is not None, "an acknowledged job has its acknowledgement"
                order, ack = job.signed.order, job.ack
                await self._end(job, "settleAck", order, ack.ack, ack.signature, list(job.plan))
                if not order.is_open:  # the event of a session's says them
                    most_in = max(ack.ack.tokens_in, seen.tokens_in)
                    most_out = max(ack.ack.tokens_out, seen.tokens_out)
                    await self._note(job_id, tokens_in=most_in, tokens_out=most_out)
            case SettlingStep.DELIVER:
                await self._deliver(job)
            case SettlingStep.FINALIZE:
                await self._end(job, "finalize", job.signed.order, list(job.plan))
            case SettlingStep.CLOSE:
                close = "TaskRegistry", "requestClose", job.signed.order, job.plan_hash
                sent = await self._chain.transact(self._signer, *close)
                log.info("session closing", job=job.name, tx=sent.tx_hash)
            case SettlingStep.EXPIRE:
                await self._end(job, "expire", job.signed.order, list(job.plan))
            case SettlingStep.WAIT:
                self.put_off(job_id, self._until_next(job, seen, now_s, delay_s))
            case SettlingStep.RECORD:
                self._world.release(job_id, self._now_ms())
        return step

    async def _agree(self, job: Job, seen: OnChain) -> None:
        """Store what the chain says where it differs from what we knew."""
        state = STORED[seen.state]
        values: dict[str, Any] = {}
        if job.state != state or job.stale:
            values = {"state": state, "stale": False}
            if state not in ENDED and job.state in ENDED:  # a rollback brought it back to life
                values |= dict.fromkeys(("paid_units", "refunded_units", "withheld_units"))
                values["end_tx"] = ""
        if job.final_at_s != seen.final_at_s:
            values["final_at_s"] = seen.final_at_s
        if (seen.tokens_in, seen.tokens_out) != (job.tokens_in, job.tokens_out):
            values |= {"tokens_in": seen.tokens_in, "tokens_out": seen.tokens_out}
        if values:
            await self._note_of_plan(job, **values)

    async def _fail(self, job: Job) -> None:
        why = "its acceptances lapsed before it could be opened"
        self._world.release(job.job_id, self._now_ms())
        await self._note_of_plan(job, state=FAILED, stale=False, failure=why)
        log.warning("job not opened", job=job.name, why=why)

    async def _collect(self, job: Job, now_s: int) -> None:
        found = await self._receipts_of(job, all_requests=True)
        if found.receipts:
            await self._off(self._store.save_receipts, job.job_id, found.receipts, self._now())
            await self._note(job.job_id, finished_at_s=now_s, failure="")
            self._world.release(job.job_id, self._now_ms())
            return
        log.debug("not finished", job=job.name, finished=found.requests, why=found.problem)
        self.put_off(job.job_id, COLLECT_EVERY_S)

    async def _deliver(self, job: Job) -> None:
        sent = await self._chain.transact(
            self._signer,
            "TaskRegistry",
            "deliver",
            job.signed.order,
            list(job.plan),
            [signed.receipt for signed in job.receipts],
            [signed.signature for signed in job.receipts],
        )
        await self._record(job, sent, "deliver")

    async def _end(self, job: Job, function: str, *args: Any) -> None:
        sent = await self._chain.transact(self._signer, "TaskRegistry", function, *args)
        if function != "settleAck" or not job.signed.order.is_open:
            self._world.release(job.job_id, self._now_ms())
        await self._record(job, sent, function)

    async def _record(self, job: Job, sent: Sent, function: str) -> None:
        """What our transaction did, from its own event; the follower will see the same."""
        for event in await self._chain.events(sent.block_number, sent.block_number):
            change = job_change(event)
            if change is None or (change.job_id, event.tx_hash) != (job.job_id, sent.tx_hash):
                continue
            await self._note(job.job_id, **{**change.values, "failure": ""})
        log.info("job advanced", job=job.name, by=function, tx=sent.tx_hash, gas=sent.gas_used)

    async def _receipts_now(self, job: Job) -> tuple[Any, ...]:
        """Receipts over everything that all stages finished; none when a stage does not answer."""
        if job.complete:
            return job.receipts
        found = await self._receipts_of(job, all_requests=False, timeout_s=ACK_LOOK_S)
        if found.receipts:
            await self._off(self._store.save_receipts, job.job_id, found.receipts, self._now())
        return found.receipts

    # --- helpers ---

    async def _receipts_of(
        self, job: Job, *, all_requests: bool, timeout_s: float = TIMEOUT_S
    ) -> Collected:
        order, plan = job.signed.order, job.plan
        reachable = self._world.reachable(job, self._now_ms())
        return await collect(
            dialled(self._peers, plan, reachable.endpoints),
            order,
            plan,
            self._chain.domain,
            all_requests=all_requests,
            timeout_s=timeout_s,
        )

    async def _close_delay_s(self) -> int:
        """How long after a job's deadline its acknowledgements count."""
        if self._close_delay is None:
            found = await self._chain.read("TaskRegistry", "params")
            self._close_delay = int(found["closeDelaySeconds"])
        return self._close_delay

    def _until_next(self, job: Job, seen: OnChain, now_s: int, delay_s: int) -> float:
        moments = (
            seen.deadline_s + delay_s,
            seen.final_at_s,
            job.finished_at_s + self._patience.ack_grace_s,
            seen.deadline_s - self._patience.deadline_margin_s,
        )
        ahead = [moment - now_s for moment in moments if moment >= now_s]
        return min([LONGEST_WAIT_S, *(moment + 1.0 for moment in ahead)])

    async def _put_off(self, job_id: str, error: HeadraceError) -> None:
        count = self._failures[job_id] = self._failures.get(job_id, 0) + 1
        self.put_off(job_id, min(LONGEST_BACKOFF_S, 2.0 ** min(count - 1, 10)))
        if isinstance(error, ChainUnreachable):
            return  # about the chain, not about the job
        log.warning("job stands still", job=short(Kind.JOB, job_id), attempt=count, why=str(error))
        await self._note(job_id, failure=str(error))

    def _lock(self, job_id: str) -> asyncio.Lock:
        return self._locks.setdefault(job_id, asyncio.Lock())

    def _now(self) -> int:
        return int(self._clock.now())

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    async def _job(self, job_id: str) -> Job | None:
        found: Job | None = await self._off(self._store.job, job_id)
        return found

    async def _note(self, job_id: str, **values: Any) -> None:
        await self._off(self._store.change, JobChange(job_id, values), self._now())

    async def _note_of_plan(self, job: Job, **values: Any) -> None:
        """Write that down unless the follower has found the order's job with another plan."""
        change = JobChange(job.job_id, values, job.plan_hash)
        await self._off(self._store.change, change, self._now())

    async def _off(self, call: Any, *args: Any) -> Any:
        return await self._store.off_loop(call, *args)
