"""What was submitted, what stages signed for it, and whether it all holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec

from client.context import open_context, open_store
from client.orders.shard_roots import registered_shards
from client.pipeline.on_chain import FoundJob, find_job, job_with_plan
from client.pipeline.verify import (
    Bought,
    RequestAnswer,
    check_answers,
    check_pipeline,
    complete_sets,
    covered,
)
from client.records.keeper import keepers_of, living
from client.records.store import ClientStore, JobRow, SubmissionRow, match_of
from core.money import pricing
from core.protocol import ids, signing, units
from core.protocol.errors import CheckFailed
from core.protocol.types import AuditorDelegation, JobState, ModelSpec, SignedReceipt
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result
from core.runtime.settings import Settings


class JobLine(Result, frozen=True):
    """`jobs ls`. `running`: a program on this machine sees to it."""

    job: str
    name: str
    state: str
    running: bool
    requests: int
    finished: int
    tokens: int
    stages: int


class ShownJob(JobLine, frozen=True):
    """`jobs show`."""

    id: str
    on_chain: str
    locked: str
    tokens_in: int
    tokens_out: int
    plan: list[str]
    transaction: str


class ReceiptLine(Result, frozen=True):
    """`receipts ls`."""

    receipt: str
    job: str
    stage: int
    covers: str
    tokens_in: int
    tokens_out: int


class JobVerified(Result, frozen=True):
    """`receipts verify JOB`."""

    job: str
    signatures: str
    commitments: str
    tokens: str
    price: str
    on_chain: str


class Delegated(Result, frozen=True):
    """`receipts delegate`: what `auditor --delegation` takes."""

    job: str
    delegation: dict[str, Any]
    signature: str


def list_jobs(settings: Settings) -> list[JobLine]:
    """Newest first, from our own records."""
    with closing(open_store(settings)) as store:
        return [_job_line(settings, store, row) for row in store.jobs()]


def keeper_pid(settings: Settings, known: SubmissionRow | None) -> int | None:
    """The program on this machine that sees to a submission; None where none does."""
    return None if known is None else living(keepers_of(settings), known.keeper)


def _job_line(settings: Settings, store: ClientStore, row: JobRow) -> JobLine:
    requests, known = store.requests(row.job_id), store.submission(row.submission)
    return JobLine(
        job=ids.short(ids.Kind.JOB, row.job_id),
        name="" if known is None else known.name,
        state=row.state,
        running=row.state == "open" and keeper_pid(settings, known) is not None,
        requests=len(requests),
        finished=sum(bool(r.finish) for r in requests),
        tokens=sum(len(json.loads(r.tokens)) for r in requests),
        stages=len(match_of(row).plan),
    )


async def show_job(settings: Settings, typed: str) -> ShownJob:
    """One job, from our records and from the chain."""
    with closing(open_store(settings)) as store:
        row = store.find_job(typed)
        line = _job_line(settings, store, row)
    async with open_context(settings) as context:
        job = await find_job(context.chain, match_of(row), settings.network.deploy_block)
    return ShownJob(
        **msgspec.structs.asdict(line),
        id=ids.full(ids.Kind.JOB, row.job_id),
        on_chain=job.state.name.lower(),
        locked=settings.show_token(units.covering_units(job.locked_nano)),
        tokens_in=job.said["tokensIn"],
        tokens_out=job.said["tokensOut"],
        plan=[f"{s.operator} [{s.layers}]" for s in match_of(row).plan],
        transaction=row.tx_hash,
    )


def list_receipts(settings: Settings, typed_job: str | None) -> list[ReceiptLine]:
    """Receipts we hold."""
    with closing(open_store(settings)) as store:
        job_id = store.find_job(typed_job).job_id if typed_job else None
        return [
            ReceiptLine(
                receipt=ids.short(ids.Kind.RECEIPT, row.receipt_id),
                job=ids.short(ids.Kind.JOB, row.job_id),
                stage=row.stage,
                covers="whole job" if row.request_index < 0 else f"request {row.request_index}",
                tokens_in=signed.receipt.tokens_in,
                tokens_out=signed.receipt.tokens_out,
            )
            for row, signed in store.receipts(job_id)
        ]


async def verify_job(settings: Settings, typed: str) -> JobVerified:
    """Re-check everything about a job that needs no model. Raises CheckFailed."""
    with closing(open_store(settings)) as store:
        row = store.find_job(typed)
        match = match_of(row)
        texts = {r.request_index: r for r in store.requests(row.job_id) if r.finish}
        held = [signed for _, signed in store.receipts(row.job_id)]
    answers = {
        index: RequestAnswer(tuple(json.loads(r.prompt_ids)), tuple(json.loads(r.tokens)))
        for index, r in texts.items()
    }
    order = match.signed.order
    check_coverage(held, answers, len(match.plan))  # of our own records, before the chain is asked
    async with open_context(settings) as context:
        chain = context.chain
        shards = await registered_shards(chain, order, match.plan)
        bought = Bought(chain.domain, order, match.plan, shards)
        count, *tokens = check_delivery(held, answers, bought)
        job = await job_with_plan(chain, match)
        spec = msgspec.convert(
            await chain.read("ModelRegistry", "specOf", order.model_id), ModelSpec
        )
        theirs = await chain.read("TaskRegistry", "split", order, list(match.plan), *tokens)
    _check_chain(job, *tokens)
    expected = pricing.split(order, match.plan, spec, *tokens)
    price, pay = (
        settings.show_token(units.whole_units(sum(nano)))
        for nano in ([expected.paid], theirs["pay"])
    )
    if tuple(theirs["gross"]) != expected.gross:
        why = f"{theirs['gross']} and {expected.gross}"
        raise CheckFailed("the contract's split differs from ours", why)
    return JobVerified(
        job=ids.short(ids.Kind.JOB, row.job_id),
        signatures=f"{count} receipts, all by the plan's operators",
        commitments="chained from prompt to answer, shards as registered",
        tokens=f"{tokens[0]} in, {tokens[1]} out, equal to what was sent and received",
        price=f"{price} for {_answers(len(answers))}, {pay} of it to miners",
        on_chain=job.state.name.lower(),
    )


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"


def check_coverage(
    held: Sequence[SignedReceipt], answers: Mapping[int, RequestAnswer], stages: int
) -> list[list[SignedReceipt]]:
    """One receipt a stage over each part of the job. Raises CheckFailed unless all answers have."""
    pipelines = complete_sets(held, stages)
    signed = {index for receipts in pipelines for index in covered(receipts)}
    if not answers or signed != set(answers):
        raise CheckFailed(
            "receipts and answers do not match",
            f"there are answers to {sorted(answers)}, receipts of every stage for {sorted(signed)}",
        )
    return pipelines


def check_delivery(
    held: Sequence[SignedReceipt],
    answers: Mapping[int, RequestAnswer],
    bought: Bought,
) -> tuple[int, int, int]:
    """How many receipts, tokens in and tokens out. Raises CheckFailed.

    Receipts and answers cover each other, and are signed and chained by the plan of the order.
    """
    pipelines = check_coverage(held, answers, len(bought.plan))
    for receipts in pipelines:
        check_pipeline(receipts, bought)
        check_answers(receipts, {i: answers[i] for i in covered(receipts)})
    tokens_in = sum(len(answer.prompt_ids) for answer in answers.values())
    tokens_out = sum(len(answer.tokens) for answer in answers.values())
    return sum(map(len, pipelines)), tokens_in, tokens_out


def _check_chain(job: FoundJob, tokens_in: int, tokens_out: int) -> None:
    """Raise CheckFailed unless the chain has this job, plan and, once paid, these counts."""
    if job.state is JobState.NONE:
        raise CheckFailed(
            "the job on chain is another one",
            "there is none of this order with the plan that its matcher told",
        )
    counted = (job.said["tokensIn"], job.said["tokensOut"])
    paid = job.state in (JobState.DELIVERED, JobState.DISPUTED, JobState.SETTLED)
    if paid and counted != (tokens_in, tokens_out):
        raise CheckFailed(
            "the chain counts other tokens",
            f"{counted[0]} in and {counted[1]} out, we have {tokens_in} and {tokens_out}",
        )


async def delegate(run: Run, typed: str, auditor: str, valid: str) -> Delegated:
    """A signed permission to audit and dispute one job."""
    settings = run.settings
    with closing(open_store(settings)) as store:
        match = match_of(store.find_job(typed))
    signer = run.unlock()
    valid_s = units.parse_duration(valid)
    async with open_context(settings) as context:
        permission = AuditorDelegation(
            match.order_hash, ids.address(auditor), await context.chain.now() + valid_s
        )
        run.confirm(
            "Sign it?",
            {
                "job": ids.short(ids.Kind.JOB, match.job_id),
                "auditor": f"{permission.auditor} may read its evidence and dispute it for you",
                "until": f"in {units.format_duration(valid_s)}",
                "costs": "nothing; it is not sent to the chain",
            },
        )
        signature = signing.sign(signer, context.chain.domain, permission)
    return Delegated(
        job=ids.full(ids.Kind.JOB, match.job_id),
        delegation=msgspec.to_builtins(permission),
        signature=signature,
    )
