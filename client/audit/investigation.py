"""How does an auditor get to a job: find it, reach its stages, load registered weights, judge?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from client.audit.evidence import (
    AuditCase,
    Delegation,
    EvidenceCollector,
    case_of_job,
    delivered_receipts,
    events_named,
)
from client.audit.precheck import scaled
from client.audit.programs import profile_named
from client.audit.rerun import AuditEffort, ShardSource, StageFinding, audit_job
from client.context import Context, open_store
from client.orders.shard_roots import shard_roots
from client.pipeline.verify import Bought, RegisteredShards, check_pipeline, complete_sets, disjoint
from client.records.store import match_of
from core.models.programs import span_layers_of
from core.protocol import ids, signing
from core.protocol.errors import (
    ConfigError,
    IdInvalid,
    MatcherUnreachable,
    UsageError,
)
from core.protocol.types import AuditorDelegation, LayerRange, Signature, SignedReceipt
from core.runtime.commands.results import Result
from core.runtime.network.channel import Peers, StreamIdentity


@dataclass(frozen=True)
class Investigation:
    """A job, its receipts, and what re-running it found."""

    case: AuditCase
    pipelines: list[list[SignedReceipt]]
    findings: list[StageFinding]  # none if it was not re-run
    efforts: Mapping[int, AuditEffort] = field(default_factory=dict)  # by stage

    @property
    def guilty(self) -> StageFinding | None:
        """The first stage at fault: those after it were judged on what they really received."""
        return next((f for f in self.findings if f.at_fault), None)

    def accused(self, stage: int) -> SignedReceipt:
        """The receipt to hold against a stage: of the request that convicts it, else the widest."""
        of_stage = [pipeline[stage] for pipeline in self.pipelines]
        finding = next((f for f in self.findings if f.stage == stage), None)
        worst = finding.worst if finding else None
        if worst is None or not worst.at_fault:
            return of_stage[0]
        return next(
            signed
            for signed in of_stage
            if worst.request_index in {leaf.request_index for leaf in signed.leaves}
        )


async def resolve_job(context: Context, typed: str) -> str:
    """Job id (0x hex) of one of our jobs, one of our receipts, or any job on chain.

    Raises IdInvalid or ChainUnreachable.
    """
    with closing(open_store(context.settings)) as store:
        if typed.lower().startswith(f"{ids.Kind.RECEIPT.value}_"):
            return store.find_receipt(typed)[0].job_id
        ours = {row.job_id for row in store.jobs()}
    try:
        return ids.find(ids.Kind.JOB, typed, ours, lambda j: j)
    except IdInvalid:
        return ids.find(ids.Kind.JOB, typed, await _jobs_on_chain(context), lambda j: j)


async def _jobs_on_chain(context: Context) -> set[str]:
    deploy_block = context.settings.network.deploy_block
    return {e.args["job"] for e in await events_named(context.chain, "JobMatched", deploy_block)}


async def endpoints_of(context: Context, case: AuditCase) -> dict[str, str]:
    """Where each stage can be reached, by operator in lower case: now, else when the job opened.

    Raises MatcherUnreachable or ConfigError when the job is not ours.
    """
    found: dict[str, str] = {}
    with closing(open_store(context.settings)) as store:
        for row in store.jobs():
            if row.job_id == case.job_id:
                match = match_of(row)
                pairs = zip(match.plan, match.endpoints, strict=True)
                found = {stage.operator.lower(): endpoint for stage, endpoint in pairs}
    try:
        return found | await _endpoints_now(context)
    except (MatcherUnreachable, ConfigError):
        if not found:
            raise
        return found


async def _endpoints_now(context: Context) -> dict[str, str]:
    api = context.matcher()
    try:
        miners = await api.miners()
    finally:
        await api.close()
    return {
        str(miner.get("operator")).lower(): str(miner["endpoint"])
        for miner in miners
        if miner.get("endpoint")
    }


def read_delegation(file: Path | None) -> Delegation | None:
    """What `client receipts delegate --json` printed. Raises UsageError."""
    if file is None:
        return None
    try:
        document = json.loads(file.read_text())
        content = document.get("result", document)
        return Delegation(
            msgspec.convert(content["delegation"], AuditorDelegation),
            msgspec.convert(content["signature"], Signature),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not a delegation", str(error)) from None


@asynccontextmanager
async def open_evidence(
    context: Context,
    signer: signing.DigestSigner,
    case: AuditCase,
    delegation: Delegation | None = None,
) -> AsyncIterator[EvidenceCollector]:
    """Access to what a case's stages hold, with our key."""
    domain = context.chain.domain
    peers = Peers(StreamIdentity.on(context.settings.network, signer, domain))
    try:
        endpoints = await endpoints_of(context, case)
        chain, from_block = context.chain, context.settings.network.deploy_block
        read = partial(delivered_receipts, chain, case.job_id, from_block)
        yield EvidenceCollector(case, domain, peers, endpoints, delegation, delivered=read)
    finally:
        await peers.close()


