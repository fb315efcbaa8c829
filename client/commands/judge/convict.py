"""`auditor convict`: find what convicts a job's stages by their own words, and send it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

from client.audit.contradictions import Contradiction, find, of_receipts
from client.audit.evidence import AuditCase, Delegation, PromptOpening, case_of_job
from client.audit.investigation import open_evidence, read_delegation, resolve_job
from client.commands.ask.receipts import cases_of, read_receipts
from client.context import Context, open_context, open_store
from client.orders.orders import PromptBatch
from client.records.store import RequestRow, prompt_of
from core.chain.chain import Sent
from core.protocol import commit, ids, wire
from core.protocol.errors import ConfigError, ContractRefused, UsageError
from core.protocol.signing import DigestSigner
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result

CONTRACT = "Evidence"


class Convicted(Result, frozen=True):
    """`convict`: a stage at fault, by which call and why, and what it lost, in base units."""

    job: str
    stage: int
    operator: str
    evidence: str
    request: int
    why: str
    gas: int
    slashed: str
    tx_hash: str


async def contradictions(
    context: Context, signer: DigestSigner, case: AuditCase, delegation: Delegation | None
) -> tuple[list[Contradiction], list[str]]:
    """What stages and our own records show against the stages, and what could not be seen."""
    with closing(open_store(context.settings)) as store:
        own = [signed for _, signed in store.receipts(case.job_id)]
        asked = _asked(case, store.requests(case.job_id))
    async with open_evidence(context, signer, case, delegation) as evidence:
        return await find(evidence, own, asked)


def _asked(case: AuditCase, rows: Sequence[RequestRow]) -> dict[int, PromptOpening]:
    """The prompts of a batch of ours, as its order commits to them."""
    if case.order.is_open or len(rows) != case.order.requests:
        return {}
    batch = PromptBatch.of([prompt_of(row) for row in rows])
    found = {}
    for index, prompt in enumerate(batch.prompts):
        proof, salt = batch.opening(index), commit.to_hex(prompt.salt)
        shown = wire.Opening(salt, proof.prompt_proof, prompt.sampling, proof.sampling_proof)
        found[index] = PromptOpening(prompt.ids, prompt.sampling, shown)
    return found


async def convict_job(run: Run, typed: str, delegation_file: Path | None) -> None:
    """Convict each stage that its own words convict. Raises UsageError where none are found."""
    delegation, signer = read_delegation(delegation_file), run.unlock()
    async with open_context(run.settings) as context:
        _check_network(context)
        job_id = await resolve_job(context, typed)
        case = await case_of_job(context.chain, job_id, run.settings.network.deploy_block)
        found, gaps = await contradictions(context, signer, case, delegation)
        for gap in gaps:
            run.note(f"not seen: {gap}")
        await _convict_all(run, context, signer, [(case, one) for one in found])


async def convict_by_file(run: Run, file: Path) -> None:
    """Convict each stage that the receipts of a file convict, whoever holds them.

    Stages are not asked. Raises UsageError where none is convicted.
    """
    receipts, signer = [signed for _, signed in read_receipts(file)], run.unlock()
    async with open_context(run.settings) as context:
        _check_network(context)
        cases = await cases_of(context, {signed.receipt.plan_hash for signed in receipts})
        found = [
            (case, one)
            for case, _ in cases.values()
            for one in of_receipts(context.chain.domain, case, receipts)
        ]
        await _convict_all(run, context, signer, found)


def _check_network(context: Context) -> None:
    if CONTRACT not in context.chain.addresses:
        raise ConfigError("this network has no Evidence", "the network file does not name it")


async def _convict_all(
    run: Run,
    context: Context,
    signer: DigestSigner,
    found: Sequence[tuple[AuditCase, Contradiction]],
) -> None:
    due = [(case, one) for case, one in found if await _is_due(context, case, one)]
    if not due:
        why = "no stage contradicts the order or itself by what could be seen"
        raise UsageError(
            "there is nothing to convict by" if not found else "all are convicted already",
            why if not found else f"{len(found)} at fault",
            next_step="auditor check JOB",
        )
    costs = [
        await context.chain.simulate(signer.address, CONTRACT, one.call, *_call(case, one))
        for case, one in due
    ]
    lines = [
        (f"stage {one.stage}", f"{one.call}, request {one.request}: {one.why}; {gas} gas")
        for (_, one), gas in zip(due, costs, strict=True)
    ]
    run.confirm("Convict?", lines)
    run.emit([await _convict(run, context, signer, case, one) for case, one in due])


async def convict_unasked(
    context: Context, signer: DigestSigner, case: AuditCase, delegation: Delegation | None
) -> AsyncIterator[tuple[Contradiction, Sent]]:
    """Convict each stage that its own words convict, and that is not convicted yet, and tell it.

    Raises HeadraceError; what was told before has happened.
    """
    found, _ = await contradictions(context, signer, case, delegation)
    for one in found:
        if await _is_due(context, case, one):
            yield one, await _sent(context, signer, case, one)


async def _is_due(context: Context, case: AuditCase, one: Contradiction) -> bool:
    """Whether the stage is not convicted in this job yet."""
    job = await context.chain.read("TaskRegistry", "jobOf", case.job_id, case.plan_hash)
    return not job["faultMask"] >> one.stage & 1


async def _sent(
    context: Context, signer: DigestSigner, case: AuditCase, one: Contradiction
) -> Sent:
    return await context.chain.transact(signer, CONTRACT, one.call, *_call(case, one))


async def _convict(
    run: Run, context: Context, signer: DigestSigner, case: AuditCase, one: Contradiction
) -> Convicted:
    sent = await _sent(context, signer, case, one)
    return Convicted(
        job=ids.short(ids.Kind.JOB, case.job_id),
        stage=one.stage,
        operator=case.plan[one.stage].operator,
        evidence=one.call,
        request=one.request,
        why=one.why,
        gas=sent.gas_used,
        slashed=run.settings.show_token(await _slashed(context, case, one, sent)),
        tx_hash=sent.tx_hash,
    )


async def _slashed(context: Context, case: AuditCase, one: Contradiction, sent: Sent) -> int:
    for event in await context.chain.events(sent.block_number, sent.block_number):
        args = event.args
        if event.name == "JobConvicted" and (args["job"], args["stage"]) == (
            case.job_id,
            one.stage,
        ):
            return int(args["slashed"])
    raise ContractRefused(one.call, error="no conviction was logged")


def _call(case: AuditCase, one: Contradiction) -> tuple[object, ...]:
    return case.order, list(case.plan), *one.arguments
