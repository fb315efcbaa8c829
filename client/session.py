"""Running one matched job over its stages' streams: submit, follow tokens, collect receipts, notice who fell silent.

The session holds no policy: what to do about a dead stage is decided in `client/jobs.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from client.orders import Batch
from client.verify import Answer, ShardRootOf, check_answers, check_pipeline
from core.protocol import commit, signing, wire
from core.protocol.errors import CheckFailed, HeadraceError, Interrupted, PeerUnreachable
from core.protocol.types import SignedOrder, SignedReceipt, Stage
from core.runtime.channel import Channel, Handler, StreamIdentity, connect

TokenSink = Callable[[int, int, int], None]  # request index, step, token id
CANCEL_TIMEOUT_S = 2.0


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
    silence_s: float = 20.0  # no token or receipt of any request for so long: somebody is gone


@dataclass
class RequestState:
    """One request on its way. `finish` is "" while tokens flow; `done` is set once nothing more can change."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    receipts: dict[int, SignedReceipt] = field(default_factory=dict)
    failure: HeadraceError | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answer(self) -> Answer:
        return Answer(self.prompt_ids, tuple(self.tokens))

    def fail(self, error: HeadraceError) -> None:
        """End it without an answer, unless it has ended already."""
        if not self.done.is_set():
            self.failure = error
            self.done.set()


