"""How does one matched job of a batch run over its stages' streams?

It holds no policy: what to do about a dead stage is decided in `client/jobs/batch.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
from client.pipeline.verify import ShardRootOf, check_answers, check_pipeline
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
        shard_root_of: ShardRootOf,
        *,
        on_token: TokenSink,
        on_finish: FinishSink,
        limits: PipelinePatience,
        streams: Streams | None = None,
        continues: wire.Continues | None = None,
        ending_of: Callable[[Prompt], AnswerEnding] | None = None,
    ) -> None:
        """See `Pipeline`. `ending_of` decides where answers end; None: the last stage does."""
        super().__init__(
            match,
            identity,
            shard_root_of,
            on_token=on_token,
            on_finish=on_finish,
            limits=limits,
            streams=streams,
            continues=continues,
        )
        self._batch = batch
        self._requests = {
            i: RequestState(p.ids, p.sampling.max_new_tokens, ending=ending_of and ending_of(p))
            for i, p in enumerate(batch.prompts)
        }
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
        async with slots:
            try:
                if self._broken is None:
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

    def _has_begun(self) -> None:
        first = islice(self._requests.values(), self._limits.in_flight)
        if all(request.tokens or request.done.is_set() for request in first):
            self.begun.set()


def _receipt_in(message: wire.AnyMessage) -> SignedReceipt:
    if isinstance(message, wire.Receipt):
        return message.signed
    raise CheckFailed("a stage would not sign for the whole job", str(message)[:300])
