"""What did an earlier run of this program come to with a batch? The requester's records say it.

A request's row holds all that came before it: its prompt is the first one's and the tokens of
earlier jobs, `first_step` of them (`client/jobs/failover.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from client.jobs.failover import Ongoing
from client.orders.orders import Prompt, PromptBatch
from client.pipeline.pipeline import Match, RequestState
from client.records.store import ClientStore, JobRow, RequestRow, match_of
from core.protocol import commit
from core.protocol.errors import Interrupted
from core.protocol.types import SamplingParams, SignedReceipt

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
            answer = ongoing_of(row)
            said = _tokens(row)
            if finish := _finish(row, said):
                tokens = (*answer.tokens, *said)
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
        said = () if row is None else _tokens(row)
        if row is None or not (said or _sampling(row).first_step):
            answers.append(Ongoing(prompt))
            continue
        answer = ongoing_of(row)
        if answer.key_index is None:
            answer.key_index = row.request_index
        answer.tokens += said
        answer.logprobs += [None] * len(said)
        answer.place = orders[row.job_id], row.request_index
        answers.append(answer)
    return answers


def ongoing_of(row: RequestRow) -> Ongoing:
    """The answer that a request gives a part of, as it stood before that."""
    sampling, ids = _sampling(row), _ids(row)
    before = sampling.first_step
    start = len(ids) - before
    whole = msgspec.structs.replace(
        sampling, max_new_tokens=sampling.max_new_tokens + before, first_step=0
    )
    prompt = Prompt(row.custom_id, ids[:start], whole, commit.unhex(row.salt))
    tokens = list(ids[start:])
    return Ongoing(prompt, tokens, [None] * before, sampling.key_index)


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
    prompts = [Prompt(r.custom_id, _ids(r), _sampling(r), commit.unhex(r.salt)) for r in rows]
    known = dict[int, RequestState]()
    for row in rows:
        said, after = _tokens(row), following.get(row.custom_id)
        if after is not None and not said:
            said = _ids(after)[len(_ids(row)) :]
        finish = "" if after is not None else _finish(row, said)
        if after is not None or finish:
            state = RequestState(_ids(row), _sampling(row).max_new_tokens, list(said))
            state.logprobs = [None] * len(said)
            state.receipts = dict(receipts.get(row.request_index, {}))
            state.finish, state.failure = finish, None if finish else Interrupted()
            state.done.set()
            known[row.request_index] = state
    return LeftJob(match_of(job), PromptBatch.of(prompts), [ongoing_of(r) for r in rows], known)


def _finish(row: RequestRow, said: Sequence[int]) -> str:
    """Why a row's answer ended, whether its stages signed for it or not; "" where it is not all."""
    is_full = len(said) >= _sampling(row).max_new_tokens
    return row.finish or ("length" if is_full else "")


def _ids(row: RequestRow) -> tuple[int, ...]:
    return msgspec.json.decode(row.prompt_ids, type=tuple[int, ...])


def _tokens(row: RequestRow) -> tuple[int, ...]:
    return msgspec.json.decode(row.tokens, type=tuple[int, ...])


def _sampling(row: RequestRow) -> SamplingParams:
    return msgspec.json.decode(row.sampling, type=SamplingParams)
