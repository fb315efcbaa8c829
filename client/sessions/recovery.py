"""What becomes of the sessions of a program that died? They are paid as far as they came.

Their stages say what had come of requests that ran. An Ack is cumulative, so sending it again pays
nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from client.orders.shard_roots import registered_shards
from client.pipeline.on_chain import is_nonce_used, job_with_plan
from client.pipeline.pipeline import (
    Match,
    Pipeline,
    PipelineOutcome,
    PipelinePatience,
    RequestState,
)
from client.pipeline.streams import Streams
from client.pipeline.verify import (
    RegisteredShards,
    RequestAnswer,
    ack_of_answers,
    at_least,
    states_of,
)
from client.records.store import (
    ClientStore,
    JobRow,
    RequestRow,
    SentOrderRow,
    match_of,
    prompt_of,
    signed_of,
    tokens_of,
)
from core.money import pricing
from core.protocol import signing, wire
from core.protocol.errors import HeadraceError
from core.protocol.types import ZERO_HASH, JobState, ModelSpec, SignedOrder
from core.protocol.units import whole_units
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.orders.matchers import Matchers
    from client.records.keeper import Keeper
    from core.chain.chain import Chain
    from core.protocol.signing import DigestSigner
    from core.runtime.clock import Clock

#: For stages to end what ran when its program died.
ENDED_WITHIN_S = 5.0
Row = TypeVar("Row", SentOrderRow, JobRow)
log = get_logger(__name__)


@dataclass(frozen=True)
class Recovery:
    """Settles what dead programs left of the sessions of one key."""

    store: ClientStore
    keeper: Keeper
    chain: Chain
    matcher: Matchers
    signer: DigestSigner
    clock: Clock
    streams: Streams
    limits: PipelinePatience

    async def settle(self) -> int:
        """Acknowledge what every session of a dead program gave, and end it; how many are left.

        Those of other keys are left alone and not counted. Those that the matcher does not take
        now, and orders that may still be opened, are for the next time.
        """
        orders = [row for row in self.store.orders() if row.is_session]
        orders = [r for r in orders if self._is_left(r.submission) and self._is_ours(signed_of(r))]
        left = [row for row in orders if not await self._try(self._find, row)]
        sessions = [
            row
            for row, name in self.store.unsettled_sessions()
            if self._is_left(name, row.state) and self._is_ours(match_of(row).signed)
        ]
        settled = await asyncio.gather(*(self._try(self._settle, row) for row in sessions))
        return len(left) + settled.count(False)

    def _is_left(self, keeper: str, state: str = "") -> bool:
        """Whether the program that kept it is dead, or is ours and could not settle it."""
        is_ours = keeper == self.keeper.name and state == "unacknowledged"
        return is_ours or not self.keeper.is_alive(keeper)

    def _is_ours(self, signed: SignedOrder) -> bool:
        signed_by = signing.recover(self.chain.domain, signed.order, signed.signature)
        return self.signer.address in (signed.order.requester, signed_by)

    async def _try(self, settle: Callable[[Row], Awaitable[bool]], row: Row) -> bool:
        try:
            return await settle(row)
        except HeadraceError as error:
            log.info("a session stays open", job=row.job_id[:10], why=str(error))
            return False

    async def _find(self, row: SentOrderRow) -> bool:
        """The session that an order was opened as, if it was; False: it may still be opened."""
        signed = signed_of(row)
        if await self.chain.now() > signed.order.deadline:  # what it locked returns
            self.store.forget_order(row.job_id)
            return True
        if not await is_nonce_used(self.chain, signed.order):
            return False
        match = await self.matcher.open_job(signed, self.chain.domain)
        self.store.add_session(row.submission, match, int(self.clock.now()))
        return True

    async def _settle(self, row: JobRow) -> bool:
        match, job_id, store = match_of(row), row.job_id, self.store
        store.adopt_session(job_id, self.keeper.name)
        store.set_state(job_id, "unacknowledged")
        found = await job_with_plan(self.chain, match)
        is_over = found.state > JobState.MATCHED
        begun = [request for request in store.requests(job_id) if request.tokens == "[]"]
        if begun and not is_over:
            await self._learn(match, begun)
        order, answers = match.signed.order, delivered(store, job_id)
        # Of nothing, where nothing came: what the order locks comes back.
        ack = at_least(ack_of_answers(answers, order, match.plan), store.paid(job_id))
        counts = ack.tokens_in, ack.tokens_out
        if is_over:  # its stages brought the newest Ack that they had
            counts = found.said["tokensIn"], found.said["tokensOut"]
        model = await self.chain.read("ModelRegistry", "specOf", order.model_id)
        unknown = [request.request_index for request in begun]
        charges = store.charges(job_id)
        of_job = match, msgspec.convert(model, ModelSpec), counts
        store.put_charges(job_id, charges_left(*of_job, answers, unknown, charges))
        if not is_over:
            signature = signing.sign(self.signer, self.chain.domain, ack)
            await self.matcher.acknowledge(match, ack, signature, closing=True)
        store.set_state(job_id, "acknowledged" if any(counts) else "abandoned")
        log.info("an earlier session is settled", job=job_id[:10], requests=len(answers))
        return True

    async def _learn(self, match: Match, rows: list[RequestRow]) -> None:
        """Write down what came of requests that ran when their program died."""
        states = {row.request_index: _state_of(row) for row in rows}
        try:
            shards = await registered_shards(self.chain, match.signed.order, match.plan)
            left = _LeftSession(match, self.streams, shards, self.limits, states)
            outcome = await left.ended()
        except HeadraceError as error:
            log.info("not all stages of a session are there", job=match.job_id[:10], why=str(error))
            return
        for index, state in (outcome.finished | outcome.begun).items():
            receipts = list(state.receipts.values())
            self.store.finish_request(match.job_id, index, state.tokens, state.finish, receipts)


class _LeftSession(Pipeline):
    """A session that its program left: its stages end what still ran, and say what came of it."""

    def __init__(
        self,
        match: Match,
        streams: Streams,
        shards: RegisteredShards,
        limits: PipelinePatience,
        requests: dict[int, RequestState],
    ) -> None:
        super().__init__(
            match,
            streams.identity,
            shards,
            on_token=lambda index, step, token: None,
            on_finish=lambda index, state: None,
            limits=limits,
            streams=streams,
        )
        self._requests = requests
        self._submitted |= requests.keys()

    async def ended(self) -> PipelineOutcome:
        """What its requests have come to. Raises PeerUnreachable, AuthenticationFailed."""
        await self.open(needs_all=False)
        try:
            order_hash, running = self._match.order_hash, self.outcome().unfinished
            if not self.is_broken:  # else the stages that are left sign for what they have
                await self._push(*(wire.Cancel(order_hash, index) for index in sorted(running)))
                with suppress(TimeoutError):
                    async with asyncio.timeout(ENDED_WITHIN_S):
                        for index in running:
                            await self._requests[index].done.wait()
            await self.cut()
            await self._push(wire.EndJob(order_hash))
            return self.outcome()
        finally:
            await self.close()


def _state_of(row: RequestRow) -> RequestState:
    asked = prompt_of(row)
    return RequestState(asked.ids, asked.sampling.max_new_tokens)


def delivered(store: ClientStore, job_id: str) -> dict[int, RequestAnswer]:
    """What a session's stages gave, as far as it is in the records: that alone was acknowledged."""
    answers = {}
    states = states_of(signed for _, signed in store.receipts(job_id))
    for request in store.requests(job_id):
        if tokens := tokens_of(request):
            root = states.get(request.request_index, ZERO_HASH)
            answer = RequestAnswer(prompt_of(request).ids, tokens, root)
            answers[request.request_index] = answer
    return answers


