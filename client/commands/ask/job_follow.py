"""What became of a job? Its requests and events, waiting for its end, ending it, its files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from client.audit.evidence import events_of_job
from client.commands.ask.job_list import keeper_pid
from client.commands.ask.left import is_left, settle_left
from client.context import Context, model_folder, model_name, open_context, open_store
from client.pipeline.on_chain import FoundJob, find_job
from client.pipeline.pipeline import Match
from client.records.store import JobRow, RequestRow, match_of
from core.protocol import ids, units
from core.protocol.errors import DeadlinePassed, UsageError
from core.protocol.signing import DigestSigner
from core.protocol.types import JobState, SamplingParams
from core.runtime.clock import SystemClock
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result
from core.runtime.settings import Settings

ENDED = (JobState.SETTLED, JobState.CANCELLED, JobState.EXPIRED)
POLL_S = 1.0
ENDS_WITHIN_S, SETTLED_WITHIN_S = 90.0, 15.0
EVENTS = (
    "JobOpened",
    "JobMatched",
    "JobDelivered",
    "JobAcknowledged",
    "JobClosing",
    "JobSettled",
    "JobCancelled",
    "JobExpired",
    "JobDisputed",
    "JobResolved",
    "Paid",
)
#: Arguments of events that are amounts in nano units, several in a list.
AMOUNTS = (
    "maxNano",
    "paidNano",
    "refundedNano",
    "withheldNano",
    "payNano",
    "matcherNano",
    "protocolNano",
    "refundNano",
)
Json = dict[str, Any]


class LogLine(Result, frozen=True):
    """`jobs logs`: a request here, or an event on chain."""

    what: str
    name: str
    state: str
    tokens_in: int | None
    tokens_out: int | None
    block: int | None
    transaction: str | None


class Ended(Result, frozen=True):
    """`jobs wait` and `jobs cancel`."""

    job: str
    on_chain: str
    paid: str
    refunded: str
    tx: str | msgspec.UnsetType = msgspec.UNSET


class Fetched(Result, frozen=True):
    """`jobs fetch`."""

    job: str
    answers: int
    missing: list[str]
    results: str
    receipts: str


def log_row(line: LogLine) -> Json:
    """A line of `jobs logs` that fits a terminal."""
    tx = line.transaction
    return msgspec.structs.asdict(line) | {"transaction": tx and ids.abridged(tx)}


async def job_log(settings: Settings, typed: str) -> list[LogLine]:
    """A line per request that we keep, then per event on chain. Raises IdInvalid."""
    row, requests = _find(settings, typed)
    lines = [
        LogLine(
            what="request",
            name=request.custom_id,
            state=request.finish or "not finished",
            tokens_in=len(json.loads(request.prompt_ids)),
            tokens_out=len(json.loads(request.tokens)),
            block=None,
            transaction=None,
        )
        for request in requests
    ]
    async with open_context(settings) as context:
        lines += await _events(context, row.job_id)
    return lines


async def _events(context: Context, job_id: str) -> list[LogLine]:
    first = context.settings.network.deploy_block
    found = await events_of_job(context.chain, job_id, first)
    return [
        LogLine(
            what="event",
            name=event.name,
            state=_said(context.settings, event.args),
            tokens_in=event.args.get("tokensIn"),
            tokens_out=event.args.get("tokensOut"),
            block=event.block_number,
            transaction=event.tx_hash,
        )
        for event in found
        if event.name in EVENTS
    ]


def _said(settings: Settings, args: Json) -> str:
    said = []
    for name in (name for name in AMOUNTS if name in args):
        nano = sum(args[name]) if isinstance(args[name], list | tuple) else args[name]
        said.append(f"{name.removesuffix('Nano')} {settings.show_token(units.whole_units(nano))}")
    return ", ".join(said)


async def wait_for_job(run: Run, typed: str) -> Ended:
    """Follow the chain until the job is settled, cancelled or expired, or disputed past its window.

    Raises DeadlinePassed when nothing can end it any more by itself.
    """
    settings, clock = run.settings, SystemClock()
    row, _ = _find(settings, typed)
    _tell_if_left(run, row)
    async with open_context(settings) as context:
        delay_s = await close_delay_s(context)
        with run.stage(1, 1, f"waiting for {ids.short(ids.Kind.JOB, row.job_id)}") as stage:
            while True:
                found = await _found(context, row)
                job, state = found.said, found.state
                now = max(await context.chain.now(), int(clock.now()))
                stage.set(0, _waits_for(state, job, now))
                if state in ENDED:
                    return await _ending(context, row.job_id, state)
                if state is JobState.MATCHED and now > job["deadline"] + delay_s:
                    raise DeadlinePassed(
                        "the job's deadline has passed",
                        f"nothing was delivered by {job['deadline']}, nor acknowledged in the "
                        f"{units.format_duration(delay_s)} after it, and it is {now}",
                        resume=f"client jobs cancel {ids.short(ids.Kind.JOB, row.job_id)}",
                    )
                await asyncio.sleep(POLL_S)


def _waits_for(state: JobState, job: Json, now: int) -> str:
    """How a job stands; of a delivered one, how long it can still be disputed before it is paid."""
    if state is not JobState.DELIVERED:
        return state.name.lower()
    if job["openDisputes"]:
        return f"delivered, {job['openDisputes']} of its stages disputed"
    left_s = job["finalAt"] - now
    if left_s <= 0:
        return "delivered, its window is over: anybody may settle it"
    return f"delivered, may be disputed for {units.format_duration(left_s)} more"


async def _ending(context: Context, job_id: str, state: JobState) -> Ended:
    show = context.settings.show_token
    paid = refunded = 0
    for event in await events_of_job(context.chain, job_id, context.settings.network.deploy_block):
        if event.name in ("JobSettled", "JobCancelled", "JobExpired"):
            paid += event.args.get("paidNano", 0)
            refunded += event.args["refundedNano"]
    return Ended(
        job=ids.short(ids.Kind.JOB, job_id),
        on_chain=state.name.lower(),
        paid=show(units.whole_units(paid)),
        refunded=show(units.whole_units(refunded)),
    )


async def cancel_job(run: Run, typed: str) -> Ended:
    """Take the locked money back: of an unmatched job, or of one past its deadline.

    A job that a program here runs is ended through it: it pays for what was delivered. What a
    killed program left is paid by this one. Raises UsageError for another that machines work on,
    and for one that is over.
    """
    settings = run.settings
    row, _ = _find(settings, typed)
    name = ids.short(ids.Kind.JOB, row.job_id)
    signer = run.unlock()
    async with open_context(settings) as context:
        found = await _found(context, row)
        state, now = found.state, await context.chain.now()
        pid = _keeper(settings, row)
        left_s = found.said["deadline"] - now
        if state is JobState.MATCHED and pid and left_s >= 0:
            run.confirm("End it?", {"job": name, "by": f"program {pid}, which pays for what came"})
            await _interrupt(settings, row, pid)
            return await _settled(context, row)
        delay_s = await close_delay_s(context)
        if state is JobState.MATCHED and left_s + delay_s >= 0:
            with closing(open_store(settings)) as store:
                if is_left(settings, store, row):
                    run.confirm("End it?", {"job": name, "by": "paying here for what came"})
                    await settle_left(context, signer, store, row)
                    return await _settled(context, row)
        return await end_on_chain(
            run, context, signer, match_of(row), way_out(name, state, left_s, delay_s)
        )


async def end_on_chain(
    run: Run, context: Context, signer: DigestSigner, match: Match, function: str
) -> Ended:
    """Call what `way_out` said; the locked money returns to the prepaid balance."""
    first = context.settings.network.deploy_block
    found = await find_job(context.chain, match, first)
    said = (found.order, list(found.plan)) if function == "expire" else (found.order,)
    gas = await context.chain.simulate(signer.address, "TaskRegistry", function, *said)
    run.confirm(
        "End it?",
        {
            "job": ids.short(ids.Kind.JOB, match.job_id),
            "state": found.state.name.lower(),
            "locked": context.settings.show_token(units.covering_units(found.locked_nano)),
            "back to": f"the prepaid balance of {found.order.requester}",
            "gas": str(gas),
        },
    )
    sent = await context.chain.transact(signer, "TaskRegistry", function, *said)
    ended = await find_job(context.chain, match, first)
    ending = await _ending(context, match.job_id, ended.state)
    return msgspec.structs.replace(ending, tx=sent.tx_hash)


async def _found(context: Context, row: JobRow) -> FoundJob:
    return await find_job(context.chain, match_of(row), context.settings.network.deploy_block)


def _keeper(settings: Settings, row: JobRow) -> int | None:
    with closing(open_store(settings)) as store:
        return keeper_pid(settings, store.submission(row.submission))


def _tell_if_left(run: Run, row: JobRow) -> None:
    """Say so where no program runs the job any more: it gives no more answers."""
    with closing(open_store(run.settings)) as store:
        known = store.submission(row.submission)
        is_left = known is not None and keeper_pid(run.settings, known) is None
    if row.state == "open" and is_left:
        name = ids.short(ids.Kind.JOB, row.job_id)
        run.note(f"no program here runs {name}; `client jobs retry-failed {name} FILE` asks again")


async def _interrupt(settings: Settings, row: JobRow, pid: int) -> None:
    """Interrupt the program that runs a job and wait until it has paid. Raises DeadlinePassed."""
    os.kill(pid, signal.SIGINT)
    for _ in range(round(ENDS_WITHIN_S / POLL_S)):
        if _keeper(settings, row) is None:
            return
        await asyncio.sleep(POLL_S)
    name = ids.short(ids.Kind.JOB, row.job_id)
    raise DeadlinePassed(
        f"the program that runs {name} does not end",
        f"process {pid}, {ENDS_WITHIN_S:g} s after it was asked to",
        resume=f"client jobs cancel {name}",
    )


async def _settled(context: Context, row: JobRow) -> Ended:
    """How the job stands, once the chain says that it is over, or soon."""
    for _ in range(round(SETTLED_WITHIN_S / POLL_S)):
        state = (await _found(context, row)).state
        if state in ENDED:
            break
        await asyncio.sleep(POLL_S)
    return await _ending(context, row.job_id, state)


async def close_delay_s(context: Context) -> int:
    """How long after a job's deadline only an acknowledgement counts."""
    params = await context.chain.read("TaskRegistry", "params")
    return int(params["closeDelaySeconds"])


