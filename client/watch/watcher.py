"""Which jobs does a watching auditor draw from, what did it find, and which stage does it accuse?

It draws requests once their receipts are signed (`core/money/lottery.py`), re-runs one shard at a
time, in float64 only where float32 leaves a doubt, and keeps every verdict. After a restart what
was not finished begins again, and lots stay as they fell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from client.audit.audit_rate import rate_for
from client.audit.evidence import AuditCase, case_matched
from client.audit.rerun import StageFinding
from client.disputes.bonds import AtStake, BondLimits
from client.watch.watch_book import RequestVerdict, StageVerdict, WatchBook, WatchedJob
from core.chain.chain import Chain, ChainEvent
from core.chain.follower import EventFollower
from core.money.audit_report import OperatorAudits
from core.money.lottery import is_drawn
from core.money.paid_audits import AuditEnd
from core.protocol import ids
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    HeadraceError,
    MatcherUnreachable,
    Unreachable,
)
from core.protocol.types import SignedReceipt
from core.runtime.clock import Clock
from core.runtime.logs import get_logger

log = get_logger(__name__)
POLL_S = 2.0
#: A job whose stages do not answer is tried again, after twice as long each time.
FIRST_RETRY_S, MAX_TRIES = 10.0, 8
TELL_AGAIN_S = 60.0  # to a matcher that did not listen
WEIGH_AGAIN_S = 30.0  # whether open disputes still hold as much as they may
#: Events that say that a job's stages have signed receipts.
_SIGNED = frozenset({"JobDelivered", "JobAcknowledged", "JobSettled"})


@dataclass(frozen=True)
class Looked:
    """What re-running a job's drawn requests came to."""

    findings: list[StageFinding]
    in_float64: list[int]  # of each stage, how many requests needed it
    is_shadow: bool


@dataclass(frozen=True)
class OwnWords:
    """What a stage was convicted by, in words, and what became of it."""

    stage: int
    request: int
    why: str
    ended: str


@dataclass(frozen=True)
class Callbacks:
    """How the daemon reaches beyond the chain. Each call raises HeadraceError."""

    #: A job's receipts, checked, one list a pipeline. Raises CheckFailed where they do not hold.
    receipts_of: Callable[[AuditCase], Awaitable[list[list[SignedReceipt]]]]
    #: Re-runs these requests at every stage.
    look: Callable[[AuditCase, list[list[SignedReceipt]], frozenset[int]], Awaitable[Looked]]
    #: Accuses a stage and plays to the verdict, which it returns in words.
    accuse: Callable[[str, int], Awaitable[str]]
    #: Tells the matcher what audits of operators came to.
    tell: Callable[[Sequence[OperatorAudits]], Awaitable[None]] | None = None
    #: Which requests of a job the matcher pays for, given its receipts.
    paid_lots: (
        Callable[[AuditCase, list[list[SignedReceipt]]], Awaitable[Collection[int]]] | None
    ) = None
    #: Hands the matcher what was found of such a request.
    hand_in: Callable[[AuditCase, RequestVerdict], Awaitable[None]] | None = None
    #: What accusing a stage takes, and what our disputes hold; None: there is no limit.
    at_stake: Callable[[str, int], Awaitable[AtStake]] | None = None
    #: Convicts every stage that its own signed words convict, for no bond, and tells each at once.
    convict: Callable[[AuditCase], AsyncIterator[OwnWords]] | None = None