def charges_left(
    match: Match,
    model: ModelSpec,
    paid: tuple[int, int],
    answers: dict[int, RequestAnswer],
    begun: list[int],
    charges: dict[int, int],
) -> dict[int, int]:
    """What requests without a charge are charged, so that all charges are what the job pays.

    `paid` are tokens in and out. What an Ack on the way paid beyond the answers is of the newest
    request that had `begun`. Of a session that gave nothing nobody is charged.
    """

    def due_units(tokens_in: int, tokens_out: int) -> int:
        if not (tokens_in or tokens_out):
            return 0
        split = pricing.split(match.signed.order, match.plan, model, tokens_in, tokens_out)
        return whole_units(split.paid)

    counted = [answer for index, answer in answers.items() if index in charges]
    tokens_in = sum(len(answer.prompt_ids) for answer in counted)
    tokens_out = sum(len(answer.tokens) for answer in counted)
    found, before = dict[int, int](), due_units(tokens_in, tokens_out)
    for index, answer in sorted(answers.items()):
        if index not in charges:
            tokens_in += len(answer.prompt_ids)
            tokens_out += len(answer.tokens)
            after = due_units(tokens_in, tokens_out)
            found[index], before = after - before, after
    rest = due_units(*paid) - sum(charges.values()) - sum(found.values())
    last = max(found.keys() | set(begun), default=None)
    if rest > 0 and last is not None:
        found[last] = found.get(last, 0) + rest
    return found
