"""Do several pipelines that share no machine give the same answers, token by token?

Each replica is an order of its own, with salts of its own, so that no machine can tell that others
do the same work. Jobs with answers that differ are not acknowledged: their pay waits until the
window for disputes is over.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from client.jobs.batch import (
    BatchResult,
    BatchWatcher,
    Due,
    FinishedAnswer,
    Policy,
    Requester,
    pay,
    run_batch,
)
from client.orders.demands import demanded
from client.orders.matcher_api import Quote
from client.orders.matchers import Matchers
from client.orders.orders import Prompt
from client.pipeline.pipeline import Match
from client.records.store import ClientStore
from core.engine.weights.tokenizer import Tokenizer
from core.protocol import ids
from core.protocol.errors import CheckFailed, HeadraceError, NoCapacity
from core.protocol.types import Order, Terms


@dataclass(frozen=True)
class AllowedMiners:
    """Addresses of the operators that may serve a replica."""

    in_flight: int
    trusted: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    audit_bps: int = 0

    def demands(self, others: frozenset[str] = frozenset()) -> Terms | None:
        """The same, with none of these machines."""
        return demanded(self.in_flight, self.trusted, self.avoided | others, self.audit_bps)


async def quotes(
    api: Matchers, model_id: str, tokens: tuple[int, int], wanted: AllowedMiners, replicas: int
) -> list[Quote]:
    """A price for each replica, over machines of its own. `tokens` are in and out.

    Raises NoCapacity where there are not so many pipelines.
    """
    found: list[Quote] = []
    taken: frozenset[str] = frozenset()
    for number in range(replicas):
        try:
            quote = await api.quote(model_id, *tokens, wanted.demands(taken))
        except NoCapacity as error:
            if not number:
                raise
            raise NoCapacity(
                f"there are machines for {number} of {replicas} replicas",
                f"without those of the others: {error.what}: {error.why}",
                next_step=f"pass --replicas {number}, or wait for more machines",
            ) from None
        found.append(quote)
        taken |= _operators(quote.plan)
    return found


class Apart:
    """Keeps replicas apart: each avoids the machines that others were offered or had."""

    def __init__(self, wanted: AllowedMiners, offered: Sequence[Quote]) -> None:
        self.turn = asyncio.Lock()
        self._wanted = wanted
        self._held = [_operators(quote.plan) for quote in offered]

    def demands(self, replica: int) -> Terms | None:
        """For the replica's next order. Good as long as it has the turn."""
        others = [held for number, held in enumerate(self._held) if number != replica]
        return self._wanted.demands(frozenset().union(*others))

    def opened(self, replica: int, match: Match) -> None:
        """The replica has these machines."""
        self._held[replica] |= _operators(match.plan)


@dataclass(frozen=True)
class Replica:
    """What became of one: its answers, or why it has none."""

    number: int
    result: BatchResult | None
    error: HeadraceError | None = None


@dataclass(frozen=True)
class AnswerDifference:
    """A request whose answers differ from token number `step` on; `answers` are by replica."""

    custom_id: str
    step: int
    answers: tuple[tuple[int, FinishedAnswer], ...]


async def run_replicas(
    requester: Requester,
    prompts: Sequence[Prompt],
    policies: Sequence[Policy],
    watchers: Sequence[BatchWatcher],
    apart: Apart,
    submission: str,
) -> tuple[list[Replica], list[AnswerDifference]]:
    """Run the batch once for each policy, all at the same time, compare, and pay.

    A replica that fails ends no other one. Cancelled, it pays for what came.
    """
    due: list[tuple[Policy, BatchWatcher, list[Due]]] = []

    async def one(number: int, policy: Policy, watcher: BatchWatcher) -> Replica:
        waiting: list[Due] = []
        due.append((policy, watcher, waiting))
        own = replace(policy, turn=apart.turn, due=waiting)
        salted = [replace(prompt, salt=os.urandom(32)) for prompt in prompts]
        seen = _SeenMiners(watcher, lambda match: apart.opened(number, match))
        try:
            return Replica(number, await run_batch(requester, salted, own, seen, submission))
        except HeadraceError as error:
            return Replica(number, None, error)

    async def settle(held: frozenset[str]) -> None:
        for policy, watcher, waiting in due:
            for job in waiting:
                if job.match.job_id not in held:
                    await pay(requester, job, policy, watcher)

    pairs = enumerate(zip(policies, watchers, strict=True))
    runs = asyncio.gather(*(one(number, policy, watcher) for number, (policy, watcher) in pairs))
    try:
        found = await runs
    except asyncio.CancelledError:
        await settle(frozenset())
        raise
    differing = differences([(r.number, r.result) for r in found if r.result is not None])
    await settle(frozenset(whole_jobs(differing, [r.result for r in found if r.result])))
    return found, differing


