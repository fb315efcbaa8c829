"""How does a batch go: order, match, stream, acknowledge, and again with what a pipeline left?

Nothing that was delivered is lost, and no token is paid twice. When a pipeline breaks, what it gave
is acknowledged, finished or not, and another one goes on from the last token.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from client.jobs.earlier import left_jobs
from client.jobs.failover import Ongoing, continues, go_on
from client.jobs.job_run import JobRun
from client.jobs.registering import register
from client.jobs.withdrawal import Unopened, withdraw
from client.orders.matcher_api import Goes
from client.orders.matchers import Matchers
from client.orders.orders import OrderTerms, Prompt, PromptBatch, make_order
from client.orders.shard_roots import shard_roots
from client.pipeline.on_chain import is_nonce_used, job_with_plan
from client.pipeline.pipeline import Match, PipelineOutcome, PipelinePatience, RequestState
from client.pipeline.streams import Streams
from client.pipeline.verify import RegisteredShards, RequestAnswer, ack_of_answers, at_least
from client.records.store import ClientStore, SentOrderRow, signed_of
from client.wallet import ensure_deposit
from core.chain.chain import Chain
from core.models.programs import span_layers_of
from core.money import pricing
from core.protocol import signing, wire
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    ContractRefused,
    DepositShort,
    HeadraceError,
    MatcherUnreachable,
    UsageError,
)
from core.protocol.types import (
    REGISTERED,
    Ack,
    JobState,
    ModelSpec,
    Order,
    SignedOrder,
    SignedReceipt,
    Stage,
    Terms,
)
from core.protocol.units import whole_units
from core.runtime import origin, retry
from core.runtime.clock import Clock
from core.runtime.logs import get_logger
from core.runtime.network.channel import StreamIdentity

if TYPE_CHECKING:
    from core.engine.sampling.stops import AnswerEnding

log = get_logger(__name__)
MAX_JOBS = 256
FRUITLESS_ROUNDS = 7  # most orders in a row without a token
OPEN_TRIES = 6  # a matcher that restarts is back by then
ACK_TRIES = 5
PAUSE_S, SHORT_PAUSE_S, LONGEST_PAUSE_S = 1.0, 0.25, 8.0
#: After these nobody knows whether the matcher opens the order: where it has lost the chain it does
#: so later, and one that lies may.
NO_ANSWER = (MatcherUnreachable, ChainUnreachable, CheckFailed)
MATCHED_WITHIN_S = 5.0  # our node may be a block behind the matcher's
LOOK_AGAIN_S = 0.5


class BatchWatcher(Protocol):
    """Sees a batch happen. Calls are quick and never raise."""

    def order_signed(self, order: Order, locked_units: int) -> None: ...

    def job_opened(self, match: Match) -> None: ...

    def token(self, custom_id: str, step: int, token: int) -> None: ...

    def request_finished(self, custom_id: str, finish: str) -> None: ...

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None: ...

    def acknowledged(self, match: Match, paid_units: int) -> None: ...

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None: ...


class Unwatched(BatchWatcher):
    """A batch that nobody looks at; a base of watchers that look at some of it."""


@dataclass(frozen=True)
class Requester:
    """Everything a batch needs of its owner."""

    chain: Chain
    matcher: Matchers
    signer: signing.DigestSigner
    store: ClientStore
    clock: Clock
    model_id: str
    model: ModelSpec
    #: Decides where an answer ends, to hold the last stage to it. None: it is believed.
    ending_of: Callable[[Prompt], AnswerEnding] | None = None


class TermsOf(Protocol):
    def __call__(self, chain_now: int) -> OrderTerms: ...


class TermsElsewhere(Protocol):
    """Terms with another matcher than these addresses. Raises NoCapacity where there is none."""

    async def __call__(self, but_not: frozenset[str]) -> TermsOf: ...


@dataclass(frozen=True)
class Policy:
    """How this submission behaves."""

    terms_of: TermsOf
    #: Asked where the matcher that orders name failed; None: there is no other.
    elsewhere: TermsElsewhere | None = None
    limits: PipelinePatience = field(default_factory=PipelinePatience)
    acknowledge: bool = True
    #: Open orders on chain and wait for their matcher to see them, instead of handing them in.
    registers: bool = False
    deposit_missing: bool = True
    #: Held while an order is made and matched: replicas take turns, to get different machines.
    turn: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)
    #: Takes what is due instead of its being acknowledged at once.
    due: list[Due] | None = None
    #: Hears of each answer by its custom id, once it is whole.
    on_whole: Callable[[str, FinishedAnswer], None] = lambda custom_id, answer: None

    @property
    def pays_now(self) -> bool:
        """Whether a job is acknowledged as soon as it gave what it gives."""
        return self.acknowledge and self.due is None


@dataclass(frozen=True)
class Due:
    """What a job gave, by request index, before it is acknowledged."""

    match: Match
    answers: Mapping[int, RequestAnswer]


@dataclass(frozen=True)
class FinishedAnswer:
    """An answer with the job that produced it."""

    job_id: str
    request_index: int
    state: RequestState


@dataclass(frozen=True)
class BatchResult:
    """All answers by custom id, and what could not be answered."""

    finished: dict[str, FinishedAnswer]
    unfinished: dict[str, HeadraceError]
    matches: tuple[Match, ...]


async def run_batch(
    requester: Requester,
    answers: Sequence[Prompt | Ongoing],
    policy: Policy,
    watcher: BatchWatcher,
    submission: str,
) -> BatchResult:
    """Run a batch to its end; what a broken pipeline left goes on in another one.

    Raises what the first order raised (NoCapacity, DepositShort, …): nothing was spent then. Later
    failures are in the result, by request.
    """
    ongoing = [Ongoing(one) if isinstance(one, Prompt) else one for one in answers]
    async with _submission(requester, policy, watcher, submission) as submitted:
        log.info("batch begins", submission=submission, requests=len(ongoing))
        return await submitted.run(ongoing)


async def take_up(
    requester: Requester,
    policy: Policy,
    watcher: BatchWatcher,
    submission: str,
    *,
    goes_on: bool = True,
) -> None:
    """Pay for what an earlier run of this submission left, after its orders have come to their end.

    They run on with the stages that still know them; unless it `goes_on`, they end where they are.
    Raises ChainUnreachable, MatcherUnreachable.
    """
    async with _submission(requester, policy, watcher, submission) as submitted:
        await submitted.take_up(goes_on=goes_on)


def nothing_new(chain_now: int) -> OrderTerms:
    """The terms of what is taken up: none, as nothing is ordered for it."""
    raise AssertionError("what an earlier run left is paid, and nothing is ordered for it")


@asynccontextmanager
async def _submission(
    requester: Requester, policy: Policy, watcher: BatchWatcher, name: str
) -> AsyncIterator[_Submission]:
    """Streams and a name in the logs; at its end everything is paid."""
    limits, domain = policy.limits, requester.chain.domain
    private = limits.private_addresses
    identity = StreamIdentity(requester.signer, domain, private_addresses=private)
    streams = Streams(identity, connect_s=limits.connect_s, beat=limits.beat)
    submitted = _Submission(requester, policy, watcher, name, streams)
    named = None if origin.current_id() else wire.Origin(origin.new_id())
    with origin.within(named):
        try:
            yield submitted
        finally:
            await submitted.settled()
            await submitted.void_unopened()
            await streams.close()


class _Submission:
    """One batch on its way through as many jobs as it takes."""

    def __init__(
        self,
        requester: Requester,
        policy: Policy,
        watcher: BatchWatcher,
        name: str,
        streams: Streams,
    ) -> None:
        self._requester, self._policy, self._watcher = requester, policy, watcher
        self._terms_of = policy.terms_of
        self._name, self._streams = name, streams
        self._matches: list[Match] = []
        self._lost: frozenset[str] = frozenset()
        self._unopened = Unopened(requester.chain, requester.signer, requester.store)
        self._behind: list[tuple[Match, JobRun]] = []  # broken, kept until others went on from them
        self._settling: set[asyncio.Task[None]] = set()
        self._shard_roots: dict[tuple[int, int], str] = {}
        self._span_layers: int | None = None
        self._chain_ahead_s: float | None = None  # of our own clock

    async def run(self, answers: list[Ongoing]) -> BatchResult:
        finished: dict[str, FinishedAnswer] = {}
        errors: dict[str, HeadraceError] = {}
        fruitless = 0
        while answers and len(self._matches) < MAX_JOBS:
            if fruitless:
                await self._requester.clock.sleep(pause_s(fruitless - 1, SHORT_PAUSE_S))
            try:
                match, batch = await self._open(answers)
            except HeadraceError as error:
                if not self._matches:
                    raise
                errors = {a.prompt.custom_id: error for a in answers}
                self._lost, fruitless = frozenset(), fruitless + 1
                if not error.retryable or fruitless >= FRUITLESS_ROUNDS:
                    break
                continue
            outcome = await self._stream(match, batch, answers)
            await self._weigh(match.signed.order.matcher, outcome)
            left, whole = self._taken(match, answers, outcome, finished)
            errors = {
                answers[index].prompt.custom_id: error
                for index, error in outcome.unfinished.items()
                if index not in whole
            }
            answers, self._lost = left, outcome.lost
            if not answers:
                break
            fruitless = 0 if whole or outcome.begun or outcome.lost else fruitless + 1
            if fruitless >= FRUITLESS_ROUNDS:
                break
            self._watcher.pipeline_lost(next(iter(errors.values())), len(whole), len(answers))
        return BatchResult(finished, errors if answers else {}, tuple(self._matches))

    def _taken(
        self,
        match: Match,
        answers: Sequence[Ongoing],
        outcome: PipelineOutcome,
        finished: dict[str, FinishedAnswer],
    ) -> tuple[list[Ongoing], dict[int, RequestState]]:
        """Of a job's answers those that are left, and by index those that are whole: finished."""
        left, whole = go_on(answers, outcome, match.order_hash)
        for index, state in whole.items():
            name = answers[index].prompt.custom_id
            finished[name] = done = FinishedAnswer(match.job_id, index, answers[index].whole(state))
            if index not in outcome.finished:  # its last receipts are lost, its text is not
                self._watcher.request_finished(name, state.finish)
                self._policy.on_whole(name, done)
        return left, whole

    async def take_up(self, *, goes_on: bool) -> None:
        """What an earlier run left comes to its end."""
        requester = self._requester
        for order in requester.store.orders():
            if order.submission == self._name and not order.is_session:
                is_used = await is_nonce_used(requester.chain, signed_of(order).order)
                if goes_on or is_used:
                    await self._find_job(order)
                else:
                    requester.store.forget_order(order.job_id)
        for job in left_jobs(requester.store, self._name):
            state = (await job_with_plan(requester.chain, job.match)).state
            if state > JobState.MATCHED:
                paid = JobState.DELIVERED <= state <= JobState.SETTLED
                requester.store.set_state(job.match.job_id, "acknowledged" if paid else "abandoned")
                continue
            self._watcher.job_opened(job.match)
            outcome = await self._stream(
                job.match, job.batch, job.answers, job.known, goes_on=goes_on
            )
            self._taken(job.match, job.answers, outcome, {})

    async def _find_job(self, order: SentOrderRow) -> None:
        """The job of an order that was handed in: handing it in again opens no second one."""
        requester, signed = self._requester, signed_of(order)
        try:
            match = await match_order(requester, signed, None)
        except NO_ANSWER:
            if not requester.matcher.has_several:
                raise
            requester.store.leave_order(order.job_id)
            await withdraw(requester.chain, requester.signer, requester.store, [signed])
            return
        except HeadraceError as error:
            log.info("an earlier order opened nothing", job=order.job_id[:10], why=str(error))
            return
        requester.store.add_job(self._name, match, None, int(requester.clock.now()))

    async def settled(self) -> None:
        """Wait until every job that was left behind is paid for what it gave."""
        self._settle_behind()
        ended = await asyncio.gather(*self._settling, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                log.error("a job was left unpaid", reason=repr(error), exc_info=error)

    async def void_unopened(self) -> None:
        """No order follows those that came to nothing: their lines may be ordered anew."""
        await self._unopened.void()

    def _settle_behind(self) -> None:
        """Have stages sign for what they gave, once another order has taken it over."""
        behind, self._behind = self._behind, []
        self._settling |= {asyncio.create_task(self._settle(*job)) for job in behind}

    async def _open(self, answers: Sequence[Ongoing]) -> tuple[Match, PromptBatch]:
        """Sign an order for these answers and have it matched and locked on chain, in our turn."""
        async with self._policy.turn:
            return await self._open_now(answers)

    async def _open_now(self, answers: Sequence[Ongoing]) -> tuple[Match, PromptBatch]:
        """With the matcher of the terms, or where it fails with another. Raises its error."""
        failed: frozenset[str] = frozenset()
        while True:
            signed, batch = await self._order(answers)
            try:
                return await self._matched(signed, batch), batch
            except HeadraceError as error:
                if self._unopened.was_one_opened(error):
                    continue
                is_silent = isinstance(error, NO_ANSWER)
                self._unopened.came_to_nothing(signed, is_silent=is_silent)
                if self._policy.registers:  # so its nonce is used
                    await self._unopened.void()
                matcher = signed.order.matcher
                failed |= {matcher}
                self._requester.matcher.failed(matcher, error)
                if not await self._turn_to_another(failed):
                    raise

    async def _turn_to_another(self, failed: frozenset[str]) -> bool:
        """Let orders name another matcher than those that failed; whether there is one."""
        if self._policy.elsewhere is None or not self._requester.matcher.has_several:
            return False
        try:
            self._terms_of = await self._policy.elsewhere(failed)
        except HeadraceError as error:
            log.info("no other matcher takes it", why=str(error))
            return False
        return True

    async def _weigh(self, matcher: str, outcome: PipelineOutcome) -> None:
        """A matcher whose job gave nothing at all rests, whatever the reason."""
        if outcome.finished or outcome.begun:
            self._requester.matcher.served(matcher)
            return
        error = next(iter(outcome.unfinished.values()))
        self._requester.matcher.failed(matcher, error)
        await self._turn_to_another(frozenset({matcher}))

    async def _order(self, answers: Sequence[Ongoing]) -> tuple[SignedOrder, PromptBatch]:
        """Sign an order for these answers, which the prepaid balance covers, and write it down."""
        requester = self._requester
        batch = PromptBatch.of([answer.next_prompt(os.urandom) for answer in answers])
        terms = self._terms_of(await self._chain_now())
        model, account = (requester.model_id, requester.model), requester.signer.address
        nonce = self._unopened.next_nonce(account)
        order = make_order(batch, *model, terms, account, nonce)
        locked = pricing.max_amount(order, requester.model)
        signature = REGISTERED
        if not self._policy.registers:
            await self._provide(locked)
            signature = signing.sign(requester.signer, requester.chain.domain, order)
        signed = SignedOrder(order, signature, terms.demands)
        self._watcher.order_signed(order, locked)
        job_id = signing.job_id(requester.chain.domain, order)
        now_s = int(requester.clock.now())
        requester.store.add_order(self._name, job_id, signed, now_s, batch)
        return signed, batch

    async def _matched(self, signed: SignedOrder, batch: PromptBatch) -> Match:
        requester, store = self._requester, self._requester.store
        goes_on = Goes(self._matches[-1].job_id, self._lost) if self._matches else None
        if self._policy.registers:
            match = await self._registered(signed)
        else:
            match = await match_order(requester, signed, goes_on)
        store.add_job(self._name, match, batch, int(requester.clock.now()))
        try:
            check_plan(match.plan, signed.terms)
            await check_on_chain(requester, match)
        except HeadraceError:
            store.set_state(match.job_id, "abandoned")
            raise
        self._unopened.another_is_open()
        self._matches.append(match)
        self._watcher.job_opened(match)
        return match

    async def _registered(self, signed: SignedOrder) -> Match:
        requester = self._requester
        around = requester.chain, requester.signer, requester.matcher, requester.clock
        try:
            return await register(
                *around, signed, pricing.max_amount(signed.order, requester.model)
            )
        except NO_ANSWER:
            raise
        except HeadraceError:  # nothing was opened, or it is taken back
            requester.store.forget_order(signing.job_id(requester.chain.domain, signed.order))
            raise

    async def _chain_now(self) -> int:
        """Chain time: asked once, then by our own clock, so that going on waits for no answer."""
        clock = self._requester.clock
        if self._chain_ahead_s is None:
            self._chain_ahead_s = await self._requester.chain.now() - clock.monotonic()
        return int(self._chain_ahead_s + clock.monotonic())

    async def _provide(self, locked: int) -> None:
        """Have so much prepaid; at first twice that, so that going on needs no deposit."""
        chain, signer = self._requester.chain, self._requester.signer
        may, spare = self._policy.deposit_missing, 0 if self._matches else locked
        try:
            await ensure_deposit(chain, signer, locked, may_deposit=may, spare=spare)
        except DepositShort:
            if not self._behind and not self._settling:
                raise
            await self.settled()  # what the jobs before did not use comes back
            await ensure_deposit(chain, signer, locked, may_deposit=may)

    async def _stream(
        self,
        match: Match,
        batch: PromptBatch,
        answers: Sequence[Ongoing],
        known: Mapping[int, RequestState] | None = None,
        *,
        goes_on: bool = True,
    ) -> PipelineOutcome:
        """Stream the job and keep what it gave; it is paid while others go on. No HeadraceError.

        `known` are requests that an earlier run of the job has ended, None: there was none. Unless
        it `goes_on`, all end here.
        """
        run = self._job_run(match, batch, answers, known)
        try:
            await self._learn_roots(match)
            await run.open(needs_all=known is None)
            if known is not None:
                await run.catch_up()
        except HeadraceError as error:
            await run.close()
            given = {i: state.answer for i, state in (known or {}).items() if state.tokens}
            await pay(self._requester, Due(match, given), self._policy, self._watcher)
            failed = dict.fromkeys(range(len(batch.prompts)), error)
            return PipelineOutcome({}, failed, lost=run.outcome().lost, was_opened=False)
        taken_over = asyncio.create_task(self._settle_when_begun(run))
        try:
            runs = goes_on and not run.is_broken
            outcome = await run.run() if runs else run.stopped()
        except asyncio.CancelledError:  # Ctrl-C: pay for what was delivered, then stop
            await self._settle(match, run)
            raise
        finally:
            taken_over.cancel()
        if outcome.unfinished:
            self._behind.append((match, run))
        else:
            await self._settle(match, run)
        return outcome

    async def _settle_when_begun(self, run: JobRun) -> None:
        await run.begun.wait()
        self._settle_behind()

    async def _learn_roots(self, match: Match) -> None:
        unknown = [p for p in match.plan if (p.layer_from, p.layer_to) not in self._shard_roots]
        requester = self._requester
        self._shard_roots |= await shard_roots(requester.chain, requester.model_id, unknown)
        if self._span_layers is None:
            profile = match.signed.order.numerics_profile
            self._span_layers = await span_layers_of(requester.chain, profile)

    def _job_run(
        self,
        match: Match,
        batch: PromptBatch,
        answers: Sequence[Ongoing],
        known: Mapping[int, RequestState] | None,
    ) -> JobRun:
        """A run whose answers are stored as they finish."""
        requester, watcher, roots = self._requester, self._watcher, self._shard_roots
        shards = RegisteredShards(lambda start, end: roots[start, end], self._span_layers or 0)

        def token(index: int, step: int, token: int) -> None:
            answer = answers[index]
            place = len(answer.tokens) + step
            if place >= answer.shown:  # else a pipeline that is not trusted any more told it
                answer.shown = place + 1
                watcher.token(answer.prompt.custom_id, place, token)

        def finish(index: int, state: RequestState) -> None:
            self._keep(match, index, state)
            name = batch.prompts[index].custom_id
            whole = FinishedAnswer(match.job_id, index, answers[index].whole(state))
            watcher.request_finished(name, state.finish)
            self._policy.on_whole(name, whole)

        return JobRun(
            match,
            batch,
            self._streams.identity,
            shards,
            on_token=token,
            on_finish=finish,
            limits=self._policy.limits,
            streams=self._streams,
            continues=continues(answers),
            ending_of=requester.ending_of,
            known=known,
            paid=requester.store.paid(match.job_id),
            will_pay=partial(requester.store.put_paid, match.job_id),
        )

    def _keep(self, match: Match, index: int, state: RequestState) -> None:
        receipts = list(state.receipts.values())
        self._requester.store.finish_request(
            match.job_id, index, state.tokens, state.finish, receipts
        )

    async def _settle(self, match: Match, run: JobRun) -> None:
        """Pay for what a job gave: finished answers, and of broken ones what came."""
        requester = self._requester
        try:
            outcome = run.outcome()
            if outcome.unfinished:
                await run.cut()
                outcome = run.outcome()
                for index, part in outcome.begun.items():
                    self._keep(match, index, part)
                await run.let_go()
            else:
                whole = await _close_job(run, list(outcome.finished))
                requester.store.add_receipts(match.job_id, whole)
            answers = {i: state.answer for i, state in (outcome.finished | outcome.begun).items()}
            if answers and self._policy.pays_now:
                await run.acknowledge(*signed_ack(requester, match, answers))
        finally:
            await run.close()
        await pay(requester, Due(match, answers), self._policy, self._watcher)


def pause_s(failures: int, first_s: float = PAUSE_S) -> float:
    """Seconds to wait after so many failures in a row: twice as long each time, up to eight."""
    return retry.pause_s(failures, first_s, LONGEST_PAUSE_S)


async def match_order(requester: Requester, signed: SignedOrder, goes_on: Goes | None) -> Match:
    """Hand in the order, again if the only matcher is away: the same order gives the same job.

    Of one that is refused nothing is kept. Raises ContractRefused for a nonce that is used already;
    those of later orders are new ones.
    """
    failures, domain = 0, requester.chain.domain
    tries = 1 if requester.matcher.has_several else OPEN_TRIES
    while True:
        try:
            return await requester.matcher.open_job(signed, domain, goes_on)
        except MatcherUnreachable:
            failures += 1
            if failures == tries:
                raise
            await requester.clock.sleep(pause_s(failures - 1))
        except NO_ANSWER:
            raise
        except HeadraceError as error:
            requester.store.forget_order(signing.job_id(domain, signed.order))
            if isinstance(error, UsageError | ContractRefused):
                await _check_nonce(requester, signed.order)
            raise


async def _check_nonce(requester: Requester, order: Order) -> None:
    """After a refusal: raise ContractRefused where the chain knows the order's nonce already."""
    try:
        if not await is_nonce_used(requester.chain, order):
            return
    except ChainUnreachable:
        return
    requester.store.renew_nonces(order.requester)
    raise ContractRefused(
        f"nonce {order.nonce} of {order.requester} is used already, so the order opens nothing",
        error="NonceUsedAlready",
        args={"nonce": order.nonce},
        state="no prompt was sent; the records here are older than the wallet's orders, as after "
        "a backup was restored, or a copy of them is in use, or the matcher lost the job: then "
        "what it locked returns after the order's deadline",
        next_step="ask again: orders take their nonces from another range now, which no copy has",
    )


def check_plan(plan: Sequence[Stage], demands: Terms | None) -> None:
    """Raise CheckFailed unless the order's demands allow every stage: others see no prompt."""
    barred = [s.operator for s in plan if demands is not None and not demands.allows(s.operator)]
    if barred:
        raise CheckFailed(
            "the matcher chose a machine that the order's terms do not allow",
            ", ".join(barred),
            state="no prompt was sent; what is locked returns after the order's deadline",
        )


async def check_on_chain(requester: Requester, match: Match) -> None:
    """Raise CheckFailed unless the chain shows the job matched with the plan the matcher told."""
    give_up = requester.clock.monotonic() + MATCHED_WITHIN_S
    while True:
        state = (await job_with_plan(requester.chain, match)).state
        if state is JobState.MATCHED:
            return
        if state > JobState.MATCHED or requester.clock.monotonic() >= give_up:
            why = f"{state.name} with plan {match.plan_hash}, not MATCHED"
            if state is JobState.NONE:
                is_used = await is_nonce_used(requester.chain, match.signed.order)
                why += "; its nonce is used, so another plan has it" if is_used else "; not opened"
            raise CheckFailed(
                "the job on chain is not the one the matcher described",
                why,
                state="no prompt was sent; what is locked returns after the order's deadline",
            )
        await requester.clock.sleep(LOOK_AGAIN_S)


async def _close_job(run: JobRun, indices: list[int]) -> list[SignedReceipt]:
    """Receipts over the whole job; without them there are those over each request."""
    try:
        return await run.close_job(indices)
    except HeadraceError as error:
        log.warning("no receipts over the whole job", reason=str(error))
        return []


async def pay(requester: Requester, due: Due, policy: Policy, watcher: BatchWatcher) -> None:
    """Acknowledge what a job gave. Unacknowledged, it is paid after the window for disputes."""
    match, answers = due.match, due.answers
    if not answers and not any(requester.store.paid(match.job_id)):
        requester.store.set_state(match.job_id, "abandoned")
        return
    requester.store.set_state(match.job_id, "unacknowledged")
    if not policy.acknowledge:
        return
    if policy.due is not None:
        policy.due.append(due)
        return
    for attempt in range(ACK_TRIES):
        try:
            await acknowledge(requester, match, answers, watcher)
            return
        except HeadraceError as error:
            if not error.retryable or attempt == ACK_TRIES - 1:
                watcher.not_acknowledged(match, error)
                return
        await requester.clock.sleep(pause_s(attempt))


async def acknowledge(
    requester: Requester, match: Match, answers: Mapping[int, RequestAnswer], watcher: BatchWatcher
) -> None:
    """Sign off these answers, as far as they came, and have the matcher settle the job on chain."""
    ack, signature = signed_ack(requester, match, answers)
    await requester.matcher.acknowledge(match, ack, signature)
    requester.store.set_state(match.job_id, "acknowledged")
    counts = ack.tokens_in, ack.tokens_out
    result = pricing.split(match.signed.order, match.plan, requester.model, *counts)
    watcher.acknowledged(match, whole_units(result.paid))


def signed_ack(
    requester: Requester, match: Match, answers: Mapping[int, RequestAnswer]
) -> tuple[Ack, str]:
    """The acknowledgement of these answers, and no less than one on the way counted."""
    due = ack_of_answers(answers, match.signed.order, match.plan)
    ack = at_least(due, requester.store.paid(match.job_id))
    return ack, signing.sign(requester.signer, requester.chain.domain, ack)


def new_submission_id() -> str:
    """Name of one `client submit`, which may need several jobs."""
    return os.urandom(8).hex()
