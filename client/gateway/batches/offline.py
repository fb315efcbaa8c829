"""How is a batch bought: one order for all lines, taken up after a restart, paid to the unit?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from client.context import Context, Model
from client.gateway.money.ledger import Bill
from client.jobs.batch import Policy, Requester, acknowledge, run_batch
from client.jobs.wishes import (
    Choices,
    Prepared,
    check_caps,
    ending_by,
    limits_of,
    maximum,
    terms_for,
    within_limits,
)
from client.orders.demands import demanded
from client.orders.orders import Prompt
from client.pipeline.on_chain import job_with_plan
from client.pipeline.pipeline import Logprobs, Match
from client.pipeline.verify import RequestAnswer
from client.records.store import ClientStore, JobRow, RequestRow, match_of
from client.sessions.answering import AskTerms, wishes_with
from core.money import pricing
from core.protocol.errors import HeadraceError
from core.protocol.types import JobState, Order
from core.protocol.types import Terms as DemandedTerms
from core.protocol.units import whole_units
from core.runtime.clock import SystemClock
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.orders.matcher_api import MatcherApi
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
        self, context: Context, matcher: MatcherApi, store: ClientStore, signer: DigestSigner
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
        context, settings = self._context, self._context.settings
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
            terms_of=lambda now: replace(terms_for(wishes, price, now), demands=demands),
            limits=limits_of(settings),
        )
        watcher = _Lines(prompts, keep)
        result = await run_batch(
            self._requester(model, tokenizer), prepared.prompts, policy, watcher, name
        )
        operators = {m.job_id: _operators(m) for m in result.matches}
        for custom_id, done in result.finished.items():  # again, with what only the end knows
            tokens, logprobs = tuple(done.state.tokens), tuple(done.state.logprobs)
            place = done.job_id, done.request_index, operators[done.job_id]
            keep(LineAnswer(custom_id, tokens, logprobs, done.state.finish, *place))
        return dict(result.unfinished)

    async def recover(self, name: str, model: Model, tokenizer: Tokenizer) -> list[LineAnswer]:
        """What an earlier run of this program bought under this name, now paid for."""
        found, requester = [], self._requester(model, tokenizer)
        for job in self._jobs(name):
            match = match_of(job)
            done = [row for row in self._store.requests(job.job_id) if row.finish]
            found += [_line(row, match) for row in done]
            if job.state not in ("open", "unacknowledged"):
                continue
            if not done:
                self._store.set_state(job.job_id, "abandoned")
                continue
            answers = {row.request_index: _answer(row) for row in done}
            try:
                await acknowledge(requester, match, answers, _Lines((), lambda _: None))
            except HeadraceError as error:  # the matcher brings the receipts itself, then
                log.warning("a job of an earlier start stays unacknowledged", reason=str(error))
                self._store.set_state(job.job_id, "unacknowledged")
        return found

    async def bill(self, name: str, model: Model) -> Bill:
        """All that was or will be paid under this name."""
        cost_nano = tokens_in = tokens_out = 0
        for job in self._jobs(name):
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
        answers = [_answer(row) for row in self._store.requests(job.job_id)]
        begun = [answer for answer in answers if answer.tokens]
        return sum(len(a.prompt_ids) for a in begun), sum(len(a.tokens) for a in begun)

    def _jobs(self, name: str) -> list[JobRow]:
        return [job for job in reversed(self._store.jobs()) if job.submission == name]

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


class _Lines:
    """A `Watcher` that hands over every answer as soon as it is whole."""

    def __init__(self, prompts: Sequence[Prompt], keep: Keep) -> None:
        self._keep = keep
        self._tokens: dict[str, list[int]] = {prompt.custom_id: [] for prompt in prompts}
        self._left = list(self._tokens)
        self._match: Match | None = None
        self._index: dict[str, int] = {}

    def order_signed(self, order: Order, locked_units: int) -> None: ...

    def job_opened(self, match: Match) -> None:
        self._match = match
        self._index = {custom_id: index for index, custom_id in enumerate(self._left)}

    def token(self, custom_id: str, step: int, token: int) -> None:
        if step == len(self._tokens[custom_id]):
            self._tokens[custom_id].append(token)

    def request_finished(self, custom_id: str, finish: str) -> None:
        assert self._match is not None
        tokens = tuple(self._tokens[custom_id])
        index = self._index.get(custom_id, 0)
        if custom_id in self._left:
            self._left.remove(custom_id)
        job, operators = self._match.job_id, _operators(self._match)
        unknown = (None,) * len(tokens)
        self._keep(LineAnswer(custom_id, tokens, unknown, finish, job, index, operators))

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None: ...

    def acknowledged(self, match: Match, paid_units: int) -> None: ...

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None: ...


def _operators(match: Match) -> tuple[str, ...]:
    return tuple(stage.operator for stage in match.plan)


def _answer(row: RequestRow) -> RequestAnswer:
    return RequestAnswer(tuple(json.loads(row.prompt_ids)), tuple(json.loads(row.tokens)))


def _line(row: RequestRow, match: Match) -> LineAnswer:
    tokens = tuple(json.loads(row.tokens))
    place = match.job_id, row.request_index, _operators(match)
    return LineAnswer(row.custom_id, tokens, (None,) * len(tokens), row.finish, *place)
