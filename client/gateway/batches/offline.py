"""How is a batch bought: one order for all lines, taken up after a restart, paid to the unit?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from client.context import Context, Model
from client.gateway.money.ledger import Bill
from client.jobs.batch import (
    FinishedAnswer,
    Policy,
    Requester,
    Unwatched,
    nothing_new,
    run_batch,
    take_up,
)
from client.jobs.earlier import taken_up, whole_answers
from client.jobs.wishes import (
    Choices,
    Prepared,
    check_caps,
    ending_by,
    limits_of,
    maximum,
    terms_by,
    terms_elsewhere,
    within_limits,
)
from client.orders.demands import demanded
from client.orders.orders import Prompt
from client.pipeline.on_chain import job_with_plan
from client.pipeline.pipeline import Logprobs, Match
from client.records.store import ClientStore, JobRow, match_of
from client.sessions.answering import AskTerms, wishes_with
from core.money import pricing
from core.protocol.errors import HeadraceError
from core.protocol.types import JobState
from core.protocol.types import Terms as DemandedTerms
from core.protocol.units import whole_units
from core.runtime.clock import SystemClock
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.orders.matchers import Matchers
    from core.engine.weights.tokenizer import Tokenizer
    from core.protocol.signing import DigestSigner
    from core.runtime.settings import Settings

log = get_logger(__name__)
PAID = (JobState.DELIVERED, JobState.DISPUTED, JobState.SETTLED)


@dataclass(frozen=True)
class LineAnswer:
    """A finished answer of a batch, by the custom id of its prompt."""

    custom_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs | None, ...]
    finish: str
    job_id: str
    job_request: int
    operators: tuple[str, ...]


Keep = Callable[[LineAnswer], None]


class BatchRunner:
    """Buys batches from the owner's wallet. `name` is the batch's, the same after a restart."""

    def __init__(
        self, context: Context, matcher: Matchers, store: ClientStore, signer: DigestSigner
    ) -> None:
        self._context, self._matcher = context, matcher
        self._store, self._signer = store, signer

    async def run(
        self,
        name: str,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        terms: AskTerms,
        keep: Keep,
    ) -> dict[str, HeadraceError]:
        """Answer these prompts under one order, and call `keep` with each answer as it ends.

        Returns why others could not be answered. Raises what kept the first order from being made;
        nothing was spent then. Cancelled, it pays for what came.
        """
        context, settings, lines = self._context, self._context.settings, _Lines(keep)
        wishes = await within_limits(context, model, wishes_with(settings, terms), Choices())
        prepared = Prepared(list(prompts), [])
        demands = demands_of(settings, terms)
        price = await self._matcher.quote(
            model.model_id, prepared.tokens_in, prepared.max_tokens_out, demands
        )
        locked = maximum(model, price, prepared)
        if not settings.is_set("client.max_cost_per_job"):
            wishes = replace(wishes, max_cost=locked)  # a batch is held to its key's budget
        check_caps(settings, wishes, model.spec.layer_units, price, locked)
        policy = Policy(
            terms_of=terms_by(wishes, price, lambda: demands),
            elsewhere=terms_elsewhere(
                settings, self._matcher, (model, prepared), wishes, lambda: demands
            ),
            limits=limits_of(settings),
            on_whole=lines.whole,
        )
        answers = taken_up(self._store, name, prompts)
        requester = self._requester(model, tokenizer)
        result = await run_batch(requester, answers, policy, lines, name)
        return dict(result.unfinished)

    async def recover(
        self, name: str, model: Model, tokenizer: Tokenizer, keep: Keep, *, goes_on: bool = True
    ) -> None:
        """Bring what an earlier run bought under this name to its end, and pay for it.

        `keep` gets each answer that is whole. Answers that ran go on with the stages that still
        know them; unless it `goes_on`, they end where they are. Raises ChainUnreachable,
        MatcherUnreachable.
        """
        limits, lines = limits_of(self._context.settings), _Lines(keep)
        policy = Policy(terms_of=nothing_new, limits=limits, on_whole=lines.whole)
        requester = self._requester(model, tokenizer)
        await take_up(requester, policy, lines, name, goes_on=goes_on)
        for found in whole_answers(self._store, name):
            place = found.job.job_id, found.request_index, _operators(match_of(found.job))
            unknown = (None,) * len(found.tokens)
            keep(LineAnswer(found.custom_id, found.tokens, unknown, found.finish, *place))

    async def bill(self, name: str, model: Model) -> Bill:
        """All that was or will be paid under this name."""
        cost_nano = tokens_in = tokens_out = 0
        for job in self._store.jobs_of(name):
            match = match_of(job)
            counts = await self._counts(job)
            cost_nano += pricing.split(match.signed.order, match.plan, model.spec, *counts).paid
            tokens_in, tokens_out = tokens_in + counts[0], tokens_out + counts[1]
        return Bill(whole_units(cost_nano), tokens_in, tokens_out)

    async def _counts(self, job: JobRow) -> tuple[int, int]:
        """Tokens that a job is paid for, by the chain, or before it by what we acknowledged."""
        found = await job_with_plan(self._context.chain, match_of(job))
        if found.state in PAID:
            return found.said["tokensIn"], found.said["tokensOut"]
        if job.state == "abandoned":
            return 0, 0
        rows = self._store.requests(job.job_id)
        begun = [row for row in rows if row.tokens != "[]"]
        due_in, due_out = (
            sum(len(json.loads(getattr(row, name))) for row in begun)
            for name in ("prompt_ids", "tokens")
        )
        paid_in, paid_out = self._store.paid(job.job_id)
        return max(due_in, paid_in), max(due_out, paid_out)

    def _requester(self, model: Model, tokenizer: Tokenizer) -> Requester:
        return Requester(
            self._context.chain,
            self._matcher,
            self._signer,
            self._store,
            SystemClock(),
            model.model_id,
            model.spec,
            ending_by(tokenizer),
        )


def demands_of(settings: Settings, terms: AskTerms) -> DemandedTerms | None:
    """The machines that may serve an order under these terms; None: any."""
    trusted = terms.trusted or frozenset(settings.client.trusted)
    avoided = terms.avoided | frozenset(settings.client.avoid)
    return demanded(limits_of(settings).in_flight, trusted, avoided, terms.audit_bps)


class _Lines(Unwatched):
    """Watches a batch for those who keep its answers."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._operators: dict[str, tuple[str, ...]] = {}  # by job

    def whole(self, custom_id: str, done: FinishedAnswer) -> None:
        """An answer is all here."""
        tokens, logprobs = tuple(done.state.tokens), tuple(done.state.logprobs)
        place = done.job_id, done.request_index, self._operators[done.job_id]
        self._keep(LineAnswer(custom_id, tokens, logprobs, done.state.finish, *place))

    def job_opened(self, match: Match) -> None:
        self._operators[match.job_id] = _operators(match)

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None:
        log.warning("a job is not acknowledged", job=match.job_id[:10], reason=str(reason))


def _operators(match: Match) -> tuple[str, ...]:
    return tuple(stage.operator for stage in match.plan)
