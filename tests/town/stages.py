"""Three stages of one job that play a script over real streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from client.pipeline.verify import RequestAnswer
from core.protocol import signing, wire
from core.protocol import types as t
from core.runtime.network.channel import Channel, Listener, StreamIdentity
from tests.town.orders import (
    DOMAIN,
    SPANS,
    answer_of,
    key,
    leaves_of,
    sign_receipt,
    signed_order,
)

Script = Callable[["Stages", int], Awaitable[None]]


class Operators:
    """The operators of a plan's stages, which listen on loopback."""

    def __init__(self, spans: Sequence[tuple[int, int]] = SPANS, first_key: int = 100) -> None:
        self.operators = [key(first_key + i) for i in range(len(spans))]
        self.plan = tuple(
            t.Stage(o.address, a, b) for o, (a, b) in zip(self.operators, spans, strict=True)
        )
        self._listeners: list[Listener] = []

    async def start(self) -> Self:
        for stage, operator in enumerate(self.operators):
            listener = Listener(StreamIdentity(operator, DOMAIN), self._handler_of(stage))
            await listener.start("127.0.0.1", 0)
            self._listeners.append(listener)
        return self

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{listener.port}" for listener in self._listeners)

    def _handler_of(self, stage: int) -> Any:
        raise NotImplementedError


class Stages(Operators):
    """Three operators that play the stages of one job after another over real streams.

    `script` is run for each submitted request; `refuse` answers OpenJob of a stage with a failure.
    """

    def __init__(self, first_key: int = 100) -> None:
        super().__init__(first_key=first_key)
        self.script: Script = serve
        self.refuse: dict[int, wire.Failed] = {}
        self.refuse_submit: set[int] = set()
        self.credit = 0
        self.batch: PromptBatch | None = None
        self.heard: list[tuple[int, wire.AnyMessage]] = []
        self.channels: dict[int, Channel] = {}
        self.running = 0
        self.most_running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().close()

    def match(self, batch: PromptBatch, signed: t.SignedOrder | None = None) -> Match:
        self.batch, self.signed = batch, signed or signed_order(batch)
        job_id = signing.job_id(DOMAIN, self.signed.order)
        return Match(job_id, self.signed, self.plan, self.endpoints, "0x" + "00" * 32)

    @property
    def order_hash(self) -> str:
        return signing.order_hash(self.signed.order)

    def answer(self, index: int) -> RequestAnswer:
        assert self.batch is not None
        return answer_of(self.batch.prompts[index])

    def receipt(
        self, stage: int, answers: dict[int, RequestAnswer], /, **changes: Any
    ) -> t.SignedReceipt:
        leaves = leaves_of(answers, stage, len(self.plan))
        operator, order = self.operators[stage], self.signed.order
        return sign_receipt(operator, order, self.plan, stage, leaves, **changes)

    async def token(self, index: int, step: int, token: int, finish: wire.Finish = "") -> None:
        await self.send(2, wire.Token(self.order_hash, index, step, token, finish))

    async def tokens(self, index: int, count: int | None = None) -> None:
        """Send the first tokens of an answer, or all of them with its end."""
        produced = self.answer(index).tokens
        for step, token in enumerate(produced[:count]):
            last = step == len(produced) - 1
            await self.token(index, step, token, "length" if last else "")

    async def receipts(self, index: int) -> None:
        for stage in range(len(self.plan)):
            await self.send(stage, wire.Receipt(self.receipt(stage, {index: self.answer(index)})))

    async def send(self, stage: int, message: wire.AnyMessage) -> None:
        await self.channels[stage].send(message)

    async def die(self, stage: int) -> None:
        """End the client's stream and take no new one."""
        await self._listeners[stage].close()

    def _handler_of(self, stage: int) -> Any:
        async def handle(channel: Channel, frame: wire.Frame) -> Any:
            message = frame.message
            if not isinstance(message, wire.Ping):
                self.heard.append((stage, message))
            match message:
                case wire.OpenJob():
                    if stage in self.refuse:
                        return self.refuse[stage]
                    self.channels[stage] = channel
                    return wire.JobOpened(credit=self.credit)
                case wire.Submit() if message.request in self.refuse_submit:
                    return wire.Failed("E-JOB-FULL", "no room")
                case wire.Submit():
                    if stage == 0:
                        self._begin(message.request)
                    return wire.Submitted()
                case wire.Ping():
                    return wire.Pong()
                case wire.Cut():
                    whole = self.answer(message.request)
                    part = replace(whole, tokens=whole.tokens[: message.tokens_out])
                    return wire.Receipt(self.receipt(stage, {message.request: part}))
                case wire.CloseJob():
                    answers = {i: self.answer(i) for i in message.requests}
                    return wire.Receipt(self.receipt(stage, answers))
            return None

        return handle

    def _begin(self, index: int) -> None:
        async def play() -> None:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await self.script(self, index)
            finally:
                self.running -= 1

        task = asyncio.create_task(play())
        self._tasks.add(task)


async def serve(stages: Stages, index: int) -> None:
    """Honest work."""
    await stages.tokens(index)
    await stages.receipts(index)
