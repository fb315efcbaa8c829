"""An auditor that watches: which jobs are due, who is drawn, what was found, and whom to accuse?

It follows the chain for jobs of those it serves, draws requests once their receipts are signed (`client/lottery.py`), re-runs one shard
at a time, in float64 only where float32 leaves a doubt, and keeps every verdict. Nothing is lost by a restart: what was not finished is
begun again, and lots stay as they fell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from client.audit import StageFinding
from client.evidence import Case, case_matched
from client.lottery import is_drawn, rate_for
from client.watch_book import Found, StageVerdict, WatchBook, WatchedJob
from core.protocol.chain import Chain, ChainEvent
from core.protocol.errors import ChainUnreachable, CheckFailed, HeadraceError
from core.protocol.follower import EventFollower
from core.protocol.standing import OperatorAudits
from core.protocol.types import SignedReceipt
from core.runtime.clock import Clock
from core.runtime.logs import get_logger

log = get_logger(__name__)
POLL_S = 2.0
#: A job whose stages do not answer is tried again, ever more rarely, and given up after so many times.
FIRST_RETRY_S, MAX_TRIES = 10.0, 8
#: A matcher that does not take what it is told is told again so much later.
TELL_AGAIN_S = 60.0
#: Events that say that a job's stages have signed receipts.
_SIGNED = frozenset({"JobDelivered", "JobPaid", "JobSettled"})


@dataclass(frozen=True)
class Looked:
    """What re-running a job's drawn requests came to: a finding a stage, and how many of its requests needed float64."""

    findings: list[StageFinding]
    in_float64: list[int]
    is_shadow: bool


@dataclass(frozen=True)
class Hands:
    """How the daemon reaches beyond the chain."""

    #: A job's receipts, checked, one list a pipeline. Raises HeadraceError; CheckFailed where they do not hold.
    receipts_of: Callable[[Case], Awaitable[list[list[SignedReceipt]]]]
    #: Re-runs these requests at every stage. Raises HeadraceError.
    look: Callable[[Case, list[list[SignedReceipt]], frozenset[int]], Awaitable[Looked]]
    #: Accuses a stage and plays to the verdict, whose words it returns. Raises HeadraceError.
    accuse: Callable[[str, int], Awaitable[str]]
    #: Tells the matcher what audits of operators came to; None: nobody is told. Raises HeadraceError.
    tell: Callable[[Sequence[OperatorAudits]], Awaitable[None]] | None = None