class Watcher:
    """The daemon's loop over one chain and one book."""

    def __init__(
        self,
        chain: Chain,
        book: WatchBook,
        clock: Clock,
        follower: EventFollower,
        callbacks: Callbacks,
        *,
        auditor: str,
        serves: Collection[str] = (),
        rate_bps: int,
        disputes: bool = False,
        bonds: BondLimits = BondLimits(),
        show_token: Callable[[int], str] = str,
        on_verdict: Callable[[StageVerdict], None] = lambda _: None,
        on_handed_in: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Watches orders that name `auditor`, are its own or come from one of `serves`.

        `rate_bps` of their requests are looked at; `disputes`: faults are accused at once.
        """
        self._chain, self._book, self._clock, self._follower = chain, book, clock, follower
        self._callbacks, self._rate_bps, self._disputes = callbacks, rate_bps, disputes
        self._auditor = auditor.lower()
        self._served = {a.lower() for a in serves} | {self._auditor}
        self._on_verdict, self._on_handed_in = on_verdict, on_handed_in
        self._bonds, self._show = bonds, show_token
        self._left_out: set[tuple[str, int]] = set()
        self._tell_at_s = self._weigh_at_s = 0.0
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
        if self._disputes and self._clock.now() >= self._weigh_at_s:
            for job_id, stage in self._book.undisputed():
                if (job_id, stage) not in self._left_out:
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
            log.info("job left out", job=_named(event.args["job"]), reason=error.why)
            return
        order = case.order
        if order.requester.lower() in self._served or order.auditor.lower() == self._auditor:
            self._book.matched(case.job_id, event.tx_hash, event.block_number)

    # --- audits ---

    async def _audit(self, job: WatchedJob) -> None:
        try:
            case = await case_matched(self._chain, job.job_id, job.matched_tx)
            # First: receipts that contradict each other cannot be audited.
            await self._convict(case)
            pipelines = await self._callbacks.receipts_of(case)
            drawn, refused = self._draw(job, case, pipelines), None
            try:
                drawn |= await self._drawn_by_matcher(case, pipelines)
            except MatcherUnreachable as error:
                refused = error  # what we draw ourselves does not wait for the matcher
            if drawn:
                self._keep(case, await self._callbacks.look(case, pipelines, drawn), drawn)
            await self._hand_in(case)
            if refused is not None:
                raise refused
            self._book.done(job)
        except ChainUnreachable:
            raise
        except HeadraceError as error:
            self._put_off(job, f"{error.what}: {error.why}")
        except Exception as error:  # what others wrote must not stop the other jobs
            log.exception("audit failed, will retry", job=_named(job.job_id))
            self._put_off(job, repr(error))

    async def _convict(self, case: AuditCase) -> None:
        if self._callbacks.convict is None:
            return
        async for one in self._callbacks.convict(case):
            operator = case.plan[one.stage].operator
            fault = AuditEnd.FAULT
            verdict = StageVerdict(case.job_id, one.stage, operator, fault, 1, 0, 0.0, 0.0, one.why)
            found = RequestVerdict(one.request, fault, one.stage)
            self._book.keep([verdict], self._clock.now(), judged=[found])
            self._book.disputed(case.job_id, one.stage, one.ended)
            self._on_verdict(verdict)
            of: dict[str, Any] = {"job": _named(case.job_id), "stage": one.stage}
            log.warning("convicted by its own words", **of, why=one.why, ended=one.ended)

    def _put_off(self, job: WatchedJob, why: str) -> None:
        give_up = job.tries + 1 >= MAX_TRIES
        wait_s = FIRST_RETRY_S * 2**job.tries
        again_s = None if give_up else wait_s
        log.warning("cannot audit", job=_named(job.job_id), reason=why, again_s=again_s)
        self._book.put_off(job, self._clock.now() + wait_s, why, give_up=give_up)

    def _draw(
        self, job: WatchedJob, case: AuditCase, pipelines: list[list[SignedReceipt]]
    ) -> frozenset[int]:
        """Requests to look at now: the lots of new ones fall, earlier ones stay as they fell."""
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

    async def _drawn_by_matcher(
        self, case: AuditCase, pipelines: list[list[SignedReceipt]]
    ) -> frozenset[int]:
        """Requests that the matcher pays for, not looked at yet. Raises MatcherUnreachable."""
        ours = case.order.auditor.lower() == self._auditor
        if self._callbacks.paid_lots is None or not ours:
            return frozenset()
        try:
            lots = frozenset(await self._callbacks.paid_lots(case, pipelines))
        except Unreachable as error:  # a matcher cannot say that our chain is unreachable
            raise MatcherUnreachable(error.what, error.why) from None
        except HeadraceError as error:
            log.warning("the matcher pays for no audit", job=_named(case.job_id), reason=str(error))
            return frozenset()
        signed = {leaf.request_index for receipts in pipelines for leaf in receipts[0].leaves}
        self._book.drawn_by_matcher(case.job_id, lots & signed)
        return (lots & signed) - self._book.findings(case.job_id).keys()

    async def _hand_in(self, case: AuditCase) -> None:
        """Hand in findings that the matcher pays for. Raises MatcherUnreachable."""
        if self._callbacks.hand_in is None:
            return
        for verdict in self._book.to_hand_in(case.job_id):
            answer = "taken"
            try:
                await self._callbacks.hand_in(case, verdict)
            except Unreachable as error:
                raise MatcherUnreachable(error.what, error.why) from None
            except HeadraceError as error:
                answer = f"{error.what}: {error.why}"
                of: dict[str, Any] = {"job": _named(case.job_id), "request": verdict.request}
                log.warning("the matcher refused a finding", **of, reason=answer)
            self._book.handed_in(case.job_id, verdict.request, answer)
            self._on_handed_in(answer == "taken")

    def _rate_of(self, operator: str) -> int:
        standing = self._book.standing_of(operator)
        return rate_for(self._rate_bps, standing.jobs, is_suspected=standing.is_suspected)

    def _keep(self, case: AuditCase, looked: Looked, drawn: frozenset[int]) -> None:
        verdicts = [
            _verdict_of(case.job_id, finding, in_float64, is_shadow=looked.is_shadow)
            for finding, in_float64 in zip(looked.findings, looked.in_float64, strict=True)
        ]
        judged = [
            request_verdict(looked.findings, request, is_shadow=looked.is_shadow)
            for request in sorted(drawn)
        ]
        self._book.keep(verdicts, self._clock.now(), judged=judged)
        for verdict in verdicts:
            self._on_verdict(verdict)

    # --- what others are told ---

    async def _tell(self) -> None:
        newest = self._book.untold()
        if self._callbacks.tell is None or not newest or self._clock.now() < self._tell_at_s:
            return
        try:
            await self._callbacks.tell(self._book.standings())
            self._book.told(newest)
        except HeadraceError as error:
            self._tell_at_s = self._clock.now() + TELL_AGAIN_S
            log.warning("the matcher did not listen", reason=str(error), again_s=TELL_AGAIN_S)

    # --- disputes ---

    async def _accuse(self, job_id: str, stage: int) -> None:
        try:
            if not await self._may_lock(job_id, stage):
                return
            ended = await self._callbacks.accuse(job_id, stage)
        except ChainUnreachable:
            raise
        except HeadraceError as error:
            ended = f"not accused: {error.what}: {error.why}"
            log.warning("cannot accuse", job=_named(job_id), stage=stage, reason=str(error))
        self._book.disputed(job_id, stage, ended)

    async def _may_lock(self, job_id: str, stage: int) -> bool:
        """Whether accusing stays within what may be locked. Raises HeadraceError.

        What is left out stays due: another start with other limits may accuse it.
        """
        if self._callbacks.at_stake is None:
            return True
        stake = await self._callbacks.at_stake(job_id, stage)
        of: dict[str, Any] = {"job": _named(job_id), "stage": stage}
        if never := self._bonds.never(stake, self._show):
            log.warning("left out: the bond is above the limit", **of, reason=never)
            self._left_out.add((job_id, stage))
            return False
        if not_yet := self._bonds.not_yet(stake, self._show):
            of |= {"reason": not_yet, "again_s": WEIGH_AGAIN_S}
            log.warning("put off: open disputes hold what they may", **of)
            self._weigh_at_s = self._clock.now() + WEIGH_AGAIN_S
            return False
        return True


def _named(job_id: str) -> str:
    """A job's short id: a log hides a whole one, since a key looks the same."""
    return ids.short(ids.Kind.JOB, job_id)


def _verdict_of(
    job_id: str, finding: StageFinding, in_float64: int, *, is_shadow: bool
) -> StageVerdict:
    worst = finding.worst
    found = AuditEnd.CLEAN
    if is_shadow:
        found = AuditEnd.SHADOW
    elif finding.withheld:
        found = AuditEnd.WITHHELD
    elif finding.at_fault:
        found = AuditEnd.FAULT
    elif finding.suspicion:
        found = AuditEnd.SUSPICIOUS
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


#: From the best to the worst that can be said of one request.
_WORSE = (AuditEnd.SHADOW, AuditEnd.CLEAN, AuditEnd.SUSPICIOUS, AuditEnd.WITHHELD, AuditEnd.FAULT)


def request_verdict(
    findings: Sequence[StageFinding], request: int, *, is_shadow: bool
) -> RequestVerdict:
    """The worst that was found of a request at any stage, and the first stage of which it was."""
    if is_shadow:
        return RequestVerdict(request, AuditEnd.SHADOW, 0)
    of_stages = [(_found_of(finding, request), finding.stage) for finding in findings]
    found, stage = max(of_stages, key=lambda pair: (_WORSE.index(pair[0]), -pair[1]))
    return RequestVerdict(request, found, stage)


def _found_of(finding: StageFinding, request: int) -> AuditEnd:
    judged = next((r for r in finding.requests if r.request_index == request), None)
    if judged is None:  # a stage is judged up to the first request whose rows it withholds
        return AuditEnd.WITHHELD
    if judged.at_fault:
        return AuditEnd.FAULT
    return AuditEnd.SUSPICIOUS if judged.suspicion else AuditEnd.CLEAN