FinishSink = Callable[[int, RequestState], None]  # request index, its checked answer


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
        on_finish: FinishSink,
        limits: Limits,
    ) -> None:
        """`on_token` sees each new token once and in order, `on_finish` each answer whose receipts hold."""
        self._match, self._batch, self._identity = match, batch, identity
        self._shard_root_of, self._limits = shard_root_of, limits
        self._on_token, self._on_finish = on_token, on_finish
        self._channels: dict[int, Channel] = {}
        self._requests = {
            i: RequestState(p.ids, p.sampling.max_new_tokens) for i, p in enumerate(batch.prompts)
        }
        self._submitted: set[int] = set()
        self._broken: HeadraceError | None = None
        self._progress = asyncio.Event()

    async def open(self) -> None:
        """Connect to every stage and announce ourselves. Raises PeerUnreachable, AuthenticationFailed or what a stage refused."""
        stages = range(len(self._match.plan))
        try:
            opened = await asyncio.gather(*map(self._open_stage, stages), return_exceptions=True)
            for result in opened:
                if result is not None:
                    raise result
        except BaseException:
            await self.close()
            raise

    async def run(self) -> Outcome:
        """Stream every request; return when each is finished or cannot finish here."""
        slots = asyncio.Semaphore(self._limits.in_flight)
        watch = [asyncio.create_task(self._watch_channel(c)) for c in self._channels.values()]
        watch.append(asyncio.create_task(self._watch_silence()))
        try:
            async with asyncio.TaskGroup() as group:
                for index in self._requests:
                    group.create_task(self._run_request(index, slots))
        finally:
            for task in watch:
                task.cancel()
            await asyncio.gather(*watch, return_exceptions=True)
        outcome = self.outcome()
        await self._cancel(self._submitted & outcome.unfinished.keys())
        return outcome

    async def close_job(self, indices: Sequence[int]) -> list[SignedReceipt]:
        """One receipt per stage over exactly these requests, checked. Raises CheckFailed or PeerUnreachable."""
        ask = wire.CloseJob(order_hash=self._match.order_hash, requests=sorted(indices))
        channels = [self._channels[stage] for stage in range(len(self._match.plan))]
        frames = await asyncio.gather(*(channel.call(ask) for channel in channels))
        receipts = [_receipt_in(frame.message) for frame in frames]
        self._check(receipts)
        check_answers(receipts, {i: self._requests[i].answer for i in indices})
        return receipts

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def _open_stage(self, stage: int) -> None:
        place, match = self._match.plan[stage], self._match
        channel = await connect(
            match.endpoints[stage],
            self._identity,
            expected=place.operator,
            handler=self._handler_of(stage),
            timeout_s=self._limits.connect_s,
        )
        self._channels[stage] = channel
        answer = await channel.call(
            wire.OpenJob(
                signed=match.signed,
                plan=list(match.plan),
                endpoints=list(match.endpoints),
                stage=stage,
            )
        )
        if not isinstance(answer.message, wire.JobOpened):
            raise _refusal(stage, place, answer.message)

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

    async def _cancel(self, indices: set[int]) -> None:
        """Tell the stages that are still there to forget these requests, so that their slots are free at once."""
        for channel in self._channels.values():
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    for index in sorted(indices):
                        await channel.send(
                            wire.Cancel(order_hash=self._match.order_hash, request=index)
                        )

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
        self._submitted.add(index)
        # The last stage first: it must know how to sample before the first activations reach it.
        for stage in dict.fromkeys((len(self._match.plan) - 1, 0)):
            answer = await self._channels[stage].call(message, payload)
            if not isinstance(answer.message, wire.Submitted):
                raise _refusal(stage, self._match.plan[stage], answer.message)

    def _handler_of(self, stage: int) -> Handler:
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
        request = self._running(message.order_hash, message.request)
        if request is None or request.finish or message.step != len(request.tokens):
            return
        request.tokens.append(message.token)
        request.finish = message.finish
        self._progress.set()
        self._on_token(message.request, message.step, message.token)
        if len(request.tokens) >= request.max_new_tokens and not request.finish:
            request.fail(
                CheckFailed("the last stage goes on", f"after {request.max_new_tokens} tokens")
            )

    def _take_receipt(self, stage: int, signed: SignedReceipt) -> None:
        if len(signed.leaves) != 1:
            return
        index = signed.leaves[0].request_index
        request = self._running(signed.receipt.order_hash, index)
        if request is None or stage in request.receipts:
            return
        request.receipts[stage] = signed
        self._progress.set()
        if len(request.receipts) == len(self._match.plan):
            self._judge(index, request)

    def _judge(self, index: int, request: RequestState) -> None:
        """All stages have signed for a request: it ends here, well or badly."""
        receipts = [request.receipts[stage] for stage in range(len(self._match.plan))]
        try:
            self._check(receipts)
            check_answers(receipts, {index: request.answer})
            _check_end(index, request)
        except CheckFailed as error:
            request.fail(error)
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
        request = self._running(message.order_hash, message.request)
        if request is not None:
            operator = self._match.plan[stage].operator
            request.fail(
                PeerUnreachable(
                    f"stage {stage} ({operator}) gave up request {message.request}",
                    f"{message.code}: {message.reason}",
                )
            )

    def _running(self, order_hash: str, index: int) -> RequestState | None:
        request = self._requests.get(index) if order_hash == self._match.order_hash else None
        return None if request is None or request.done.is_set() else request

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
            request.fail(error)

    def outcome(self) -> Outcome:
        """What is finished by now, and why the rest is not."""
        finished, unfinished = {}, {}
        for index, request in self._requests.items():
            if request.done.is_set() and request.failure is None:
                finished[index] = request
            else:
                unfinished[index] = request.failure or Interrupted()
        return Outcome(finished, unfinished)


def _check_end(index: int, request: RequestState) -> None:
    """Raise CheckFailed when an answer was signed for before it ended, or was cut short."""
    produced, most = len(request.tokens), request.max_new_tokens
    if not request.finish or (request.finish == "length" and produced != most):
        raise CheckFailed(
            f"the answer to request {index} is not whole",
            f"{produced} of at most {most} tokens, its end is said to be '{request.finish}'",
            state="nothing was acknowledged, so nothing is paid for it",
        )


def _receipt_in(message: wire.AnyMessage) -> SignedReceipt:
    if isinstance(message, wire.Receipt):
        return message.signed
    raise CheckFailed("a stage would not sign for the whole job", str(message)[:300])


def _refusal(stage: int, place: Stage, message: wire.AnyMessage) -> HeadraceError:
    why = f"{message.code}: {message.reason}" if isinstance(message, wire.Failed) else str(message)
    return PeerUnreachable(f"stage {stage} ({place.operator}) refused", why[:400])