class Watcher:
    """The daemon's loop over one chain and one book."""

    def __init__(
        self,
        chain: Chain,
        book: WatchBook,
        clock: Clock,
        follower: EventFollower,
        hands: Hands,
        *,
        auditor: str,
        serves: Collection[str] = (),
        rate_bps: int,
        disputes: bool = False,
        on_verdict: Callable[[StageVerdict], None] = lambda _: None,
    ) -> None:
        """Orders are ours that name `auditor`, are its own, or come from one of `serves`. `disputes`: faults are accused at once."""
        self._chain, self._book, self._clock, self._follower = chain, book, clock, follower
        self._hands, self._rate_bps, self._disputes = hands, rate_bps, disputes
        self._auditor = auditor.lower()
        self._served = {a.lower() for a in serves} | {self._auditor}
        self._on_verdict = on_verdict
        self._tell_at_s = 0.0
        self.is_chain_up = False

    async def run(self) -> None:
        """Until cancelled. A chain that does not answer is waited for."""
        while True:
            try:
                await self.step()
                self.is_chain_up = True
            except ChainUnreachable as error:
                self.is_chain_up = False
                log.warning("chain unreachable, will retry", reason=error.why)
            await self._clock.sleep(POLL_S)

    async def step(self) -> None:
        """Take in what the chain says and do what is due. Raises ChainUnreachable."""
        await self._follow()
        for job in self._book.due(self._clock.now()):
            await self._audit(job)
        await self._tell()
        if self._disputes:
            for job_id, stage in self._book.undisputed():
                await self._accuse(job_id, stage)

    # --- the chain ---

    async def _follow(self) -> None:
        batch = await self._follower.poll()
        if batch.rolled_back_to is not None:
            self._book.roll_back(batch.rolled_back_to)
        for event in batch.events:
            if event.contract != "TaskRegistry":
                continue
            if event.name == "JobMatched":
                await self._matched(event)
            elif event.name in _SIGNED:
                self._book.signed(event.args["job"], event.block_hash, event.block_number)
        self._book.advance(batch.position)

    async def _matched(self, event: ChainEvent) -> None:
        try:
            case = await case_matched(self._chain, event.args["job"], event.tx_hash)
        except CheckFailed as error:
            log.info("job left out", job=event.args["job"], reason=error.why)
            return
        order = case.order
        if order.requester.lower() in self._served or order.auditor.lower() == self._auditor:
            self._book.matched(case.job_id, event.tx_hash, event.block_number)

    # --- audits ---

    async def _audit(self, job: WatchedJob) -> None:
        try:
            case = await case_matched(self._chain, job.job_id, job.matched_tx)
            pipelines = await self._hands.receipts_of(case)
            drawn = self._draw(job, case, pipelines)
            if drawn:
                self._keep(case, await self._hands.look(case, pipelines, drawn), drawn)
            self._book.done(job)
        except ChainUnreachable:
            raise
        except HeadraceError as error:
            self._put_off(job, f"{error.what}: {error.why}")
        except Exception as error:  # strangers wrote what is read; it must not stop the other jobs
            log.exception("audit failed, will retry", job=job.job_id)
            self._put_off(job, repr(error))

    def _put_off(self, job: WatchedJob, why: str) -> None:
        give_up = job.tries + 1 >= MAX_TRIES
        wait_s = FIRST_RETRY_S * 2**job.tries
        log.warning("cannot audit", job=job.job_id, reason=why, again_s=None if give_up else wait_s)
        self._book.put_off(job, self._clock.now() + wait_s, why, give_up=give_up)

    def _draw(
        self, job: WatchedJob, case: Case, pipelines: list[list[SignedReceipt]]
    ) -> frozenset[int]:
        """Requests that are to be looked at now: the lots of new ones fall, those that fell before and were not finished stay."""
        rate = max(self._rate_of(stage.operator) for stage in case.plan)
        signed = {leaf.request_index for receipts in pipelines for leaf in receipts[0].leaves}
        known = self._book.drawn(job.job_id)
        secret = self._book.secret()
        fell = {
            request: is_drawn(secret, job.beacon, job.job_id, request, rate)
            for request in sorted(signed - known.keys())
        }
        self._book.draw(job.job_id, fell)
        judged = self._book.judged_requests(job.job_id)
        return frozenset(r for r, drawn in (known | fell).items() if drawn and r in signed) - judged

    def _rate_of(self, operator: str) -> int:
        standing = self._book.standing_of(operator)
        return rate_for(self._rate_bps, standing.jobs, is_suspected=standing.is_suspected)

    def _keep(self, case: Case, looked: Looked, drawn: frozenset[int]) -> None:
        verdicts = [
            _verdict_of(case.job_id, finding, in_float64, is_shadow=looked.is_shadow)
            for finding, in_float64 in zip(looked.findings, looked.in_float64, strict=True)
        ]
        self._book.keep(verdicts, self._clock.now(), judged=drawn)
        for verdict in verdicts:
            self._on_verdict(verdict)

    # --- what others are told ---

    async def _tell(self) -> None:
        newest = self._book.untold()
        if self._hands.tell is None or not newest or self._clock.now() < self._tell_at_s:
            return
        try:
            await self._hands.tell(self._book.standings())
            self._book.told(newest)
        except HeadraceError as error:
            self._tell_at_s = self._clock.now() + TELL_AGAIN_S
            log.warning("the matcher did not listen", reason=str(error), again_s=TELL_AGAIN_S)

    # --- disputes ---

    async def _accuse(self, job_id: str, stage: int) -> None:
        try:
            ended = await self._hands.accuse(job_id, stage)
        except ChainUnreachable:
            raise
        except HeadraceError as error:
            ended = f"not accused: {error.what}: {error.why}"
            log.warning("cannot accuse", job=job_id, stage=stage, reason=str(error))
        self._book.disputed(job_id, stage, ended)


def _verdict_of(
    job_id: str, finding: StageFinding, in_float64: int, *, is_shadow: bool
) -> StageVerdict:
    worst = finding.worst
    found = Found.CLEAN
    if is_shadow:
        found = Found.SHADOW
    elif finding.withheld:
        found = Found.WITHHELD
    elif finding.at_fault:
        found = Found.FAULT
    elif finding.suspicion:
        found = Found.SUSPICIOUS
    return StageVerdict(
        job_id=job_id,
        stage=finding.stage,
        operator=finding.operator,
        found=found,
        requests=len(finding.requests),
        in_float64=in_float64,
        ratio=worst.ratio if worst else 0.0,
        allowed=worst.limit if worst else 0.0,
        why=finding.why,
    )
