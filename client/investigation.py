"""How an auditor gets to a job: find it on chain, reach its stages, load the registered weights, judge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from client.audit import ShardSource, StageFinding, audit_job
from client.context import Context, model_folder, open_store
from client.evidence import Case, Delegation, Evidence, case_of_job
from client.store import match_of
from client.verify import check_pipeline
from core.protocol import ids, signing
from core.protocol.chain import Chain
from core.protocol.errors import IdInvalid, ModelUnknown, UsageError
from core.protocol.types import AuditorDelegation, SignedReceipt
from core.runtime.channel import Peers, StreamIdentity
from core.runtime.settings import Settings


@dataclass(frozen=True)
class Investigation:
    """A job, its receipts and what re-running it found."""

    case: Case
    receipts: list[SignedReceipt]
    findings: list[StageFinding]

    @property
    def guilty(self) -> StageFinding | None:
        """The first stage at fault: those after it were judged on what they really received."""
        return next((f for f in self.findings if f.at_fault), None)


async def resolve_job(context: Context, typed: str) -> str:
    """Job id (0x hex) from what a person typed: one of our jobs, one of our receipts, or any job on chain."""
    store = open_store(context.settings)
    try:
        if typed.lower().startswith(f"{ids.Kind.RECEIPT.value}_"):
            return store.find_receipt(typed)[0].job_id
        ours = {row.job_id for row in store.jobs()}
    finally:
        store.close()
    try:
        return ids.find(ids.Kind.JOB, typed, ours, lambda j: j)
    except IdInvalid:
        return ids.find(ids.Kind.JOB, typed, await _jobs_on_chain(context), lambda j: j)


async def _jobs_on_chain(context: Context) -> set[str]:
    chain, first = context.chain, context.settings.network.deploy_block
    head = await chain.block_number()
    found: set[str] = set()
    for start in range(first, head + 1, 2000):
        events = await chain.events(start, min(head, start + 1999))
        found |= {e.args["job"] for e in events if e.name == "JobMatched"}
    return found


async def endpoints_of(context: Context, case: Case) -> dict[str, str]:
    """Where each stage can be reached, by operator in lower case. Whoever answers there still has to prove its key."""
    found: dict[str, str] = {}
    store = open_store(context.settings)
    try:
        for row in store.jobs():
            if row.job_id == case.job_id:
                match = match_of(row)
                found |= {
                    s.operator.lower(): e for s, e in zip(match.plan, match.endpoints, strict=True)
                }
    finally:
        store.close()
    missing = {s.operator.lower() for s in case.plan} - set(found)
    if missing:
        api = context.matcher()
        try:
            for miner in await api.miners():
                if str(miner["operator"]).lower() in missing and miner.get("endpoint"):
                    found[str(miner["operator"]).lower()] = str(miner["endpoint"])
        finally:
            await api.close()
    return found


def read_delegation(file: Path | None) -> Delegation | None:
    """What `client receipts delegate --json` printed. Raises UsageError."""
    if file is None:
        return None
    try:
        document = json.loads(file.read_text())
        content = document.get("result", document)
        return Delegation(
            msgspec.convert(content["delegation"], AuditorDelegation), str(content["signature"])
        )
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as error:
        raise UsageError(f"{file} is not a delegation", str(error)) from None


@asynccontextmanager
async def open_evidence(
    context: Context, signer: signing.DigestSigner, case: Case, delegation: Delegation | None = None
) -> AsyncIterator[Evidence]:
    """Access to what a case's stages hold, with our key."""
    peers = Peers(StreamIdentity(signer, context.chain.domain))
    try:
        yield Evidence(
            case, context.chain.domain, peers, await endpoints_of(context, case), delegation
        )
    finally:
        await peers.close()


def source_of(settings: Settings, model_id: str) -> ShardSource:
    """Weights of a registered model on this machine. Raises ModelUnknown or ModelMissing."""
    from core.engine.numerics import FP32

    name = next((n for n, i in settings.network.models.items() if i == model_id), None)
    if name is None:
        raise ModelUnknown(
            f"no name is known for model {model_id}", "it is not in the network file"
        )
    return ShardSource(model_folder(name, settings), FP32)


async def shard_roots(chain: Chain, case: Case) -> list[str]:
    """The registered commitment of each stage's layers."""
    return [
        str(
            await chain.read(
                "ModelRegistry", "shardRoot", case.order.model_id, s.layer_from, s.layer_to
            )
        )
        for s in case.plan
    ]


async def investigate(
    context: Context,
    signer: signing.DigestSigner,
    typed: str,
    delegation: Delegation | None,
    progress: Callable[[int, int, int], None],
) -> Investigation:
    """Check a job's receipts and re-run every stage of it. Raises CheckFailed when the receipts alone do not hold."""
    job_id = await resolve_job(context, typed)
    case = await case_of_job(context.chain, job_id, context.settings.network.deploy_block)
    roots = await shard_roots(context.chain, case)
    async with open_evidence(context, signer, case, delegation) as evidence:
        receipts = await evidence.latest_receipts()
        by_layers = {
            (s.layer_from, s.layer_to): root for s, root in zip(case.plan, roots, strict=True)
        }
        check_pipeline(
            receipts,
            domain=context.chain.domain,
            order=case.order,
            plan=case.plan,
            shard_root_of=lambda a, b: by_layers[a, b],
        )
        findings = await audit_job(
            evidence,
            source_of(context.settings, case.order.model_id),
            [r.leaves for r in receipts],
            roots,
            progress,
        )
    return Investigation(case, receipts, findings)


def describe_finding(finding: StageFinding) -> dict[str, Any]:
    """A row of the auditor's table."""
    worst = finding.worst
    return {
        "stage": finding.stage,
        "operator": finding.operator,
        "layers": f"{finding.layers[0]}-{finding.layers[1] - 1}",
        "deviation": f"{worst.ratio:.2e}" if worst else "–",
        "allowed": f"{worst.limit:.0e}" if worst else "–",
        "first_divergent_step": _first_step(finding),
        "verdict": "FAULT" if finding.at_fault else "ok",
        "why": finding.withheld or (worst.reasons[0] if worst and worst.reasons else ""),
    }


def _first_step(finding: StageFinding) -> str:
    for request in finding.requests:
        if request.at_fault and request.first_divergent_step is not None:
            return f"request {request.request_index}, position {request.first_divergent_step}"
    return ""
