"""`auditor watch`: the watching auditor with its connections, its metrics and its findings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path

from client.audit.evidence import AuditCase, Delegation, case_of_job
from client.audit.investigation import investigate, open_evidence, read_delegation, source_of
from client.audit.rerun import AuditEffort, audit_job
from client.commands.judge.convict import CONTRACT, convict_unasked
from client.commands.judge.play_dispute import is_played, play_dispute
from client.context import Context, open_context
from client.disputes.bonds import AtStake, BondLimits, at_stake
from client.disputes.jury_dispute import check_standing, open_dispute
from client.orders.shard_roots import shard_roots
from client.watch.watch_book import RequestVerdict, StageVerdict, WatchBook
from client.watch.watcher import Callbacks, Looked, OwnWords, Watcher
from core.chain.follower import EventFollower
from core.money.audit_report import AuditReport, OperatorAudits, report_of, sign_report
from core.money.lottery import commitment
from core.money.paid_audits import (
    MOST_RECEIPTS,
    AuditEnd,
    AuditFinding,
    LotsAsked,
    sign_ask,
    sign_finding,
)
from core.protocol import ids
from core.protocol.errors import CheckFailed, MatcherUnreachable
from core.protocol.signing import DigestSigner, Domain
from core.protocol.types import RequestLeaf, SignedReceipt
from core.runtime.clock import SystemClock
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result
from core.runtime.logs import get_logger
from core.runtime.metrics import Metrics
from core.runtime.settings import Settings

log = get_logger(__name__)
COUNT_EVERY_S = 5.0


async def watch(
    run: Run,
    *,
    rate_bps: int,
    serves: Collection[str],
    delegation_files: Collection[Path],
    convicts: bool,
    disputes: bool,
    tells: bool,
    paid_by_matcher: bool,
    bonds: BondLimits = BondLimits(),
) -> None:
    """Audit until stopped orders that name us, and those of the requesters in `serves`.

    `convicts`: a stage is convicted where its own words do; `disputes`: a stage at fault is
    accused, as far as `bonds` allows; `tells`: the matcher is told what is found;
    `paid_by_matcher`: also what the matcher's lot falls on, which it pays for.
    """
    settings = run.settings
    if paid_by_matcher:
        settings.require_matcher_url()
    delegations = {
        d.delegation.order_hash: d
        for d in (read_delegation(file) for file in delegation_files)
        if d is not None
    }
    signer = run.unlock()
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(open_context(settings))
        book = open_book(settings, signer.address)
        stack.callback(book.close)
        metrics = WatchMetrics()
        work = _Work(run, context, signer, delegations)
        start = settings.network.deploy_block
        watcher = Watcher(
            context.chain,
            book,
            SystemClock(),
            EventFollower(context.chain, start_block=start, position=book.position()),
            Callbacks(
                work.receipts_of,
                work.look,
                work.accuse,
                work.tell if tells else None,
                work.paid_lots if paid_by_matcher else None,
                work.hand_in if paid_by_matcher else None,
                None if bonds == BondLimits() else work.at_stake,
                work.convict if convicts and CONTRACT in context.chain.addresses else None,
            ),
            auditor=signer.address,
            serves=serves,
            rate_bps=rate_bps,
            disputes=disputes,
            bonds=bonds,
            show_token=settings.show_token,
            on_verdict=metrics.judged,
            on_handed_in=metrics.handed_in,
        )
        ours = settings.auditor
        await metrics.registry.serve_while(stack, ours.metrics_port, ours.metrics_host)
        counting = asyncio.create_task(metrics.follow(book, watcher))
        stack.callback(counting.cancel)
        # With this commitment, once we show the secret, others can check our lots.
        log.info(
            "watching",
            auditor=signer.address,
            rate_bps=rate_bps,
            commitment=commitment(book.secret()),
        )
        await watcher.run()


class _Work:
    """What the daemon does with a job, one shard in memory at a time."""

    def __init__(
        self, run: Run, context: Context, signer: DigestSigner, delegations: dict[str, Delegation]
    ) -> None:
        self._run, self._context, self._signer = run, context, signer
        self._delegations = delegations

    def _delegation(self, case: AuditCase) -> Delegation | None:
        return self._delegations.get(case.order_hash)

    async def receipts_of(self, case: AuditCase) -> list[list[SignedReceipt]]:
        of = self._context, self._signer, case.job_id, self._delegation(case)
        return (await investigate(*of, lambda *_: None, rerun=False)).pipelines

    async def look(
        self, case: AuditCase, pipelines: list[list[SignedReceipt]], drawn: frozenset[int]
    ) -> Looked:
        source = await source_of(self._context, case)
        roots = await shard_roots(self._context.chain, case.order.model_id, case.plan)
        efforts = [AuditEffort(0, 0.0)] * len(case.plan)
        delegation = self._delegation(case)
        async with open_evidence(self._context, self._signer, case, delegation) as evidence:
            findings = await audit_job(
                evidence,
                source,
                [_drawn(pipelines, stage, drawn) for stage in range(len(case.plan))],
                [roots[stage.layer_from, stage.layer_to] for stage in case.plan],
                precheck=True,
                effort=efforts.__setitem__,
            )
        return Looked(findings, [e.in_float64 for e in efforts], source.profile.is_shadow)

    async def convict(self, case: AuditCase) -> AsyncIterator[OwnWords]:
        """Convict every stage that its own words convict."""
        of = self._context, self._signer, case, self._delegation(case)
        async for one, sent in convict_unasked(*of):
            why, ended = f"{one.call}: {one.why}", f"convicted in {sent.tx_hash}"
            yield OwnWords(one.stage, one.request, why, ended)

    async def tell(self, standings: Sequence[OperatorAudits]) -> None:
        """Everything that we have found out about operators, to the network's matcher."""
        await tell_matcher(self._context, self._signer, standings)

    async def paid_lots(
        self, case: AuditCase, pipelines: list[list[SignedReceipt]]
    ) -> Collection[int]:
        """What a matcher that we know drew of a job that it opened; of another's job nothing."""
        matchers = self._context.matcher()
        try:
            api = await matchers.of(case.order.matcher)
            if api is None:
                return ()
            of_last, drawn = [receipts[-1] for receipts in pipelines], set[int]()
            for start in range(0, len(of_last), MOST_RECEIPTS):
                shown = tuple(of_last[start : start + MOST_RECEIPTS])
                asked = LotsAsked(self._signer.address, case.job_id, shown)
                lots = await api.lots(sign_ask(asked, self._signer, self._domain))
                drawn.update(lots.requests)
            return drawn
        finally:
            await matchers.close()

    async def hand_in(self, case: AuditCase, verdict: RequestVerdict) -> None:
        """What was found of one request, signed, to the matcher that drew it."""
        finding = AuditFinding(
            self._signer.address, case.job_id, verdict.request, verdict.found, verdict.stage
        )
        matchers = self._context.matcher()
        try:
            api = await matchers.of(case.order.matcher)
            if api is None:
                raise MatcherUnreachable(
                    "no matcher takes a finding", "that of its job is not in network.matchers"
                )
            await api.hand_in(sign_finding(finding, self._signer, self._domain))
        finally:
            await matchers.close()

    @property
    def _domain(self) -> Domain:
        return self._context.chain.domain

    async def at_stake(self, job_id: str, stage: int) -> AtStake:
        """What accusing this stage would lock, and what our open disputes hold."""
        chain, first = self._context.chain, self._context.settings.network.deploy_block
        case = await case_of_job(chain, job_id, first)
        return await at_stake(chain, case, stage, self._signer.address, first)

    async def accuse(self, job_id: str, stage: int) -> str:
        """Accuse a stage by a re-run of the whole job in float64: no money is staked on less."""
        context, signer = self._context, self._signer
        first = await investigate(context, signer, job_id, None, lambda *_: None, rerun=False)
        delegation = self._delegation(first.case)
        check_standing(first.case, signer.address, delegation)
        found = await investigate(context, signer, job_id, delegation, lambda *_: None)
        if found.guilty is None:
            raise CheckFailed("no stage is at fault any more", "the re-run in float64 is clean")
        accused = found.accused(found.guilty.stage)
        if is_played(context, found):
            agreed = Run(
                self._run.program,
                self._run.command,
                replace(self._run.options, yes=True),
                daemon=True,
                folders=self._run.folders,
            )
            ended = await play_dispute(agreed, context, signer, found, accused, delegation)
            return ended.verdict
        await open_dispute(context.chain, signer, found.case, accused, delegation)
        return "before the jury"


