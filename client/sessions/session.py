"""How does an open order's pipeline answer requests that begin by a signature, off chain?

After each answer whose receipts hold, the requester signs what is due in all (a cumulative Ack) and
sends it to the stages, and now and then to the matcher, which brings the newest one on chain.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from client.jobs.batch import Requester, pause_s
from client.orders.orders import Prompt, opening_of
from client.pipeline.pipeline import (
    Logprobs,
    Match,
    Pipeline,
    PipelinePatience,
    RequestState,
    refusal,
)
from client.pipeline.streams import Streams
from client.pipeline.verify import RegisteredShards, ack_of_leaves, at_least
from client.sessions import budget as budgets
from client.sessions.budget import Life, SessionBudget, Use
from core.money import pricing
from core.protocol import commit, signing, wire
from core.protocol.errors import HeadraceError, Interrupted, PeerUnreachable
from core.protocol.types import Ack, RequestLeaf, SignedOpening
from core.protocol.units import whole_units
from core.runtime.logs import get_logger
from core.runtime.network.channel import StreamIdentity
from core.runtime.tasks import spawn

ACK_EVERY_S = 1.0  # to the matcher; stages are told at once
ACK_TRIES = 5
FIRST_PAUSE_S = 0.5
TAKE_OVER_S = 10.0  # that the stages of a broken session keep what its answers go on from
UNPAID = "E-JOB-UNPAID"  # a stage wants to be acknowledged first
log = get_logger(__name__)


class Turn:
    """One request of a session, as the reader of its answer sees it."""

    def __init__(
        self, session: LiveSession, index: int, prompt: Prompt, state: RequestState
    ) -> None:
        self.session, self.index, self.prompt, self.state = session, index, prompt, state
        self.cost_units = 0  # set when it is over
        self.over = asyncio.Event()
        self.is_counted = self.is_recorded = self.is_booked = False
        self.is_unwanted = False  # it ends with its next token
        self._queue: asyncio.Queue[tuple[int, int, Logprobs | None] | None] = asyncio.Queue()

    @property
    def is_whole(self) -> bool:
        """Whether the answer is all here, signed or not."""
        return self.state.is_trusted and bool(self.state.finish)

    @property
    def promised(self) -> tuple[int, int]:
        """Most tokens in and out."""
        return len(self.state.prompt_ids), self.state.max_new_tokens

    def tell(self, step: int, token: int) -> None:
        """A token that the reader gets by `next`."""
        self._queue.put_nowait((step, token, self.state.logprobs[step]))

    def end(self) -> None:
        """Nothing more comes."""
        self.over.set()
        self._queue.put_nowait(None)

    async def next(self) -> tuple[int, int, Logprobs | None] | None:
        """Step, token and its logprobs; None once nothing more comes."""
        return None if self.over.is_set() and self._queue.empty() else await self._queue.get()


class LiveSession(Pipeline):
    """An open order at work. `use` says how much of its budget is spoken for."""

    def __init__(
        self,
        match: Match,
        budget: SessionBudget,
        requester: Requester,
        shards: RegisteredShards,
        *,
        limits: PipelinePatience,
        streams: Streams,
        disk: ThreadPoolExecutor,
        chain_now: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` hears of freed slots and the end; `disk` the thread that writes records."""
        super().__init__(
            match,
            StreamIdentity(requester.signer, requester.chain.domain),
            shards,
            on_token=self._tell_turn,
            on_finish=lambda index, state: None,
            limits=limits,
            streams=streams,
        )
        self.match, self.budget = match, budget
        self.use = Use(idle_since_s=chain_now())
        self.ack: tuple[Ack, str] | None = None
        self._requester, self._disk, self._chain_now = requester, disk, chain_now
        self._on_change = on_change
        self._turns: dict[int, Turn] = {}
        self._openings: dict[int, SignedOpening] = {}
        self._leaves: dict[int, RequestLeaf] = {}  # what is acknowledged
        self._counted = (0, 0)  # tokens in and out that are or will be acknowledged
        self._orphans: set[int] = set()
        self._adopted = asyncio.Event()
        self._booking = asyncio.Lock()
        self._told: Ack | None = None  # the newest that the matcher has taken
        self._ack_changed = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(stage.operator for stage in self.match.plan)

    @property
    def lost(self) -> frozenset[str]:
        """Operators that fell silent."""
        return frozenset(self._lost)

    @property
    def order_hash(self) -> str:
        return self.match.order_hash

    def takes(self, tokens_in: int, most_out: int) -> bool:
        """Whether a request of this size may begin here once there is a slot."""
        return budgets.has_room(self.use, self.budget, tokens_in, most_out, self._chain_now())

    async def open(self) -> None:
        """Open the order at every stage. Raises PeerUnreachable or AuthenticationFailed."""
        await super().open()
        self._loops = [
            asyncio.create_task(self._watch_silence(), name="silence of a session"),
            asyncio.create_task(self._tell_matcher(), name="acknowledgements of a session"),
        ]

    # --- requests ---

    async def ask(self, prompt: Prompt, was: tuple[str, int] | None = None) -> Turn:
        """Begin a request, which goes on with request `was[1]` of the order `was[0]`, if any.

        Raises PeerUnreachable, and then nothing is due; ValueError where it has no room or slot.
        """
        index = self.use.begun
        ending_of, most_out = self._requester.ending_of, prompt.sampling.max_new_tokens
        state = RequestState(prompt.ids, most_out, ending=ending_of and ending_of(prompt))
        turn = Turn(self, index, prompt, state)
        self.use = budgets.begin(self.use, self.budget, *turn.promised, self._chain_now())
        self._turns[index], self._requests[index] = turn, turn.state
        self._busy.set()
        self._quiet.clear()
        opening = opening_of(self.order_hash, index, prompt)
        signature = signing.sign(self._requester.signer, self._identity.domain, opening)
        self._openings[index] = SignedOpening(opening, signature)
        written = self._write(self._requester.store.add_request, self.match.job_id, index, prompt)
        spawn(self._follow(turn), self._tasks)
        try:
            if was is not None:
                await self._goes_on(index, was)
            await self._submit(index)
            await written
        except BaseException as error:
            if isinstance(error, HeadraceError):
                turn.state.fail(error)
            self.cancel(turn)
            await asyncio.gather(written, return_exceptions=True)
            raise
        return turn

    def cancel(self, turn: Turn) -> None:
        """End a request: the stages stop, what they did is paid, the session lives on.

        One that has no token yet ends with its first: what was read of its prompt is not for free.
        Stages that have not begun it say so.
        """
        if turn.state.tokens or turn.index not in self._submitted:
            turn.state.fail(Interrupted())
        elif not turn.is_unwanted and not turn.state.done.is_set():
            turn.is_unwanted = True
            spawn(self._push(wire.Cancel(self.order_hash, turn.index)), self._tasks)

    async def cancelled(self, turn: Turn) -> None:
        """Cancel, and wait until it is known what came."""
        self.cancel(turn)
        await turn.over.wait()

    def stop(self) -> None:
        """Cancel what runs."""
        for turn in self._turns.values():
            self.cancel(turn)

    def adopt(self, turn: Turn) -> None:
        """The stages need not keep this answer: it goes on elsewhere, or not at all."""
        self._orphans.discard(turn.index)
        if not self._orphans:
            self._adopted.set()

    async def _goes_on(self, index: int, was: tuple[str, int]) -> None:
        message = wire.GoesOn(self.order_hash, index, *was)
        answers = await asyncio.gather(*(self._ask(stage, message) for stage in self._channels))
        for stage, answer in zip(self._channels, answers, strict=True):
            if not isinstance(answer, wire.Submitted):
                raise refusal(stage, self.match.plan[stage], answer)

    async def _submit(self, index: int) -> None:
        try:
            await super()._submit(index)
        except PeerUnreachable as error:
            if UNPAID not in error.why or self.ack is None:
                raise
            # A stage that had to be called again did not hear our last Ack.
            await self._push(wire.Acknowledge(*self.ack))
            await super()._submit(index)

    def _ordered(self, index: int) -> tuple[Sequence[int], dict[str, Any]]:
        prompt, opening = self._turns[index].prompt, self._openings[index]
        how = {"salt": commit.to_hex(prompt.salt), "sampling": prompt.sampling}
        return prompt.ids, how | {"prompt_proof": [], "sampling_proof": [], "opening": opening}

    def _tell_turn(self, index: int, step: int, token: int) -> None:
        turn = self._turns[index]
        turn.tell(step, token)
        if turn.is_unwanted:
            turn.state.fail(Interrupted())

    async def _follow(self, turn: Turn) -> None:
        """From a request's last word to the acknowledgement that covers it."""
        await turn.state.done.wait()
        state, took = turn.state, (0, 0)
        if state.tokens and (state.is_trusted or not state.failure):
            took = (len(state.prompt_ids), len(state.tokens))
        turn.cost_units, turn.is_counted = self._count(took), True
        if any(took):
            await self._record(turn)
        self.use = budgets.end_request(self.use, turn.promised, took, self._chain_now())
        is_orphan = bool(state.failure and took[1] and self.use.life is Life.BROKEN)
        if is_orphan and not turn.is_whole:
            self._orphans.add(turn.index)
        if not self.use.running:
            self._busy.clear()
        turn.end()
        self._on_change()
        try:
            if self.use.life is not Life.BROKEN:
                await self._book(turn)
        except Exception:  # what the records do not hold is not acknowledged
            log.exception("a request is not acknowledged", request=turn.index)
        finally:
            if not self.use.running:
                self._quiet.set()

    async def _record(self, turn: Turn) -> None:
        """Write down what came and what it costs, before its reader is told: a crash loses none."""
        state, place = turn.state, (self.match.job_id, turn.index)
        receipts = list(state.receipts.values()) if state.failure is None else []
        ended = list(state.tokens), state.finish, receipts, turn.cost_units
        try:
            await self._write(self._requester.store.finish_request, *place, *ended)
        except Exception:  # what the records do not hold is not acknowledged
            log.exception("a request is not written down", request=turn.index)
        else:
            turn.is_recorded = True

    def _count(self, took: tuple[int, int]) -> int:
        """What these tokens add to what is paid, base units: the first ones pay the opening."""
        if not any(took):
            return 0
        before = self.due_units(*self._counted) if any(self._counted) else 0
        self._counted = (self._counted[0] + took[0], self._counted[1] + took[1])
        return self.due_units(*self._counted) - before

    def _owed(self) -> tuple[int, int]:
        running = [turn for turn in self._turns.values() if not turn.is_counted]
        begun = [turn.state for turn in running if turn.index in self._submitted]
        tokens_in = sum(len(state.prompt_ids) for state in begun)
        tokens_out = sum(len(state.tokens) for state in begun)
        return self._counted[0] + tokens_in, self._counted[1] + tokens_out

    def due_units(self, tokens_in: int, tokens_out: int) -> int:
        """What the requester pays for so many tokens in all, whole base units."""
        order, model = self.match.signed.order, self._requester.model
        split = pricing.split(order, self.match.plan, model, tokens_in, tokens_out)
        return whole_units(split.paid)

    # --- paying ---

    async def _book(self, turn: Turn) -> None:
        """Have a request signed for as far as it came, write it down, and acknowledge it."""
        state, job_id = turn.state, self.match.job_id
        async with self._booking:
            if turn.is_booked:
                return
            turn.is_booked = True
            store = self._requester.store
            if state.failure is not None:
                await self._stop(turn)
                if state.tokens and state.is_trusted:
                    await self._write(store.add_receipts, job_id, list(state.receipts.values()))
            if state.tokens and state.is_trusted and turn.is_recorded:
                self._leaves[turn.index] = state.answer.leaf(turn.index)
                await self._acknowledge()
            elif turn.is_recorded:  # its stages signed for something else: it is not paid
                await self._write(store.finish_request, job_id, turn.index, [], "", [], 0)
            self._turns.pop(turn.index, None)
            self._openings.pop(turn.index, None)
            self._submitted.discard(turn.index)
            self._requests.pop(turn.index, None)

    async def _stop(self, turn: Turn) -> None:
        """Stop a request at the stages that are left, which sign for the tokens that came."""
        if turn.state.tokens:
            await self._sign_parts([turn.index])
        else:
            await self._push(wire.Cancel(order_hash=self.order_hash, request=turn.index))

    async def _will_pay(self, tokens_in: int, tokens_out: int) -> None:
        # First of all written down: who settles the session after a crash pays no less.
        put = self._requester.store.put_paid
        await self._write(put, self.match.job_id, tokens_in, tokens_out)

    async def _acknowledge(self) -> None:
        self.ack = self._signed_ack()
        self._ack_changed.set()
        await self._push(wire.Acknowledge(*self.ack))

    def _signed_ack(self) -> tuple[Ack, str]:
        """What is due for everything that is written down; nothing at first."""
        leaves = [self._leaves[index] for index in sorted(self._leaves)]
        order, plan = self.match.signed.order, self.match.plan
        ack = at_least(ack_of_leaves(leaves, order, plan), self._paid)
        self._count_paid((ack.tokens_in, ack.tokens_out))
        return ack, signing.sign(self._requester.signer, self._identity.domain, ack)

    async def _tell_matcher(self) -> None:
        failures = 0
        while True:
            await self._ack_changed.wait()
            self._ack_changed.clear()
            try:
                await self._hand_in()
                failures = 0
            except HeadraceError as error:
                log.info("the matcher took no acknowledgement", why=str(error))
                failures += 1
                self._ack_changed.set()
            pause = pause_s(failures, FIRST_PAUSE_S)
            await self._requester.clock.sleep(max(ACK_EVERY_S, pause))

    async def _hand_in(self, *, closing: bool = False) -> None:
        # Of nothing, where nothing came: what the order locks comes back before its deadline.
        newest = self.ack or (self._signed_ack() if closing else None)
        if newest is None or (newest[0] == self._told and not closing):
            return
        (ack, signature), matcher = newest, self._requester.matcher
        await matcher.acknowledge(self.match, ack, signature, closing=closing)
        self._told = ack

    # --- the end ---

    def retire(self) -> None:
        """Take nothing new. Changes nothing where it has ended, as one that broke may have."""
        if self.use.life is not Life.ENDED:
            self.use = budgets.retire(self.use)

    async def end(self) -> bool:
        """Pay for what came and let the stages go. Whether the matcher took the last Ack.

        Requests that run are waited for; answers of a broken session have `TAKE_OVER_S` to go on.
        """
        self.use = budgets.retire(self.use)
        if self.use.life is Life.BROKEN and self._orphans:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TAKE_OVER_S):
                    await self._adopted.wait()
        await self._quiet.wait()
        for turn in list(self._turns.values()):
            await self._book(turn)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.use = budgets.end(self.use)
        await self._push(wire.EndJob(order_hash=self.order_hash))
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        is_told = await self._close_books()
        await self.close()
        return is_told

    async def _close_books(self) -> bool:
        """Send the last Ack to the matcher, and record what became of the session."""
        state, is_told = "unacknowledged", False
        for attempt in range(ACK_TRIES):
            try:
                await self._hand_in(closing=True)
                state, is_told = ("acknowledged" if any(self._paid) else "abandoned"), True
                break
            except HeadraceError as error:
                log.info("the session cannot be closed yet", why=str(error))
                if not error.retryable:
                    break
            await self._requester.clock.sleep(pause_s(attempt, FIRST_PAUSE_S))
        await self._write(self._requester.store.set_state, self.match.job_id, state)
        return is_told

    # --- losses ---

    def _break(self, error: HeadraceError) -> None:
        if self.use.life is not Life.ENDED:
            log.info("a session broke", job=self.match.job_id[:10], why=str(error))
            self.use = budgets.break_off(self.use)
        super()._break(error)
        self._on_change()

    # --- helpers ---

    def _write(self, call: Callable[..., None], *args: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._disk, call, *args)