async def source_of(context: Context, case: AuditCase, tolerance: float = 1.0) -> ShardSource:
    """Weights of a case's model, with `tolerance` times its profile's room.

    What of them is not here is fetched when a stage is looked at. Raises ModelUnknown,
    ModelUnsupported for its numerics, and what `Context.files_of` does.
    """
    model = await context.model(case.order.model_id)
    files = await context.files_of(model, with_weights=True)
    profile, program = await profile_named(context.chain, case.order.numerics_profile)
    return ShardSource(files.folder, scaled(profile, tolerance), program, fetch=files.fetch)


async def investigate(
    context: Context,
    signer: signing.DigestSigner,
    typed: str,
    delegation: Delegation | None,
    progress: Callable[[int, int, int], None],
    *,
    rerun: bool = True,
    layers: LayerRange | None = None,
    tolerance: float = 1.0,
) -> Investigation:
    """Check a job's receipts and re-run its stages, or only those with some of the `layers`.

    They are held to `tolerance` times what the model's profile allows. Raises CheckFailed when the
    receipts alone do not hold.
    """
    job_id = await resolve_job(context, typed)
    case = await case_of_job(context.chain, job_id, context.settings.network.deploy_block)
    roots = await shard_roots(context.chain, case.order.model_id, case.plan)
    async with open_evidence(context, signer, case, delegation) as evidence:
        pipelines = _held(context, case) or await evidence.pipelines()
        domain = context.chain.domain
        span_layers = await span_layers_of(context.chain, case.order.numerics_profile)
        shards = RegisteredShards(lambda a, b: roots[a, b], span_layers)
        bought = Bought(domain, case.order, case.plan, shards)
        for receipts in pipelines:
            check_pipeline(receipts, bought, are_shown=False)
        findings: list[StageFinding] = []
        efforts: dict[int, AuditEffort] = {}
        if rerun:
            source = await source_of(context, case, tolerance)
            findings = await audit_job(
                evidence,
                source,
                [
                    [leaf for receipts in pipelines for leaf in receipts[stage].leaves]
                    for stage in range(len(case.plan))
                ],
                [roots[stage.layer_from, stage.layer_to] for stage in case.plan],
                progress,
                effort=efforts.__setitem__,
                stages=None if layers is None else stages_with(case, layers),
            )
    return Investigation(case, pipelines, findings, efforts)


def stages_with(case: AuditCase, layers: LayerRange) -> list[int]:
    """The stages that hold some of these layers: a stage is re-run whole, for it signs its ends.

    Raises UsageError where none does.
    """
    found = [
        number
        for number, place in enumerate(case.plan)
        if place.layer_from < layers.end and layers.start < place.layer_to
    ]
    if not found:
        last = case.plan[-1].layer_to
        raise UsageError(f"no stage holds layers {layers}", f"the model has {last}")
    return found


def _held(context: Context, case: AuditCase) -> list[list[SignedReceipt]]:
    """Receipts of all stages from our own records, if the job is ours."""
    with closing(open_store(context.settings)) as store:
        receipts = [signed for _, signed in store.receipts(case.job_id)]
    return disjoint(complete_sets(receipts, len(case.plan)))


class Finding(Result, frozen=True, forbid_unknown_fields=False):
    """How far a stage's outputs are from an honest run, and what follows."""

    stage: int
    operator: str
    layers: str
    requests: int
    deviation: str
    allowed: str
    first_divergent_step: str
    tolerance: str
    verdict: str
    why: str


class StageChecked(Finding, frozen=True):
    """`check`: also what looking took, beside what serving did."""

    re_run_s: str
    of_serving: str


def describe_finding(finding: StageFinding, tolerance: float = 1.0) -> Finding:
    """What the auditor says of a stage; by another `tolerance` it is not at fault, only outside."""
    worst = finding.worst
    return Finding(
        stage=finding.stage,
        operator=finding.operator,
        layers=f"{finding.layers[0]}-{finding.layers[1] - 1}",
        requests=len(finding.requests),
        deviation=f"{worst.ratio:.2e}" if worst else "–",
        allowed=f"{worst.limit:.0e}" if worst else "–",
        first_divergent_step=_first_step(finding),
        tolerance="the network's" if tolerance == 1.0 else f"{tolerance:g} x the network's",
        verdict=_verdict(finding, tolerance),
        why=finding.why,
    )


def describe_cost(found: Investigation, stage: int) -> dict[str, str]:
    """Seconds that looking at a stage took, beside the whole seconds that it signed for serving."""
    effort = found.efforts.get(stage)
    receipts = [pipeline[stage].receipt for pipeline in found.pipelines]
    served_s = sum(max(1, receipt.signed_at - receipt.started_at) for receipt in receipts)
    if effort is None or not served_s:
        return {"re_run_s": "–", "of_serving": "–"}
    return {
        "re_run_s": f"{effort.spent_s:.2f}",
        "of_serving": f"{100 * effort.spent_s / served_s:.1f} % of {served_s} s",
    }


def _verdict(finding: StageFinding, tolerance: float) -> str:
    if finding.withheld or tolerance == 1.0:
        return "FAULT" if finding.at_fault else "suspicious" if finding.suspicion else "ok"
    return "outside" if finding.at_fault else "inside"


def _first_step(finding: StageFinding) -> str:
    for request in finding.requests:
        if request.at_fault and request.first_divergent_step is not None:
            return f"request {request.request_index}, position {request.first_divergent_step}"
    return ""
