"""`auditor bundle` and `auditor verify`: a job in one JSON file for a third party, and its check.

The signed order, the plan, the model as registered, every receipt with its leaves, prompts and
answers as token ids. It proves who signed what over which rows; that the chain has the job, and
that the layers were computed, only chain and model can tell.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec

from client.commands.ask.job_list import check_delivery
from client.context import open_context, open_store
from client.orders.shard_roots import registered_shards
from client.pipeline.verify import Bought, RegisteredShards, RequestAnswer
from client.records.store import match_of
from core.money import pricing
from core.protocol import ids, signing, units
from core.protocol import types as t
from core.protocol.errors import CheckFailed, UsageError
from core.runtime.commands.results import Result
from core.runtime.settings import Settings

FORM = "headrace.bundle/1"
MAX_BYTES = 512 * 2**20


class BundledAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer: what went in, and what came out."""

    request: int
    custom_id: str
    prompt_ids: list[int]
    tokens: list[int]
    finish: str
    salt: str


class EvidenceBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    form: str
    chain_id: int
    task_registry: t.Address
    job_id: t.Hash32
    transaction: str
    signed: t.SignedOrder
    plan: Annotated[list[t.Stage], msgspec.Meta(min_length=1)]
    spec: t.ModelSpec
    shard_roots: list[t.Hash32]
    receipts: list[t.SignedReceipt]
    answers: list[BundledAnswer]
    span_layers: t.U8 = 0


class BundleWritten(Result, frozen=True):
    """`bundle`: what a third party needs to check a job on its own."""

    file: str
    job: str
    receipts: int
    requests: int
    bytes: int


class BundleVerified(Result, frozen=True):
    """`verify`: what holds, and what only chain and model can tell."""

    job: str
    order: str
    receipts: str
    tokens_in: int
    tokens_out: int
    due: str
    still_to_check: str


async def write_bundle(settings: Settings, typed: str, out: Path) -> BundleWritten:
    """Write a job, or a receipt's, from our records. Raises IdInvalid, UsageError if it exists."""
    with closing(open_store(settings)) as store:
        if typed.startswith(ids.Kind.RECEIPT.value):
            row = store.find_job(store.find_receipt(typed)[0].job_id)
        else:
            row = store.find_job(typed)
        match = match_of(row)
        receipts = [signed for _, signed in store.receipts(row.job_id)]
        answers = [
            BundledAnswer(
                r.request_index,
                r.custom_id,
                json.loads(r.prompt_ids),
                json.loads(r.tokens),
                r.finish,
                r.salt,
            )
            for r in store.requests(row.job_id)
            if r.finish
        ]
    order = match.signed.order
    async with open_context(settings) as context:
        chain = context.chain
        shards = await registered_shards(chain, order, match.plan)
        spec = msgspec.convert(
            await chain.read("ModelRegistry", "specOf", order.model_id), t.ModelSpec
        )
        bundle = EvidenceBundle(
            form=FORM,
            chain_id=chain.chain_id,
            task_registry=ids.address(chain.domain.verifying_contract),
            job_id=match.job_id,
            transaction=match.tx_hash,
            signed=match.signed,
            plan=list(match.plan),
            spec=spec,
            shard_roots=[shards.root_of(place.layer_from, place.layer_to) for place in match.plan],
            receipts=receipts,
            answers=answers,
            span_layers=shards.span_layers,
        )
    content = msgspec.json.encode(bundle)
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
    except OSError as error:
        raise UsageError(
            f"{out} is not written", error.strerror or str(error), next_step="choose another name"
        ) from None
    return BundleWritten(
        file=str(out),
        job=ids.short(ids.Kind.JOB, match.job_id),
        receipts=len(receipts),
        requests=len(answers),
        bytes=len(content),
    )


def verify_bundle(file: Path) -> BundleVerified:
    """Check what needs neither chain nor model. Raises UsageError for no bundle, CheckFailed."""
    try:
        with file.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        bundle = msgspec.json.decode(content, type=EvidenceBundle)
        if bundle.form != FORM:
            raise ValueError(f"its form is {bundle.form}, known is {FORM}")
    except OSError as error:
        raise UsageError(f"cannot read {file}", error.strerror or str(error)) from None
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(
            f"{file} is no bundle", str(error), next_step="auditor bundle JOB --out FILE"
        ) from None
    return check_bundle(bundle)


def check_bundle(bundle: EvidenceBundle) -> BundleVerified:
    """Check that order, plan, receipts and answers belong together. Raises CheckFailed."""
    domain = signing.Domain(bundle.chain_id, bundle.task_registry)
    order, plan = bundle.signed.order, tuple(bundle.plan)
    if signing.job_id(domain, order) != bundle.job_id:
        raise CheckFailed("the order makes another job", f"the file says {bundle.job_id}")
    if signing.model_id(bundle.spec) != order.model_id:
        raise CheckFailed("the model is another one", f"ordered was {order.model_id}")
    if len(bundle.shard_roots) != len(plan):
        raise CheckFailed(
            "the plan has no shard for every stage", f"{len(plan)} and {len(bundle.shard_roots)}"
        )
    signer = signing.recover(domain, order, bundle.signed.signature)
    if signer is None:
        raise CheckFailed("nobody signed the order", "its signature is none")
    roots = {
        (stage.layer_from, stage.layer_to): root
        for stage, root in zip(plan, bundle.shard_roots, strict=True)
    }
    answers = {
        a.request: RequestAnswer(tuple(a.prompt_ids), tuple(a.tokens)) for a in bundle.answers
    }
    shards = RegisteredShards(lambda a, b: roots[a, b], bundle.span_layers)
    bought = Bought(domain, order, plan, shards)
    count, tokens_in, tokens_out = check_delivery(bundle.receipts, answers, bought)
    due = pricing.split(order, plan, bundle.spec, tokens_in, tokens_out)
    by = "the requester" if signer == order.requester else f"its spender {signer}"
    return BundleVerified(
        job=ids.short(ids.Kind.JOB, bundle.job_id),
        order=f"signed by {by} for chain {bundle.chain_id}",
        receipts=f"{count}, all by the plan's operators, chained from prompt to answer",
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        due=units.format_token(units.whole_units(due.paid)),
        still_to_check="that the chain has this job and these roots (client receipts verify), and "
        "the layers themselves (auditor check)",
    )
