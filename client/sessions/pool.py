"""Which session answers a request, when is one opened or closed, how does an answer outlive it?

The `Answerer` of the gateway and the chat keeps sessions for each model and terms. The next one is
opened before the present one runs out, further ones when all slots are taken, and an idle one is
closed. An answer whose pipeline breaks goes on in another session from its last token.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from client.context import Context, Model
from client.jobs.batch import (
    FRUITLESS_ROUNDS,
    NO_ANSWER,
    Requester,
    check_on_chain,
    check_plan,
    match_order,
    pause_s,
)
from client.jobs.failover import Ongoing
from client.jobs.wishes import (
    Choices,
    Wishes,
    check_caps,
    ending_by,
    limits_of,
    terms_for,
    within_limits,
)
from client.jobs.withdrawal import Unopened
from client.orders.matcher_api import Goes, Quote
from client.orders.orders import Allowance, Prompt, make_open_order
from client.orders.shard_roots import shard_roots
from client.pipeline.pipeline import Logprobs
from client.pipeline.streams import Streams
from client.pipeline.verify import RegisteredShards
from client.records.keeper import Keeper, keepers_of
from client.sessions import budget as budgets
from client.sessions.answering import (
    Answered,
    Ask,
    AskTerms,
    PricedRequest,
    Said,
    priced,
    wishes_with,
)
from client.sessions.budget import Life, SessionBudget
from client.sessions.recovery import Recovery
from client.sessions.session import LiveSession, Turn
from client.wallet import ensure_deposit
from core.models.programs import span_layers_of
from core.protocol import ids, signing, units, wire
from core.protocol.errors import (
    CheckFailed,
    ContractRefused,
    DeadlinePassed,
    DepositShort,
    HeadraceError,
    NoCapacity,
    PeerUnreachable,
)
from core.protocol.types import SignedOrder, Terms
from core.runtime import origin
from core.runtime.clock import Clock, SystemClock
from core.runtime.logs import get_logger
from core.runtime.network.channel import StreamIdentity
from core.runtime.tasks import spawn

if TYPE_CHECKING:
    from core.engine.weights.tokenizer import Tokenizer
    from core.protocol.signing import DigestSigner
    from core.runtime.settings import SessionSettings as Sizes

TICK_S = 1.0
SETTLE_EVERY_S = 30.0  # what dead programs left and the matcher did not take
AGAIN_S = 15.0  # after the next session could not be opened ahead of need
SHORT_PAUSE_S = 0.25
ASK_AGAIN_S = 1.0  # for a place on machines that are all taken
CLOSE_S = 30.0
T = TypeVar("T")
log = get_logger(__name__)


@dataclass
class _Pool:
    """The sessions of one model under the same terms."""

    model: Model
    demands: Terms
    sessions: list[LiveSession] = field(default_factory=list)
    opening: asyncio.Task[LiveSession] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ahead_not_before: float = 0.0
    used_at: float = 0.0

    def stir(self) -> None:
        """Let requests that wait for room look again."""
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(frozen=True)
class _Need:
    """What one request takes of a session."""

    tokens_in: int
    most_out: int
    wishes: Wishes
    lost: frozenset[str]
    goes: Goes | None
    origin: wire.Origin | None = None  # the request for which a session is opened


class SessionPool:
    """Answers requests over sessions."""

    def __init__(
        self,
        context: Context,
        signer: DigestSigner,
        *,
        sizes: Sizes | None = None,
        clock: Clock | None = None,
        on_reroute: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`signer` is the requester's key, or a spender's if `client.account` names a requester."""
        self._context, self._signer = context, signer
        self._settings = context.settings
        self._sizes = sizes or context.settings.sessions
        self._clock = clock or SystemClock()
        self._account = self._settings.client.account or signer.address
        self._store, self._matcher = context.store(), context.matcher()
        self._limits = limits_of(self._settings)
        self._streams = Streams(
            StreamIdentity.on(self._settings.network, signer, context.chain.domain),
            connect_s=self._limits.connect_s,
            beat=self._limits.beat,
        )
        self._keeper = Keeper(keepers_of(self._settings))
        self._disk = ThreadPoolExecutor(1, "client-store")
        self._pools: dict[tuple[Any, ...], _Pool] = {}
        self._tokenizers: dict[str, Tokenizer] = {}
        self._roots: dict[tuple[str, int, int], str] = {}
        self._span_layers: dict[str, int] = {}
        self._deposit_lock = asyncio.Lock()
        self._closed_idle_at = float("-inf")
        self._locking_units = 0  # of orders that the chain does not show yet
        self._held: dict[int, tuple[int, int]] = {}  # units and deadline of left ones, by nonce
        self._chain_ahead_s: float | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._settled_once = asyncio.Event()
        #: Hears why an answer goes on in another session: lost, distrusted or other.
        self._on_reroute = on_reroute

    # --- what the Answerer promises ---

    async def price(
        self, model: Model, tokens_in: int, tokens_out: int, terms: AskTerms
    ) -> PricedRequest:
        tokens = tokens_in, tokens_out
        quote = await self._matcher.quote(model.model_id, *tokens, self._demands(terms))
        return priced(model, quote, *tokens)

    async def answer(self, ask: Ask) -> AsyncGenerator[Said | Answered, None]:
        await self._start()
        course, within = _Course(ask), _Within(self._clock, ask.terms.deadline_s)
        # The newest turn, and the one before it while stages keep what this one goes on from.
        now: Turn | None = None
        old: Turn | None = None
        is_told = False
        try:
            while True:
                session = None
                try:
                    session = await within(self._session_for(course, old))
                    turn = await within(session.ask(course.next_prompt(), course.answer.place))
                except HeadraceError as error:
                    if session is not None:
                        session.retire()
                    await course.refused(error, self._clock)
                    continue
                now = turn
                while (item := await within(turn.next())) is not None:
                    if old is not None:
                        old.session.adopt(old)
                        old = None
                    if (said := course.take(*item)) is not None:
                        yield said
                if old is not None:
                    old.session.adopt(old)
                course.book(turn)
                now, old = None, turn
                if turn.is_whole:
                    is_told = True
                    yield course.answered(turn.state.finish)
                    return
                session.retire()  # whatever broke a request there would break the next
                self._on_reroute(_why_rerouted(turn))
                await course.broke(turn, self._clock)
        except HeadraceError as error:
            if course.shown:  # else what it comes to is told once it is known
                is_told = True
                if now is not None:
                    await now.session.cancelled(now)
                    course.book(now)
                error.details["answered"] = course.answered("")
            raise
        finally:
            for one in (old, now):
                if one is not None:
                    one.session.cancel(one)  # changes nothing where it is over
                    one.session.adopt(one)
            if not is_told and ask.on_end is not None:
                self._spawn(_tell(course, now))

    async def close(self) -> None:
        """Stop what runs, pay for what was delivered, close every session."""
        loops = [task for task in (self._ticking, self._recovering) if task is not None]
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        openings = [pool.opening for pool in self._pools.values() if pool.opening is not None]
        await asyncio.gather(*openings, return_exceptions=True)
        for pool in self._pools.values():
            for session in list(pool.sessions):
                session.stop()
                self._end(pool, session)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._streams.close()
        await self._matcher.close()
        self._disk.shutdown(wait=True)
        self._store.close()
        self._keeper.close()

    def sessions(self) -> list[LiveSession]:
        """Those that are open now."""
        return [session for pool in self._pools.values() for session in pool.sessions]

    # --- finding a session ---

    async def _session_for(self, course: _Course, old: Turn | None) -> LiveSession:
        """A session with room and a slot, opened if need be. The caller begins its request at once.

        Raises what opening one raised: NoCapacity, DepositShort and others.
        """
        ask, prompt, goes = course.ask, course.next_prompt(), None
        if old is not None and old.session.use.life is Life.BROKEN:
            goes = Goes(old.session.match.job_id, old.session.lost)
        wishes = wishes_with(self._settings, ask.terms)
        most_out = prompt.sampling.max_new_tokens
        need = _Need(len(prompt.ids), most_out, wishes, course.lost, goes, origin.current())
        pool = self._pool(ask)
        pool.used_at = self._clock.monotonic()
        give_up = pool.used_at + self._sizes.queue_s
        while True:
            fitting = [s for s in pool.sessions if _fits(s, need, pool.model)]
            free = [s for s in fitting if budgets.has_slot(s.use, s.budget)]
            if free:
                self._look_ahead(pool)
                return min(free, key=lambda s: s.use.running)
            changed = pool.changed
            try:
                await self._opened(pool, need)
            except (NoCapacity, DepositShort) as error:
                left_s = give_up - self._clock.monotonic()
                is_short = isinstance(error, DepositShort)
                # Money of an order under way may be counted twice while the chain takes it, and
                # what sessions lock in which nothing runs comes back once they are closed.
                is_passing = _is_busy(error) or (
                    is_short and (self._locking_units or self._close_idle())
                )
                if left_s <= 0 or not (fitting or is_passing):
                    raise
                # Every slot is taken and no other pipeline to be had: wait for one that is freed,
                # by others too where none is ours.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s if fitting else min(left_s, ASK_AGAIN_S)):
                        await changed.wait()

    def _pool(self, ask: Ask) -> _Pool:
        demands = self._demands(ask.terms)
        key = (ask.model.model_id, demands)
        return self._pools.setdefault(key, _Pool(ask.model, demands))

    def _demands(self, terms: AskTerms) -> Terms:
        ours = self._settings.client
        return Terms.of(
            self._sizes.in_flight,
            terms.trusted or ours.trusted,
            {*terms.avoided, *ours.avoid},
            terms.audit_bps,
        )

    async def _opened(self, pool: _Pool, need: _Need) -> LiveSession:
        """A new session of a pool; requests that want one at the same time get the same."""
        if pool.opening is None:
            # In a context of its own: what it starts lives on for other requests than this one.
            task = asyncio.create_task(
                self._open(pool, need), name="open a session", context=contextvars.Context()
            )
            pool.opening = task

            def done(task: asyncio.Task[LiveSession]) -> None:
                pool.opening = None
                if not task.cancelled():
                    task.exception()  # seen, also where no request waits any more

            task.add_done_callback(done)
        return await asyncio.shield(pool.opening)

    def _look_ahead(self, pool: _Pool) -> None:
        """Open the next session before the present ones run out."""
        now_s = self._chain_now()
        fresh = [s for s in pool.sessions if not budgets.is_low(s.use, s.budget, now_s)]
        mono = self._clock.monotonic()
        if fresh or pool.opening is not None or mono < pool.ahead_not_before:
            return
        pool.ahead_not_before = mono + AGAIN_S
        self._spawn(self._open_ahead(pool))

    async def _open_ahead(self, pool: _Pool) -> None:
        try:
            wishes = wishes_with(self._settings, AskTerms())
            await self._opened(pool, _Need(1, 1, wishes, frozenset(), None))
        except HeadraceError as error:
            log.info("no next session yet", why=str(error))

    # --- opening ---

    async def _open(self, pool: _Pool, need: _Need) -> LiveSession:
        """A session by the first matcher that opens one. Raises what the first of them refused."""
        model, failed = pool.model, frozenset[str]()
        refused: HeadraceError | None = None
        unopened = Unopened(self._context.chain, self._signer, self._store)
        alive = [s for s in pool.sessions if s.use.life is Life.OPEN]
        if len(alive) >= self._sizes.pipelines:
            raise NoCapacity(
                "no further session is opened",
                f"{len(alive)} of this model are open, the limit is sessions.pipelines",
            )
        first = self._size(model, need)
        tokens, first_lock = (first.tokens_in, first.tokens_out), 0
        while True:
            try:
                quote = await self._matcher.quote(
                    model.model_id, *tokens, pool.demands, but_not=failed
                )
            except HeadraceError as error:
                self._leave(unopened, locked=first_lock)
                raise refused or error from None
            first_lock = max(first_lock, quote.lock(model.spec, *tokens))
            try:
                return await self._open_by(quote, pool, need, first, unopened)
            except HeadraceError as error:
                if unopened.was_one_opened(error):
                    continue
                if not self._matcher.has_several:
                    self._leave(unopened, locked=first_lock)
                    raise
                refused, failed = refused or error, failed | {quote.matcher}

    async def _open_by(
        self, quote: Quote, pool: _Pool, need: _Need, first: Allowance, unopened: Unopened
    ) -> LiveSession:
        """Sign an open order, have it matched, check what came, and connect to every stage."""
        model, chain = pool.model, self._context.chain
        requester, span_layers = await self._requester(model), await self._spans_of(model)
        wishes = await within_limits(self._context, model, need.wishes, Choices())
        async with self._deposit_lock:
            allowed = await self._afford(model, need, first, quote, wishes.max_cost)
            locked = quote.lock(model.spec, allowed.tokens_in, allowed.tokens_out)
            check_caps(self._settings, wishes, model.spec.layer_units, quote, locked)
            await self._provide(locked)
            self._locking_units += locked
        try:
            now_s = int(self._chain_now())
            wishes = replace(wishes, deadline_s=min(self._sizes.length_s, wishes.deadline_s))
            terms = replace(terms_for(wishes, quote, now_s), demands=pool.demands)
            of_model = model.model_id, model.spec
            nonce = unopened.next_nonce(self._account)
            order = make_open_order(allowed, *of_model, terms, self._account, nonce)
            signature = signing.sign(self._signer, chain.domain, order)
            signed = SignedOrder(order, signature, pool.demands)
            job_id, opened_at = signing.job_id(chain.domain, order), int(self._clock.now())
            self._store.add_order(self._keeper.name, job_id, signed, opened_at)
            with origin.within(need.origin, "open a session"):
                try:
                    match = await match_order(requester, signed, need.goes)
                except HeadraceError as error:
                    if not unopened.orders or not isinstance(error, ContractRefused):
                        is_silent = isinstance(error, NO_ANSWER)
                        self._matcher.failed(quote.matcher, error)
                        unopened.came_to_nothing(signed, is_silent=is_silent)
                    raise
                name = ids.short(ids.Kind.JOB, match.job_id)
                log.info("session matched", job=name, stages=len(match.plan))
        finally:
            self._locking_units -= locked
        self._store.add_session(self._keeper.name, match, opened_at)
        session = LiveSession(
            match,
            SessionBudget(
                **vars(allowed),
                in_flight=pool.demands.in_flight,
                opened_s=now_s,
                deadline_s=order.deadline,
            ),
            requester,
            RegisteredShards(
                lambda start, end: self._roots[model.model_id, start, end],
                span_layers,
            ),
            limits=self._limits,
            streams=self._streams,
            disk=self._disk,
            chain_now=self._chain_now,
            on_change=pool.stir,
        )
        try:
            check_plan(match.plan, pool.demands)
            await check_on_chain(requester, match)
            unopened.another_is_open()
            await self._learn_roots(model, match.plan)
            await session.open()
        except HeadraceError as error:
            self._matcher.failed(quote.matcher, error)
            self._spawn(self._ended(session))
            raise
        self._matcher.served(quote.matcher)
        pool.sessions.append(session)
        pool.stir()
        log.info("session opened", job=match.job_id[:10], stages=len(match.plan), locked=locked)
        return session

    def _leave(self, unopened: Unopened, *, locked: int) -> None:
        """Orders that nobody answered are revoked; where that fails, their lock is held back."""
        if unopened.is_silent:
            order = unopened.orders[0].order
            self._held[order.nonce] = locked, order.deadline

            async def revoke() -> None:
                if await unopened.void():
                    del self._held[order.nonce]

            self._spawn(revoke())

    def _held_units(self) -> int:
        now_s = self._chain_now()
        return sum(units for units, until in self._held.values() if until >= now_s)

    def _size(self, model: Model, need: _Need) -> Allowance:
        """As large as the settings say, and large enough for what is asked."""
        sizes, most = self._sizes, self._sizes.requests * model.spec.context
        tokens_in = max(need.tokens_in, min(sizes.tokens_in, most // 2))
        tokens_out = max(need.most_out, min(sizes.tokens_out, most - tokens_in))
        return Allowance(min(sizes.requests, tokens_in), tokens_in, tokens_out)

    async def _afford(
        self, model: Model, need: _Need, wanted: Allowance, quote: Quote, max_cost: int
    ) -> Allowance:
        """What the limit on one job's cost and the money pay for, at least what is asked."""
        chain = self._context.chain
        funds: int = await chain.read("Escrow", "balanceOf", self._account)
        if self._account == self._signer.address:
            funds += await chain.read("TestUSD", "balanceOf", self._account)
        funds -= self._locking_units + self._held_units()
        cost = quote.cost(model.spec, wanted.tokens_in, wanted.tokens_out)
        most = max(0, min(max_cost, funds) - quote.opening_fee)
        if cost <= most:
            return wanted
        tokens_in = max(need.tokens_in, wanted.tokens_in * most // cost)
        tokens_out = max(need.most_out, wanted.tokens_out * most // cost)
        return Allowance(min(wanted.requests, tokens_in), tokens_in, tokens_out)

    async def _provide(self, locked: int) -> None:
        if self._account == self._signer.address:
            chain, signer = self._context.chain, self._signer
            locking = locked + self._locking_units + self._held_units()
            await ensure_deposit(chain, signer, locking, may_deposit=True, spare=locked)

    async def _requester(self, model: Model) -> Requester:
        if self._chain_ahead_s is None:
            now_s = await self._context.chain.now()
            self._chain_ahead_s = now_s - self._clock.monotonic()
        around = self._context.chain, self._matcher, self._signer, self._store, self._clock
        ending_of = ending_by(await self._tokenizer(model))
        return Requester(*around, model.model_id, model.spec, ending_of)

    async def _tokenizer(self, model: Model) -> Tokenizer:
        from core.engine.weights.tokenizer import Tokenizer

        if model.model_id not in self._tokenizers:
            folder = (await self._context.files_of(model)).folder
            self._tokenizers[model.model_id] = await asyncio.to_thread(Tokenizer, folder)
        return self._tokenizers[model.model_id]

    async def _learn_roots(self, model: Model, plan: Any) -> None:
        unknown = [p for p in plan if (model.model_id, p.layer_from, p.layer_to) not in self._roots]
        found = await shard_roots(self._context.chain, model.model_id, unknown)
        self._roots |= {(model.model_id, *span): root for span, root in found.items()}

    async def _spans_of(self, model: Model) -> int:
        """Layers between two boundaries that stages of a model sign; 0: all of a stage's."""
        if model.model_id not in self._span_layers:
            profile = model.spec.numerics_profile
            self._span_layers[model.model_id] = await span_layers_of(self._context.chain, profile)
        return self._span_layers[model.model_id]

    def _chain_now(self) -> float:
        assert self._chain_ahead_s is not None, "asked before the first session is opened"
        return self._chain_ahead_s + self._clock.monotonic()

    # --- time ---

    async def _start(self) -> None:
        if self._ticking is not None:
            return
        self._ticking = asyncio.create_task(self._tick(), name="sessions")
        self._recovering = asyncio.create_task(self._settle_left_behind(), name="recovery")

    async def recover(self) -> None:
        """Settle what dead programs left; what cannot be settled now is tried again by and by."""
        await self._start()
        await self._settled_once.wait()

    async def _settle_left_behind(self) -> None:
        recovery = Recovery(
            self._store,
            self._keeper,
            self._context.chain,
            self._matcher,
            self._signer,
            self._clock,
            self._streams,
            self._limits,
        )
        while True:
            try:
                left = await recovery.settle()
            except Exception:
                log.exception("what dead programs left was not settled")
                left = 1
            self._settled_once.set()
            if left:
                log.warning("sessions of an earlier run are not settled yet", count=left)
            await self._clock.sleep(SETTLE_EVERY_S)

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            try:
                self.look()
            except Exception:
                log.exception("looking after sessions failed")

    def look(self) -> None:
        """Retire, end and replace sessions, as time goes on."""
        for pool in self._pools.values():
            for session in list(pool.sessions):
                now_s, use, budget = self._chain_now(), session.use, session.budget
                is_idle = budgets.is_idle(use, now_s, self._sizes.idle_s)
                if use.life is Life.OPEN and (is_idle or budgets.is_spent(use, budget, now_s)):
                    session.retire()
                if session.use.life is not Life.OPEN:
                    self._end(pool, session)
            is_used = self._clock.monotonic() - pool.used_at < self._sizes.idle_s
            if pool.sessions and is_used:
                self._look_ahead(pool)

    def _close_idle(self) -> bool:
        """Close sessions in which nothing runs; whether any was closed lately."""
        now_s = self._clock.monotonic()
        for pool in self._pools.values():
            for session in list(pool.sessions):
                if not session.use.running:
                    session.retire()
                    self._end(pool, session)
                    self._closed_idle_at = now_s
        return now_s - self._closed_idle_at < self._sizes.queue_s

    def _end(self, pool: _Pool, session: LiveSession) -> None:
        pool.sessions.remove(session)
        self._spawn(self._ended(session))

    async def _ended(self, session: LiveSession) -> None:
        is_told = await session.end()
        log.info("session closed", job=session.match.job_id[:10], told=is_told)

    def _spawn(self, work: Any) -> None:
        spawn(work, self._tasks)


class _Course:
    """One answer on its way through as many sessions as it takes."""

    def __init__(self, ask: Ask) -> None:
        # Noise does not depend on which session, and which place in it, a request gets.
        sampling = msgspec.structs.replace(ask.prompt.sampling, key_index=0)
        prompt = replace(ask.prompt, custom_id=ask.request_id, sampling=sampling)
        self.ask, self.answer = ask, Ongoing(prompt, key_index=0)
        self.lost: frozenset[str] = frozenset()
        self._said: list[int] = []
        self._cost_units = 0
        self._last: Turn | None = None
        self._fruitless = 0

    @property
    def shown(self) -> int:
        """Tokens that the reader has."""
        return len(self._said)

    def next_prompt(self) -> Prompt:
        """What is left to ask for."""
        return self.answer.next_prompt(os.urandom)

    def take(self, step: int, token: int, logprobs: Logprobs | None) -> Said | None:
        """A token that is new to the reader. Raises CheckFailed where another was shown."""
        place = len(self.answer.tokens) + step
        if place == len(self._said):
            self._said.append(token)
            return Said(place, token, logprobs)
        if self._said[place] != token:
            raise CheckFailed(
                "the answer cannot go on",
                f"token {place} was {self._said[place]} from a distrusted pipeline, now {token}",
            )
        return None

    def book(self, turn: Turn) -> None:
        """A turn is over: what it cost, and what the answer goes on from."""
        self._last = turn
        self._cost_units += turn.cost_units
        if not turn.is_whole and turn.state.is_trusted:
            self.answer.tokens += turn.state.tokens
            self.answer.logprobs += turn.state.logprobs
            self.answer.place = (turn.session.order_hash, turn.index)

    async def refused(self, error: HeadraceError, clock: Clock) -> None:
        """No session took the request: raise the error where trying again is no use, else wait."""
        self.lost, self._fruitless = frozenset(), self._fruitless + 1
        is_new = self._last is None and not isinstance(error, PeerUnreachable)
        if is_new or not error.retryable or self._fruitless >= FRUITLESS_ROUNDS:
            raise error
        await clock.sleep(pause_s(self._fruitless - 1, SHORT_PAUSE_S))

    async def broke(self, turn: Turn, clock: Clock) -> None:
        """Wait before the answer goes on elsewhere if nothing came; raise after too many losses."""
        self.lost |= turn.session.lost
        self._fruitless = 0 if turn.state.tokens else self._fruitless + 1
        error = turn.state.failure or PeerUnreachable("the pipeline", "it broke")
        if self._fruitless >= FRUITLESS_ROUNDS:
            raise error
        if self._fruitless:
            await clock.sleep(pause_s(self._fruitless - 1, SHORT_PAUSE_S))

    def answered(self, finish: str) -> Answered:
        """What became of it so far."""
        if self._last is None:  # no stage has heard of it
            return Answered("", 0, (), len(self.ask.prompt.ids), 0, finish, 0, is_partial=True)
        match = self._last.session.match
        return Answered(
            job_id=match.job_id,
            request_index=self._last.index,
            operators=tuple(stage.operator for stage in match.plan),
            tokens_in=len(self.ask.prompt.ids),
            tokens_out=len(self._said),
            finish=finish,
            cost_units=self._cost_units,
            is_partial=not finish,
        )


def _is_busy(error: HeadraceError) -> bool:
    """Whether machines serve this, and have no place or refuse at this moment."""
    return bool(error.details.get("busy") or error.details.get("refusals"))


def _why_rerouted(turn: Turn) -> str:
    if not turn.state.is_trusted:
        return "distrusted"
    return "lost" if turn.session.lost else "other"


async def _tell(course: _Course, last: Turn | None) -> None:
    """What an answer came to whose reader has left."""
    if last is not None:
        await last.session.cancelled(last)
        course.book(last)
    if course.ask.on_end is not None:
        course.ask.on_end(course.answered(""))


class _Within:
    """Waits no longer than an answer's deadline allows."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock, self._seconds = clock, seconds
        self._until = None if seconds is None else clock.monotonic() + seconds

    async def __call__(self, work: Awaitable[T]) -> T:
        """What `work` gives. Raises DeadlinePassed."""
        if self._until is None:
            return await work
        try:
            async with asyncio.timeout(max(0.0, self._until - self._clock.monotonic())):
                return await work
        except TimeoutError:
            raise DeadlinePassed(
                "the answer took too long",
                f"its deadline of {self._seconds:g} s passed",
                "what came was paid for, nothing more will be",
                resume="the same request, with a later deadline",
            ) from None


def _fits(session: LiveSession, need: _Need, model: Model) -> bool:
    """Whether a request may go over a session once there is a slot."""
    order, layer_units = session.match.signed.order, model.spec.layer_units
    caps = ((need.wishes.cap_in, order.price_in), (need.wishes.cap_out, order.price_out))
    return (
        session.takes(need.tokens_in, need.most_out)
        and not need.lost & session.operators
        and all(cap is None or nano <= units.nano_price(cap, layer_units) for cap, nano in caps)
    )