def _drawn(
    pipelines: list[list[SignedReceipt]], stage: int, drawn: frozenset[int]
) -> list[RequestLeaf]:
    leaves = (leaf for receipts in pipelines for leaf in receipts[stage].leaves)
    return [leaf for leaf in leaves if leaf.request_index in drawn]


def open_book(settings: Settings, auditor: str) -> WatchBook:
    """What this auditor remembers, apart per network."""
    return WatchBook(settings.folders.state / f"watch-{settings.network.name}-{auditor}.sqlite")


async def tell_matcher(
    context: Context, signer: DigestSigner, standings: Sequence[OperatorAudits]
) -> AuditReport:
    """Sign what audits came to and hand it to all matchers.

    Raises what the first one answers, where none takes it.
    """
    sequence = int(SystemClock().now() * 1000)
    report = report_of(signer.address, sequence, standings)
    signed, matchers = sign_report(report, signer, context.chain.domain), context.matcher()
    try:
        await matchers.each(lambda api: api.tell(signed))
    finally:
        await matchers.close()
    return report


class ToldMatcher(Result, frozen=True):
    """`audits tell`: what the matcher has taken."""

    auditor: str
    matcher: str
    operators: int
    at_fault: int


class Watched(Result, frozen=True):
    """`audits status`."""

    auditor: str
    secret_hash: str
    jobs: dict[str, int]
    only_measured: int
    largest_measured: str
    not_accused_yet: int
    drawn_by_matcher: int
    taken_by_matcher: int