def differences(results: Sequence[tuple[int, BatchResult]]) -> list[AnswerDifference]:
    """The requests that at least two replicas answered, and not the same."""
    names = dict.fromkeys(name for _, result in results for name in result.finished)
    found = []
    for name in names:
        answers = tuple((n, r.finished[name]) for n, r in results if name in r.finished)
        step = first_difference([done.state.tokens for _, done in answers])
        if step is not None:
            found.append(AnswerDifference(name, step, answers))
    return found


def first_difference(answers: Sequence[Sequence[int]]) -> int | None:
    """The first step at which a token differs or an answer has ended; None for the same answers."""
    for step, tokens in enumerate(zip_longest(*answers)):
        if len(set(tokens)) > 1:
            return step
    return None


def whole_jobs(differing: Sequence[AnswerDifference], results: Sequence[BatchResult]) -> set[str]:
    """Jobs that gave such an answer and are paid without an Ack: they finished all requests."""
    done: dict[str, int] = {}
    orders: dict[str, Order] = {}
    for result in results:
        orders |= {match.job_id: match.signed.order for match in result.matches}
        for answer in result.finished.values():
            done[answer.job_id] = done.get(answer.job_id, 0) + 1
    suspects = {answer.job_id for one in differing for _, answer in one.answers}
    return {job for job in suspects if done[job] == orders[job].requests}


def describe(
    difference: AnswerDifference, store: ClientStore, tokenizer: Tokenizer
) -> dict[str, Any]:
    """A line of `differences.jsonl`: answers, receipts, and commands that find the liar."""
    return {
        "custom_id": difference.custom_id,
        "step": difference.step,
        "answers": [
            _described(number, done, difference.step, store, tokenizer)
            for number, done in difference.answers
        ],
    }


def _described(
    number: int, done: FinishedAnswer, step: int, store: ClientStore, tokenizer: Tokenizer
) -> dict[str, Any]:
    tokens = done.state.tokens
    receipt = receipt_over(store, done.job_id, done.request_index)
    job = ids.short(ids.Kind.JOB, done.job_id)
    return {
        "replica": number + 1,
        "job": job,
        "receipt": None if receipt is None else ids.short(ids.Kind.RECEIPT, receipt),
        "token": tokens[step] if step < len(tokens) else None,
        "text": tokenizer.answer_text(tokens),
        "check": f"auditor check {job}",
        "dispute": f"client dispute {job}",
    }


def receipt_over(store: ClientStore, job_id: str, request_index: int) -> str | None:
    """Id of the last stage's receipt over a request, the narrowest that is kept."""
    over = [
        (len(signed.leaves), row.stage, row.receipt_id)
        for row, signed in store.receipts(job_id)
        if request_index in {leaf.request_index for leaf in signed.leaves}
    ]
    last = max((stage for _, stage, _ in over), default=0)
    return min(((n, receipt) for n, stage, receipt in over if stage == last), default=(0, None))[1]


def suspicion(differing: Sequence[AnswerDifference], file: str) -> CheckFailed:
    """That answers differ, as an error."""
    first = differing[0]
    job = ids.short(ids.Kind.JOB, first.answers[0][1].job_id)
    return CheckFailed(
        f"{len(differing)} answers are not the same on all machines",
        f"the first is '{first.custom_id}', from token {first.step} on: a stage computed another "
        "model, or two tokens were a near tie",
        state=f"both sides are in {file}; jobs that gave them are not acknowledged, and are paid "
        "when their window for disputes is over",
        next_step=f"auditor check {job}",
        differences=len(differing),
    )


class _SeenMiners:
    """Passes on to a watcher, and first says which machines were given."""

    def __init__(self, watcher: BatchWatcher, opened: Callable[[Match], None]) -> None:
        self._watcher, self._opened = watcher, opened

    def job_opened(self, match: Match) -> None:
        self._opened(match)
        self._watcher.job_opened(match)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watcher, name)


def _operators(plan: Sequence[Any]) -> frozenset[str]:
    return frozenset(stage.operator for stage in plan)