def way_out(name: str, state: JobState, left_s: int, delay_s: int) -> str:
    """The contract's function that ends a job in this state. Raises UsageError when none does.

    `left_s` until its deadline, and `delay_s` after it in which only an acknowledgement counts.
    """
    if state is JobState.OPEN:
        return "cancel"
    if state is JobState.MATCHED and left_s >= 0:
        raise UsageError(
            f"{name} is being worked on",
            f"machines were promised {units.format_duration(left_s)} more",
            next_step="end the program that runs it with Ctrl-C: it pays for what was delivered",
        )
    if state is JobState.MATCHED and left_s + delay_s >= 0:
        raise UsageError(
            f"{name} cannot be cancelled yet",
            "its deadline has passed, and only an acknowledgement counts for "
            f"{units.format_duration(left_s + delay_s)} more",
            next_step=f"wait that long, then: client jobs cancel {name}",
        )
    if state is JobState.MATCHED:
        return "expire"
    is_there = state is not JobState.NONE
    raise UsageError(
        f"{name} cannot be cancelled",
        f"it is {state.name.lower()}, so nothing is left to give back"
        if is_there
        else "its order was not opened on chain, so it locks nothing",
        next_step=f"client jobs show {name}",
    )


def fetch_job(run: Run, typed: str, out: Path | None) -> Fetched:
    """Write what we keep of a job's answers as `output.jsonl` and its receipts as `receipts.jsonl`.

    Raises IdInvalid, ModelMissing when the words cannot be made from the tokens here.
    """
    from client.jobs.answer_lines import answer_line
    from core.engine.weights.tokenizer import Tokenizer

    settings = run.settings
    with closing(open_store(settings)) as store:
        row = store.find_job(typed)
        requests, held = store.requests(row.job_id), store.receipts(row.job_id)
    match = match_of(row)
    model = model_name(match.signed.order.model_id, settings) or match.signed.order.model_id
    tokenizer = Tokenizer(model_folder(model, settings))
    folder = out or Path(ids.short(ids.Kind.JOB, row.job_id))
    finished = [request for request in requests if request.finish]
    lines = [
        answer_line(
            request.custom_id,
            row.job_id,
            request.request_index,
            model=model,
            tokenizer=tokenizer,
            prompt_tokens=len(json.loads(request.prompt_ids)),
            tokens=json.loads(request.tokens),
            finish=request.finish,
            sampling=msgspec.json.decode(request.sampling, type=SamplingParams),
        )
        for request in finished
    ]
    signed = [msgspec.to_builtins(receipt) for _, receipt in held]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in (("output.jsonl", lines), ("receipts.jsonl", signed)):
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in content)
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into {folder}", error.strerror or str(error)) from None
    return Fetched(
        job=ids.short(ids.Kind.JOB, row.job_id),
        answers=len(lines),
        missing=[request.custom_id for request in requests if not request.finish],
        results=str(folder / "output.jsonl"),
        receipts=str(folder / "receipts.jsonl"),
    )


