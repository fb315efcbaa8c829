"""Running one matched job over its stages' streams: submit, follow tokens, collect receipts, notice who fell silent.

The session holds no policy: what to do about a dead stage is decided in `client/jobs.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from client.orders import Batch
from client.verify import Answer, ShardRootOf, check_answers, check_pipeline
from core.protocol import commit, signing, wire
from core.protocol.errors import CheckFailed, HeadraceError, PeerUnreachable
from core.protocol.types import SignedOrder, SignedReceipt, Stage
from core.runtime.channel import Channel, StreamIdentity, connect

TokenSink = Callable[[int, int, int], None]  # request index, step, token id


@dataclass(frozen=True)
class Match:
    """A job as the matcher opened it on chain."""

    job_id: str
    signed: SignedOrder
    plan: tuple[Stage, ...]
    endpoints: tuple[str, ...]
    tx_hash: str

    @property
    def order_hash(self) -> str:
        return signing.order_hash(self.signed.order)

    @property
    def plan_hash(self) -> str:
        return signing.plan_hash(self.plan)


@dataclass(frozen=True)
class Limits:
    """How patient the session is."""

    in_flight: int = 8
    connect_s: float = 10.0
    silence_s: float = 20.0  # no token of any request for so long: somebody is gone
    receipts_s: float = 15.0  # from a request's last token to its last receipt


@dataclass
class RequestState:
    """One request on its way. `finish` is "" while tokens flow."""

    prompt_ids: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    receipts: dict[int, SignedReceipt] = field(default_factory=dict)
    failure: HeadraceError | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answer(self) -> Answer:
        return Answer(self.prompt_ids, tuple(self.tokens))


@dataclass(frozen=True)
class Outcome:
    """What came of a session: finished requests with checked receipts of every stage, and why the rest did not."""

    finished: dict[int, RequestState]
    unfinished: dict[int, HeadraceError]


class JobSession:
    """Streams to every stage of one job."""

    def __init__(
        self,
        match: Match,
        batch: Batch,
        identity: StreamIdentity,
        shard_root_of: ShardRootOf,
        *,
        on_token: TokenSink,
        limits: Limits,
    ) -> None:
        self._match, self._batch, self._identity = match, batch, identity
        self._shard_root_of, self._on_token, self._limits = shard_root_of, on_token, limits
        self._channels: list[Channel] = []
        self._requests = {i: RequestState(p.ids) for i, p in enumerate(batch.prompts)}
        self._broken: HeadraceError | None = None
        self._progress = asyncio.Event()

    async def open(self) -> None:
        """Connect to every stage and announce ourselves. Raises PeerUnreachable, AuthenticationFailed or what a stage refused."""
        opened = await asyncio.gather(
            *(self._open_stage(stage) for stage in range(len(self._match.plan))),
            return_exceptions=True,
        )
        self._channels = [c for c in opened if isinstance(c, Channel)]
        for result in opened:
            if isinstance(result, BaseException):
                await self.close()
                raise result

    async def run(self) -> Outcome:
        """Stream every request; return when each is finished or cannot finish here."""
        slots = asyncio.Semaphore(self._limits.in_flight)
        watch = [asyncio.create_task(self._watch_channel(c)) for c in self._channels]
        watch.append(asyncio.create_task(self._watch_silence()))
        try:
            await asyncio.gather(*(self._run_request(i, slots) for i in self._requests))
        finally:
            for task in watch:
                task.cancel()
            await asyncio.gather(*watch, return_exceptions=True)
        return self._outcome()

    async def close_job(self, indices: Sequence[int]) -> list[SignedReceipt]:
        """One receipt per stage over exactly these requests, checked. Raises CheckFailed or PeerUnreachable."""
        ask = wire.CloseJob(order_hash=self._match.order_hash, requests=sorted(indices))
        frames = await asyncio.gather(*(channel.call(ask) for channel in self._channels))
        receipts = [_receipt_in(frame.message) for frame in frames]
        self._check(receipts)
        check_answers(receipts, {i: self._requests[i].answer for i in indices})
        return receipts

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _open_stage(self, stage: int) -> Channel:
        place, match = self._match.plan[stage], self._match
        channel = await connect(
            match.endpoints[stage],
            self._identity,
            expected=place.operator,
            handler=self._handler_of(stage),
            timeout_s=self._limits.connect_s,
        )
        answer = await channel.call(
            wire.OpenJob(
                signed=match.signed,
                plan=list(match.plan),
                endpoints=list(match.endpoints),
                stage=stage,
            )
        )
        if not isinstance(answer.message, wire.JobOpened):
            await channel.close()
            raise _refusal(stage, place, answer.message)
        return channel

    async def _run_request(self, index: int, slots: asyncio.Semaphore) -> None:
        request = self._requests[index]
        async with slots:
            if self._broken is not None:
                request.failure = self._broken
                return
            try:
                await self._submit(index)
                await request.done.wait()
            except HeadraceError as error:
                request.failure = request.failure or error

    async def _submit(self, index: int) -> None:
        prompt, opening = self._batch.prompts[index], self._batch.opening(index)
        message = wire.Submit(
            order_hash=self._match.order_hash,
            request=index,
            salt=commit.to_hex(prompt.salt),
            prompt_proof=opening.prompt_proof,
            sampling=prompt.sampling,
            sampling_proof=opening.sampling_proof,
        )
        payload = commit.token_bytes(prompt.ids)
        # The last stage first: it must know how to sample before the first activations reach it.
        for stage in dict.fromkeys((len(self._channels) - 1, 0)):
            answer = await self._channels[stage].call(message, payload)
            if not isinstance(answer.message, wire.Submitted):
                raise _refusal(stage, self._match.plan[stage], answer.message)

    def _handler_of(self, stage: int):  # type: ignore[no-untyped-def]
        async def handle(channel: Channel, frame: wire.Frame) -> None:
            message = frame.message
            if isinstance(message, wire.Token) and stage == len(self._match.plan) - 1:
                self._take_token(message)
            elif isinstance(message, wire.Receipt):
                self._take_receipt(stage, message.signed)
            elif isinstance(message, wire.RequestFailed):
                self._take_failure(stage, message)

        return handle

    def _take_token(self, message: wire.Token) -> None:
        request = self._mine(message.order_hash, message.request)
        if request is None or request.finish or message.step != len(request.tokens):
            return
        request.tokens.append(message.token)
        request.finish = message.finish
        self._progress.set()
        self._on_token(message.request, message.step, message.token)

    def _take_receipt(self, stage: int, signed: SignedReceipt) -> None:
        if len(signed.leaves) != 1:
            return
        request = self._mine(signed.receipt.order_hash, signed.leaves[0].request_index)
        if request is None or stage in request.receipts:
            return
        request.receipts[stage] = signed
        self._progress.set()
        if len(request.receipts) == len(self._match.plan):
            self._judge(signed.leaves[0].request_index, request)

    def _judge(self, index: int, request: RequestState) -> None:
        receipts = [request.receipts[stage] for stage in range(len(self._match.plan))]
        try:
            self._check(receipts)
            check_answers(receipts, {index: request.answer})
        except CheckFailed as error:
            request.failure = error
        request.done.set()

    def _check(self, receipts: Sequence[SignedReceipt]) -> None:
        check_pipeline(
            receipts,
            domain=self._identity.domain,
            order=self._match.signed.order,
            plan=self._match.plan,
            shard_root_of=self._shard_root_of,
        )

    def _take_failure(self, stage: int, message: wire.RequestFailed) -> None:
        request = self._mine(message.order_hash, message.request)
        if request is None or request.done.is_set():
            return
        operator = self._match.plan[stage].operator
        request.failure = PeerUnreachable(
            f"stage {stage} ({operator}) gave up request {message.request}",
            f"{message.code}: {message.reason}",
        )
        request.done.set()

    def _mine(self, order_hash: str, index: int) -> RequestState | None:
        return self._requests.get(index) if order_hash == self._match.order_hash else None

    async def _watch_channel(self, channel: Channel) -> None:
        await channel.wait_closed()
        self._break(PeerUnreachable(f"stage operator {channel.peer}", "its stream ended"))

    async def _watch_silence(self) -> None:
        while True:
            self._progress.clear()
            try:
                async with asyncio.timeout(self._limits.silence_s):
                    await self._progress.wait()
            except TimeoutError:
                self._break(
                    PeerUnreachable(
                        "the pipeline", f"no token or receipt for {self._limits.silence_s:g} s"
                    )
                )
                return

    def _break(self, error: HeadraceError) -> None:
        self._broken = self._broken or error
        for request in self._requests.values():
            if not request.done.is_set():
                request.failure = request.failure or error
                request.done.set()

    def _outcome(self) -> Outcome:
        finished, unfinished = {}, {}
        for index, request in self._requests.items():
            if request.failure is not None:
                unfinished[index] = request.failure
            else:
                finished[index] = request
        return Outcome(finished, unfinished)


def _receipt_in(message: wire.AnyMessage) -> SignedReceipt:
    if isinstance(message, wire.Receipt):
        return message.signed
    raise CheckFailed("a stage would not sign for the whole job", str(message)[:300])


def _refusal(stage: int, place: Stage, message: wire.AnyMessage) -> HeadraceError:
    why = f"{message.code}: {message.reason}" if isinstance(message, wire.Failed) else str(message)
    return PeerUnreachable(f"stage {stage} ({place.operator}) refused", why[:400])