class Audited(Result, frozen=True):
    """`audits ls`: one stage of one job that watching has re-run."""

    job: str
    stage: int
    operator: str
    verdict: str
    requests: int
    in_float64: int
    deviation: str
    allowed: str
    dispute: str
    why: str


class OperatorStanding(Result, frozen=True):
    """`audits standings`: what audits of an operator came to."""

    operator: str
    jobs: int
    clean: int
    faults: int
    withheld: int
    suspicious: int
    avoid: bool


async def tell_by_hand(run: Run) -> ToldMatcher:
    """`auditor audits tell`."""
    signer = run.unlock()
    async with open_context(run.settings) as context:
        with closing(open_book(run.settings, signer.address)) as book:
            newest, standings = book.untold(), book.standings()
            report = await tell_matcher(context, signer, standings)
            if newest:
                book.told(newest)
    return ToldMatcher(
        auditor=signer.address,
        matcher=run.settings.require_matcher_url(),
        operators=len(report.operators),
        at_fault=sum(1 for o in report.operators if o.faults or o.suspicious),
    )


class WatchMetrics:
    """A watching auditor's metrics."""

    def __init__(self) -> None:
        metrics = self.registry = Metrics()
        self._checks = metrics.counter(
            "headrace_audit_checks_total", "Stages that were re-run, by result", ["result"]
        )
        self._float64 = metrics.counter(
            "headrace_audit_float64_requests_total", "Requests that float32 left in doubt"
        )
        self._paid = metrics.counter(
            "headrace_paid_findings_total",
            "Findings handed to the matcher, by its answer",
            ["result"],
        )
        self._jobs = metrics.gauge("headrace_audit_jobs", "Jobs that are watched", ["state"])
        self._chain = metrics.gauge("headrace_chain_up", "1 when the chain answered last")
        for found in AuditEnd:
            self._checks.labels(found)
        for answer in ("taken", "refused"):
            self._paid.labels(answer)

    def handed_in(self, was_taken: bool) -> None:
        """Count what the matcher said to a finding."""
        self._paid.labels("taken" if was_taken else "refused").inc()

    def judged(self, verdict: StageVerdict) -> None:
        """Count and say one stage's verdict: what others may take for its reputation."""
        self._checks.labels(verdict.found).inc()
        self._float64.inc(verdict.in_float64)
        say = log.info if verdict.found in (AuditEnd.CLEAN, AuditEnd.SHADOW) else log.warning
        say(
            "audited",
            job=ids.short(ids.Kind.JOB, verdict.job_id),
            stage=verdict.stage,
            operator=verdict.operator,
            verdict=str(verdict.found),
            ratio=f"{verdict.ratio:.2e}",
            allowed=f"{verdict.allowed:.0e}",
            why=verdict.why,
        )

    async def follow(self, book: WatchBook, watcher: Watcher) -> None:
        """Keep the gauges current, until cancelled."""
        while True:
            for state, count in book.counts().items():
                self._jobs.labels(state).set(count)
            self._chain.set(watcher.is_chain_up)
            await asyncio.sleep(COUNT_EVERY_S)


def watch_status(settings: Settings, auditor: str) -> Watched:
    """What an auditor that watches, here, has done so far."""
    with closing(open_book(settings, auditor)) as book:
        shadowed, largest = book.shadow()
        drawn, taken = book.paid_lots()
        return Watched(
            auditor=auditor,
            secret_hash=commitment(book.secret()),
            jobs=book.counts(),
            only_measured=shadowed,
            largest_measured=f"{largest:.2e}",
            not_accused_yet=len(book.undisputed()),
            drawn_by_matcher=drawn,
            taken_by_matcher=taken,
        )


def list_verdicts(settings: Settings, auditor: str) -> list[Audited]:
    """Verdicts, newest first."""
    with closing(open_book(settings, auditor)) as book:
        return [
            Audited(
                job=ids.short(ids.Kind.JOB, v.job_id),
                stage=v.stage,
                operator=v.operator,
                verdict=str(v.found),
                requests=v.requests,
                in_float64=v.in_float64,
                deviation=f"{v.ratio:.2e}",
                allowed=f"{v.allowed:.0e}",
                dispute=v.dispute,
                why=v.why,
            )
            for v in book.verdicts()
        ]


def list_standings(settings: Settings, auditor: str) -> list[OperatorStanding]:
    """Every audited operator, the worst first; an order avoids those with faults."""
    with closing(open_book(settings, auditor)) as book:
        return [
            OperatorStanding(
                operator=s.operator,
                jobs=s.jobs,
                clean=s.clean,
                faults=s.faults,
                withheld=s.withheld,
                suspicious=s.suspicious,
                avoid=s.is_suspected,
            )
            for s in book.standings()
        ]