def unanswered(settings: Settings, typed: str, file: Path) -> list[bytes]:
    """The lines of a job's file that no job answered. Raises IdInvalid, UsageError."""
    with closing(open_store(settings)) as store:
        row = store.find_job(typed)
        same = [job for job in store.jobs() if job.submission == row.submission]
        requests = [request for job in same for request in store.requests(job.job_id)]
    known = {request.custom_id for request in requests}
    done = {request.custom_id for request in requests if request.finish}
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {file}", error.strerror or str(error)) from None
    named = [(custom_id_of(n, line), line) for n, line in enumerate(lines, 1) if line.strip()]
    if not known & {name for name, _ in named}:
        raise UsageError(
            f"{file} is not this job's file",
            f"none of its lines has a name that {typed} knows",
            next_step="name the file that was submitted",
        )
    return [_named(name, line) for name, line in named if name not in done]


def _named(name: str, line: bytes) -> bytes:
    """A request with its name in it, as it stands on another line now; other lines as they are."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or "custom_id" in entry:
        return line
    whole = entry if "body" in entry else {"body": entry}
    return json.dumps({"custom_id": name, **whole}, ensure_ascii=False).encode()


def custom_id_of(number: int, line: bytes) -> str:
    """What a line is called: its custom_id, else its number, as when it was submitted."""
    from client.orders.requests import parse_line

    try:
        return parse_line(number, line, SamplingParams()).custom_id
    except UsageError:
        return f"line-{number}"


def _find(settings: Settings, typed: str) -> tuple[JobRow, list[RequestRow]]:
    with closing(open_store(settings)) as store:
        row = store.find_job(typed)
        return row, store.requests(row.job_id)
