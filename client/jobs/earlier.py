"""What did an earlier run of this program come to with a batch? The requester's records say it.

A request's row holds all that came before it: its prompt is the first one's and the tokens of
earlier jobs, `first_step` of them (`client/jobs/failover.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from client.jobs.failover import Ongoing
from client.orders.orders import Prompt, PromptBatch
from client.pipeline.pipeline import Match, RequestState
from client.records.store import (
    ClientStore,
    JobRow,
    RequestRow,
    match_of,
    prompt_of,
    tokens_of,
)
from core.protocol.errors import Interrupted
from core.protocol.types import SignedReceipt

#: States of jobs that may still have to be paid.
UNSETTLED = ("open", "unacknowledged")


@dataclass(frozen=True)
class LeftJob:
    """A job that nobody has paid yet: its answers by request index.

    `known` are those that need not run here: they are whole, or went on in a later job.
    """

    match: Match
    batch: PromptBatch
    answers: list[Ongoing]
    known: dict[int, RequestState]


@dataclass(frozen=True)
class WholeAnswer:
    """All tokens of an answer, and the job and request that gave the last of them."""

    custom_id: str
    tokens: tuple[int, ...]
    finish: str
    job: JobRow
    request_index: int


def left_jobs(store: ClientStore, submission: str) -> list[LeftJob]:
    """The unsettled jobs of a submission, oldest first."""
    found, following = list[LeftJob](), dict[str, RequestRow]()
    jobs = store.jobs_of(submission)
    first = next((i for i, job in enumerate(jobs) if job.state in UNSETTLED), len(jobs))
    for job in reversed(jobs[first:]):
        rows = store.requests(job.job_id)
        if job.state in UNSETTLED:
            found.append(_left(job, rows, following, _receipts(store, job.job_id)))
        following |= {row.custom_id: row for row in rows}
    return found[::-1]


def whole_answers(store: ClientStore, submission: str) -> list[WholeAnswer]:
    """The answers of a submission that are whole, each once."""
    found = dict[str, WholeAnswer]()
    for job in store.jobs_of(submission):
        for row in store.requests(job.job_id):
            asked, said = prompt_of(row), tokens_of(row)
            if finish := _finish(row, asked, said):
                tokens = (*ongoing_of(asked).tokens, *said)
                place = job, row.request_index
                found[row.custom_id] = WholeAnswer(row.custom_id, tokens, finish, *place)
    return list(found.values())


def taken_up(store: ClientStore, submission: str, prompts: Sequence[Prompt]) -> list[Ongoing]:
    """What is left of these prompts' answers: one that had begun goes on from its last token."""
    rows = store.newest_requests(submission, [prompt.custom_id for prompt in prompts])
    known = {row.custom_id: row for row in rows}
    orders = {row.job_id: "" for row in rows}
    for job in store.jobs_of(submission) if rows else ():
        if job.job_id in orders:
            orders[job.job_id] = match_of(job).order_hash
    answers = []
    for prompt in prompts:
        row = known.get(prompt.custom_id)
        if row is None:
            answers.append(Ongoing(prompt))
            continue
        asked, said = prompt_of(row), tokens_of(row)
        if not (said or asked.sampling.first_step):
            answers.append(Ongoing(prompt))
            continue
        answer = ongoing_of(asked)
        if answer.key_index is None:
            answer.key_index = row.request_index
        answer.tokens += said
        answer.logprobs += [None] * len(said)
        answer.place = orders[row.job_id], row.request_index
        answers.append(answer)
    return answers


def ongoing_of(asked: Prompt) -> Ongoing:
    """The answer that a request gives a part of, as it stood before that."""
    before, most = asked.sampling.first_step, asked.sampling.max_new_tokens
    start = len(asked.ids) - before
    whole = msgspec.structs.replace(asked.sampling, max_new_tokens=most + before, first_step=0)
    first = replace(asked, ids=asked.ids[:start], sampling=whole)
    return Ongoing(first, list(asked.ids[start:]), [None] * before, asked.sampling.key_index)


def _receipts(store: ClientStore, job_id: str) -> dict[int, dict[int, SignedReceipt]]:
    """What stages signed for single requests, by request and stage."""
    found = dict[int, dict[int, SignedReceipt]]()
    for row, signed in store.receipts(job_id):
        found.setdefault(row.request_index, {})[row.stage] = signed
    return found


def _left(
    job: JobRow,
    rows: Sequence[RequestRow],
    following: Mapping[str, RequestRow],
    receipts: Mapping[int, dict[int, SignedReceipt]],
) -> LeftJob:
    prompts = [prompt_of(row) for row in rows]
    known = dict[int, RequestState]()
    for row, asked in zip(rows, prompts, strict=True):
        said, after = tokens_of(row), following.get(row.custom_id)
        if after is not None and not said:
            said = prompt_of(after).ids[len(asked.ids) :]
        finish = "" if after is not None else _finish(row, asked, said)
        if after is not None or finish:
            state = RequestState(asked.ids, asked.sampling.max_new_tokens, list(said))
            state.logprobs = [None] * len(said)
            state.receipts = dict(receipts.get(row.request_index, {}))
            state.finish, state.failure = finish, None if finish else Interrupted()
            state.done.set()
            known[row.request_index] = state
    answers = [ongoing_of(asked) for asked in prompts]
    return LeftJob(match_of(job), PromptBatch.of(prompts), answers, known)


def _finish(row: RequestRow, asked: Prompt, said: Sequence[int]) -> str:
    """Why a row's answer ended, whether its stages signed for it or not; "" where it is not all."""
    is_full = len(said) >= asked.sampling.max_new_tokens
    return row.finish or ("length" if is_full else "")
