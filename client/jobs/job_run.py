"""How does one matched job of a batch run over its stages' streams?

It holds no policy: what to do about a dead stage is decided in `client/jobs/batch.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from client.orders.orders import Prompt, PromptBatch
from client.pipeline.pipeline import (
    FinishSink,
    Match,
    Pipeline,
    PipelineOutcome,
    PipelinePatience,
    RequestState,
    TokenSink,
)
from client.pipeline.streams import Streams
from client.pipeline.verify import RegisteredShards, check_answers, check_pipeline
from core.protocol import commit, wire
from core.protocol.errors import CheckFailed, HeadraceError
from core.protocol.types import Ack, SignedReceipt
from core.runtime.network.channel import StreamIdentity

if TYPE_CHECKING:
    from core.engine.sampling.stops import AnswerEnding


class JobRun(Pipeline):
    """Streams to every stage of one job whose prompts are known from the beginning."""

    def __init__(
        self,
        match: Match,
        batch: PromptBatch,
        identity: StreamIdentity,
        shards: RegisteredShards,
        *,
        on_token: TokenSink,
        on_finish: FinishSink,
        limits: PipelinePatience,
        streams: Streams | None = None,
        continues: wire.Continues | None = None,
        ending_of: Callable[[Prompt], AnswerEnding] | None = None,
        known: Mapping[int, RequestState] | None = None,
        paid: tuple[int, int] = (0, 0),
        will_pay: Callable[[int, int], None] = lambda tokens_in, tokens_out: None,
    ) -> None:
        """See `Pipeline`. `ending_of` decides where answers end; None: the last stage does.

        `known` are requests that an earlier run of the job has ended, and `paid` the tokens in and
        out that its newest Ack on the way counts; `will_pay` records those of the next one.
        """
        super().__init__(
            match,
            identity,
            shards,
            on_token=on_token,
            on_finish=on_finish,
            limits=limits,
            streams=streams,
            continues=continues,
        )
        self._batch, self._put_paid = batch, will_pay
        self._requests = {
            i: RequestState(p.ids, p.sampling.max_new_tokens, ending=ending_of and ending_of(p))
            for i, p in enumerate(batch.prompts)
        } | dict(known or {})
        self._known = frozenset(known or ())
        self._submitted |= self._known
        self._count_paid(paid)
        self._busy.set()
        #: All that run at once have their first token: an order before this one is not needed.
        self.begun = asyncio.Event()

    async def run(self) -> PipelineOutcome:
        """Stream every request; return when each is finished or cannot finish here."""
        slots = asyncio.Semaphore(self._limits.in_flight)
        watch = asyncio.create_task(self._watch_silence())
        try:
            async with asyncio.TaskGroup() as group:
                for index in self._requests:
                    group.create_task(self._run_request(index, slots))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        return self.outcome()

    async def catch_up(self) -> None:
        """Acknowledge what had come when an earlier run ended: its last Ack may not have left."""
        self._submitted |= {i for i, request in self._requests.items() if request.tokens}
        if any(self._owed()):
            await self._pay_on_the_way()

    def stopped(self) -> PipelineOutcome:
        """What an earlier run of the job had come to, nothing of which runs on."""
        self._submitted |= self._requests.keys()
        for index in self.outcome().finished.keys() - self._known:
            self._on_finish(index, self._requests[index])
        return self.outcome()

    async def close_job(self, indices: Sequence[int]) -> list[SignedReceipt]:
        """Each stage's checked receipt over these requests. Raises CheckFailed, PeerUnreachable."""
        ask = wire.CloseJob(order_hash=self._match.order_hash, requests=sorted(indices))
        stages = range(len(self._match.plan))
        answers = await asyncio.gather(*(self._ask(stage, ask) for stage in stages))
        receipts = [_receipt_in(answer) for answer in answers]
        check_pipeline(receipts, self._bought)
        check_answers(receipts, {i: self._requests[i].answer for i in indices})
        return receipts

    async def acknowledge(self, ack: Ack, signature: str) -> None:
        """Hand an acknowledgement to the stages: one that its matcher keeps back is theirs."""
        await self._push(wire.Acknowledge(ack, signature))

    async def _run_request(self, index: int, slots: asyncio.Semaphore) -> None:
        request = self._requests[index]
        if index in self._known:
            return
        async with slots:
            try:
                if self._broken is None and not request.done.is_set():
                    await self._submit(index)
                    await request.done.wait()
            except HeadraceError as error:
                request.fail(error)
        if self._broken is not None:
            request.fail(self._broken)
        if request.failure is None:
            self._on_finish(index, request)

    def _ordered(self, index: int) -> tuple[Sequence[int], dict[str, Any]]:
        prompt = self._batch.prompts[index]
        how = {"salt": commit.to_hex(prompt.salt), "sampling": prompt.sampling}
        return prompt.ids, how | vars(self._batch.opening(index))

    async def _will_pay(self, tokens_in: int, tokens_out: int) -> None:
        self._put_paid(tokens_in, tokens_out)

    def _has_begun(self) -> None:
        first = islice(self._requests.values(), self._limits.in_flight)
        if all(request.tokens or request.done.is_set() for request in first):
            self.begun.set()


def _receipt_in(message: wire.AnyMessage) -> SignedReceipt:
    if isinstance(message, wire.Receipt):
        return message.signed
    raise CheckFailed("a stage would not sign for the whole job", str(message)[:300])
