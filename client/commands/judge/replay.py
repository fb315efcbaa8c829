"""`auditor replay`: do a job's tokens follow from its prompts, by the model alone?

Stages can each lie within their tolerance and together steer an answer. Replayed in float64 from
the token ids through all layers, such an answer is nats behind what the model says. That voids the
job; which stage bent it is for `auditor check` to say, where it can be said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.audit.evidence import EvidenceCollector, PromptOpening, tokens_in
from client.audit.investigation import investigate, open_evidence, read_delegation, source_of
from client.audit.rerun import ShardSource, check_weights
from client.context import open_context
from client.orders.shard_roots import shard_roots
from core.protocol import ids
from core.protocol.errors import CheckFailed
from core.protocol.types import RequestLeaf
from core.runtime.commands.results import Result

if TYPE_CHECKING:
    from core.dispute.judging.numerics import NumericsVerdict
    from core.runtime.commands.console import Run


@dataclass(frozen=True)
class ReplayedRequest:
    """How far one request's tokens are from the model's: nats, logits where nothing is drawn."""

    request_index: int
    tokens: int
    behind: int  # tokens that are not the model's own choice
    largest: float
    at: int  # the token that is furthest behind
    allowed: float
    reasons: tuple[str, ...]

    @property
    def follows(self) -> bool:
        return not self.reasons


class ReplayRow(Result, frozen=True):
    """`replay`: how far a request's tokens are from what the whole model says."""

    request: int
    tokens: int
    behind: int
    largest_nat: str
    at_token: int
    allowed_nat: str
    follows: bool
    why: str


@dataclass(frozen=True)
class _Job:
    leaf: RequestLeaf
    opening: PromptOpening
    tokens: tuple[int, ...]


async def replay(
    evidence: EvidenceCollector,
    source: ShardSource,
    leaves: Sequence[RequestLeaf],
    registered_roots: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ReplayedRequest]:
    """Replay these requests, of the last stage's receipts; one shard at a time in memory.

    Raises RowsWithheld for prompts or tokens, CheckFailed when our weights are not the registered.
    """
    last = len(evidence.case.plan) - 1
    jobs = []
    for leaf in leaves:
        opening = await evidence.opening(leaf.request_index)
        tokens = tokens_in(await evidence.rows(last, "out", leaf, 4))
        jobs.append(_Job(leaf, opening, tokens))
    rows: list[Any] = [None] * len(jobs)
    found: list[ReplayedRequest] = []
    for number, place in enumerate(evidence.case.plan):
        await asyncio.to_thread(check_weights, source, place, registered_roots[number])
        shard = await asyncio.to_thread(source.load, place)
        for i, job in enumerate(jobs):
            progress(number * len(jobs) + i, len(jobs) * (last + 1))
            foreign = [token for token in job.tokens if token >= shard.vocab]
            if foreign or not job.tokens:
                if number == last:
                    found.append(_no_answer(job, foreign, shard.vocab))
                continue
            if number < last:
                rows[i] = await asyncio.to_thread(_through, shard, job, rows[i])
            else:
                found.append(await asyncio.to_thread(_judged, source, shard, job, rows[i]))
                rows[i] = None
        del shard
    progress(len(jobs) * (last + 1), len(jobs) * (last + 1))
    return found


def _through(shard: Any, job: _Job, rows: Any) -> Any:
    """What this shard makes of what the one before it made."""
    from core.dispute.judging.numerics import reexecute

    return reexecute(shard, _entering(job, rows))


def _entering(job: _Job, rows: Any) -> Any:
    import torch

    return torch.tensor(job.opening.prompt_ids + job.tokens[:-1]) if rows is None else rows


def _no_answer(job: _Job, foreign: Sequence[int], vocab: int) -> ReplayedRequest:
    """Of tokens that the model could not have said."""
    why = f"token {foreign[0]} of a vocabulary of {vocab}" if foreign else "there are no tokens"
    at = job.tokens.index(foreign[0]) if foreign else 0
    return ReplayedRequest(
        job.leaf.request_index, len(job.tokens), len(foreign), float("inf"), at, 0.0, (why,)
    )


def _judged(source: ShardSource, shard: Any, job: _Job, rows: Any) -> ReplayedRequest:
    """The tokens by the logits that the last shard makes of these rows."""
    from core.dispute.judging.numerics import TokenMargins, reexecute

    margins = TokenMargins(
        job.tokens,
        job.opening.sampling,
        job.leaf.request_index,
        prompt=job.opening.prompt_ids,
        eos_ids=source.eos_ids,
        grammar=source.grammar(job.opening.sampling, job.opening.prompt_ids),
    )
    first = len(job.opening.prompt_ids) - 1
    wanted = range(first, first + len(job.tokens))
    reexecute(shard, _entering(job, rows), logit_rows=wanted, draw=margins)
    verdict: NumericsVerdict = margins.replayed(source.profile)
    return ReplayedRequest(
        job.leaf.request_index,
        len(job.tokens),
        verdict.behind,
        verdict.ratio,
        verdict.worst_row,
        verdict.limit,
        verdict.reasons,
    )


async def replay_job(run: Run, typed: str, delegation_file: Path | None) -> None:
    """Print a row per request. Raises CheckFailed naming the first answer that does not follow."""
    delegation, signer = read_delegation(delegation_file), run.unlock()
    async with open_context(run.settings) as context:
        found = await investigate(context, signer, typed, delegation, lambda *_: None, rerun=False)
        case, source = found.case, await source_of(context, found.case)
        roots = await shard_roots(context.chain, case.order.model_id, case.plan)
        leaves = [leaf for pipeline in found.pipelines for leaf in pipeline[-1].leaves]
        with run.stage(1, 1, "replaying in float64", unit="stages of requests") as shown:
            async with open_evidence(context, signer, case, delegation) as evidence:
                replayed = await replay(
                    evidence,
                    source,
                    leaves,
                    [roots[place.layer_from, place.layer_to] for place in case.plan],
                    lambda done, total: shown.set(done, "", total=total),
                )
    run.emit([_row(request) for request in replayed])
    wrong = next((request for request in replayed if not request.follows), None)
    if wrong is not None:
        job = ids.short(ids.Kind.JOB, case.job_id)
        raise CheckFailed(
            f"the answer of request {wrong.request_index} does not follow from the model",
            "; ".join(wrong.reasons),
            state="the job is void; a replay does not say which stage bent it",
            next_step=f"auditor check {job}",
        )


def _row(request: ReplayedRequest) -> ReplayRow:
    return ReplayRow(
        request=request.request_index,
        tokens=request.tokens,
        behind=request.behind,
        largest_nat=f"{request.largest:.2e}",
        at_token=request.at,
        allowed_nat=f"{request.allowed:.2e}",
        follows=request.follows,
        why="; ".join(request.reasons),
    )
