"""What does one receipt say, and does a file of receipts hold without our own records?"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import msgspec

from client.audit.evidence import AuditCase, case_matched, events_named
from client.context import Context, open_context, open_store
from client.orders.shard_roots import registered_shards
from client.pipeline.verify import Bought, RegisteredShards, check_receipt
from client.records.store import match_of, receipt_hash
from core.protocol import ids
from core.protocol.errors import CheckFailed, UsageError
from core.protocol.types import SignedReceipt
from core.runtime.commands.results import Result
from core.runtime.settings import Settings

Cases = dict[tuple[str, str], tuple[AuditCase, RegisteredShards]]


class ShownReceipt(Result, frozen=True):
    """`receipts show`."""

    receipt: str
    job: str
    stage: int
    operator: str
    layers: str
    requests: int
    tokens_in: int
    tokens_out: int
    input_root: str
    output_root: str
    shard_root: str
    signed_at: int
    signature: str


class FileVerified(Result, frozen=True):
    """`receipts verify FILE`."""

    file: str
    receipts: int
    distinct: int
    jobs: list[str]
    signatures: str


def show_receipt(settings: Settings, typed: str) -> ShownReceipt:
    """Everything that a stage signed for. Raises IdInvalid."""
    with closing(open_store(settings)) as store:
        row, signed = store.find_receipt(typed)
        match = match_of(store.find_job(row.job_id))
    receipt = signed.receipt
    return ShownReceipt(
        receipt=ids.full(ids.Kind.RECEIPT, row.receipt_id),
        job=ids.short(ids.Kind.JOB, row.job_id),
        stage=receipt.stage,
        operator=match.plan[receipt.stage].operator,
        layers=f"{receipt.layer_from}-{receipt.layer_to - 1}",
        requests=receipt.requests,
        tokens_in=receipt.tokens_in,
        tokens_out=receipt.tokens_out,
        input_root=receipt.input_root,
        output_root=receipt.output_root,
        shard_root=receipt.shard_root,
        signed_at=receipt.signed_at,
        signature=signed.signature,
    )


async def verify_file(settings: Settings, file: Path) -> FileVerified:
    """Check form, signer, place in the plan and shard of each receipt of a file of `jobs fetch`.

    Plan and order are read from the chain, so that a third party can check the file. Raises
    CheckFailed naming the line, UsageError for what is no such file.
    """
    found = read_receipts(file)
    async with open_context(settings) as context:
        cases = await cases_of(context, {signed.receipt.plan_hash for _, signed in found})
        for number, signed in found:
            _check_line(context, number, signed, cases)
    return FileVerified(
        file=str(file),
        receipts=len(found),
        distinct=len({receipt_hash(signed) for _, signed in found}),
        jobs=sorted({ids.short(ids.Kind.JOB, case.job_id) for case, _ in cases.values()}),
        signatures="all by the operators of the plans on chain",
    )


async def cases_of(context: Context, plan_hashes: set[str]) -> Cases:
    """The jobs on chain with these plans, and their shards' roots, by order hash and plan hash."""
    first = context.settings.network.deploy_block
    found: Cases = {}
    for event in await events_named(context.chain, "JobMatched", first):
        if event.args["planHash"] in plan_hashes:
            case = await case_matched(context.chain, event.args["job"], event.tx_hash)
            shards = await registered_shards(context.chain, case.order, case.plan)
            found[case.order_hash, case.plan_hash] = case, shards
    return found


def _check_line(context: Context, number: int, signed: SignedReceipt, cases: Cases) -> None:
    receipt = signed.receipt
    case, shards = cases.get((receipt.order_hash, receipt.plan_hash), (None, None))
    if case is None or shards is None or receipt.stage >= len(case.plan):
        raise CheckFailed(
            f"line {number} is about no job of this chain",
            f"order {receipt.order_hash}, plan {receipt.plan_hash}, stage {receipt.stage}",
        )
    try:
        domain = context.chain.domain
        bought = Bought(domain, case.order, case.plan, shards)
        check_receipt(signed, bought, receipt.stage)
    except CheckFailed as error:
        raise CheckFailed(f"line {number} does not hold: {error.what}", error.why) from None


def read_receipts(file: Path) -> list[tuple[int, SignedReceipt]]:
    """(line number, receipt) of a JSONL file. Raises UsageError."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {file}", error.strerror or str(error)) from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append((number, msgspec.convert(json.loads(line), SignedReceipt)))
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(
                f"line {number} of {file} is no receipt",
                str(error),
                next_step="`client jobs fetch JOB` writes such a file",
            ) from None
    if not found:
        raise UsageError(f"{file} holds no receipt", "it is empty")
    return found
