"""What do a requester and the stages of one matched job say: open, submit, tokens, receipts, cut?

A batch's job (`client/jobs/job_run.py`) and a session (`client/sessions/session.py`) are built on
it and decide what to do about a dead stage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client.pipeline.streams import Streams
from client.pipeline.verify import (
    Bought,
    RegisteredShards,
    RequestAnswer,
    check_answers,
    check_part,
    check_pipeline,
    states_of,
)
from core.money.pricing import LEAST_CREDIT_ROWS
from core.protocol import commit, signing, wire
from core.protocol.errors import (
    CheckFailed,
    HeadraceError,
    Interrupted,
    MalformedMessage,
    PeerUnreachable,
)
from core.protocol.types import ZERO_HASH, Ack, SignedOrder, SignedReceipt, Stage
from core.runtime import origin
from core.runtime.logs import get_logger
from core.runtime.network.channel import Channel, StreamIdentity
from core.runtime.network.pulse import Beat
from core.runtime.tasks import spawn

if TYPE_CHECKING:
    from core.engine.sampling.stops import AnswerEnding

log = get_logger(__name__)
TokenSink = Callable[[int, int, int], None]  # request index, step, token id
ANSWER_TIMEOUT_S = 15.0
PUSH_TIMEOUT_S = 2.0
CUT_TIMEOUT_S = 5.0


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
class PipelinePatience:
    """How long a pipeline waits, in seconds, how many requests it has at once, and whether it dials
    private addresses (None: on a development chain).
    """

    in_flight: int = 8
    connect_s: float = 10.0
    silence_s: float = 20.0  # without a token or receipt of any request, it is broken
    beat: Beat = field(default_factory=Beat)
    private_addresses: bool | None = None


@dataclass(frozen=True)
class Logprobs:
    """What the last stage told of one token, unsigned: natural logarithms, likeliest ids first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class RequestState:
    """One request on its way. `finish` is "" while tokens come; `done` is set at its end."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs | None] = field(default_factory=list)  # one for each token
    finish: str = ""
    ending: AnswerEnding | None = None  # where it ends by our own count
    receipts: dict[int, SignedReceipt] = field(default_factory=dict)
    failure: HeadraceError | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answer(self) -> RequestAnswer:
        states = states_of(self.receipts.values())  # of this request alone
        return RequestAnswer(self.prompt_ids, tuple(self.tokens), *states.values())

    @property
    def is_done(self) -> bool:
        """Whether it ended with the receipts of all stages."""
        return self.done.is_set() and self.failure is None

    @property
    def is_trusted(self) -> bool:
        """Whether an answer may go on from its tokens: no stage was caught lying about it."""
        return not isinstance(self.failure, CheckFailed)

    def fail(self, error: HeadraceError) -> None:
        """End it without an answer, unless it has ended already."""
        if not self.done.is_set():
            self.failure = error
            self.done.set()


FinishSink = Callable[[int, RequestState], None]  # request index, its checked answer


@dataclass(frozen=True)
class PipelineOutcome:
    """What came of a job: requests with checked receipts of every stage, and why the rest has none.

    `begun` are those of the rest that have tokens to go on from, `lost` operators that fell silent.
    """

    finished: dict[int, RequestState]
    unfinished: dict[int, HeadraceError]
    begun: dict[int, RequestState] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    was_opened: bool = True  # at every stage


class Pipeline:
    """Streams to every stage of one job."""

    def __init__(
        self,
        match: Match,
        identity: StreamIdentity,
        shards: RegisteredShards,
        *,
        on_token: TokenSink,
        on_finish: FinishSink,
        limits: PipelinePatience,
        streams: Streams | None = None,
        continues: wire.Continues | None = None,
    ) -> None:
        """`on_token` sees each new token once and in order, `on_finish` each answer that is signed.

        `streams` are shared with other jobs and stay open. `continues` tells stages which requests
        of another order these go on with.
        """
        self._match, self._identity, self._limits = match, identity, limits
        self._bought = Bought(identity.domain, match.signed.order, match.plan, shards)
        self._on_token, self._on_finish = on_token, on_finish
        self._shares_streams = streams is not None
        self._streams = streams or Streams(identity, connect_s=limits.connect_s, beat=limits.beat)
        self._continues = continues
        self._stage_of = {place.operator: i for i, place in enumerate(match.plan)}
        self._lost: set[str] = set()
        self._channels: dict[int, Channel] = {}
        self._requests: dict[int, RequestState] = {}
        self._submitted: set[int] = set()
        self._broken: HeadraceError | None = None
        self._credits: dict[int, int] = {}  # rows, by stage that does so many before it is paid
        self._paid = (0, 0)  # tokens in and out that the stages' newest Ack counts
        self._on_credit = 0  # rows at most that came or were ordered since
        self._busy = asyncio.Event()  # requests run
        self._progress = asyncio.Event()
        self._moved = asyncio.Event()  # a stage has another stream, or is lost
        self._background: set[asyncio.Task[Any]] = set()

    async def open(self, *, needs_all: bool = True) -> None:
        """Open the job at every stage. Raises PeerUnreachable or AuthenticationFailed.

        Unless it `needs_all`, one stage is enough to hear what had come, and nothing runs on.
        """
        stages = range(len(self._match.plan))
        self._streams.listen(self._match.order_hash, self)
        try:
            opened = await asyncio.gather(*map(self._open_stage, stages), return_exceptions=True)
            failures = [result for result in opened if result is not None]
            if failures and (needs_all or len(failures) == len(stages)):
                raise failures[0]
        except BaseException:
            await self.close()
            raise
        if failures:
            self._break(PeerUnreachable("the pipeline", str(failures[0])))

    async def cut(self) -> dict[int, dict[int, SignedReceipt]]:
        """What the remaining stages sign for answers that broke off: by request and stage, checked.

        An answer for which a stage signs what is not so is not trusted any more, and left out.
        """
        self._break(Interrupted())  # stages sign for what is here now, not for what still comes
        begun = self.outcome().begun
        await self._sign_parts(begun)
        return {i: request.receipts for i, request in begun.items() if request.is_trusted}

    async def _sign_parts(self, indices: Iterable[int]) -> None:
        """Have the remaining stages sign for broken-off requests, for just the tokens here."""
        found = {
            index: {
                stage: signed
                for stage, signed in self._requests[index].receipts.items()
                # Others are over more tokens than reached us.
                if signed.receipt.tokens_out == len(self._requests[index].tokens)
            }
            for index in indices
        }
        asked = [(i, stage) for i in found for stage in self._remaining if stage not in found[i]]
        signed = await asyncio.gather(*(self._cut_at(index, stage) for index, stage in asked))
        for (index, stage), receipt in zip(asked, signed, strict=True):
            if receipt is not None:
                found[index][stage] = receipt
        for index, receipts in found.items():
            request = self._requests[index]
            try:
                check_part(receipts, self._bought, index, request.answer)
            except CheckFailed as error:
                log.warning("a stage signed something else", request=index, reason=str(error))
                request.failure = error
            else:
                request.receipts = receipts

    async def let_go(self) -> None:
        """Tell the stages that remain to forget what is not finished: their slots are free then."""
        unfinished = self._submitted & self.outcome().unfinished.keys()
        await self._push(*(wire.Cancel(self._match.order_hash, i) for i in sorted(unfinished)))

    async def close(self) -> None:
        """Hear nothing more. Streams that others share stay open."""
        self._streams.forget(self._match.order_hash)
        for task in self._background:
            task.cancel()
        if not self._shares_streams:
            await self._streams.close()

    def hear(self, operator: str, message: wire.AnyMessage) -> None:
        """A stage says something about this job."""
        stage = self._stage_of.get(operator)
        if stage is None:
            return
        if isinstance(message, wire.Token) and stage == len(self._match.plan) - 1:
            self._take_token(message)
        elif isinstance(message, wire.Receipt):
            self._take_receipt(stage, message.signed)
        elif isinstance(message, wire.RequestFailed):
            self._take_failure(stage, message)
        elif isinstance(message, wire.Waiting):
            self._progress.set()

    def lose(self, operator: str, error: HeadraceError) -> None:
        """A stage fell silent: nothing of this job can go on without it."""
        if operator in self._stage_of:
            self._lost.add(operator)
            self._moved.set()
            self._break(error)

    def regain(self, operator: str, channel: Channel) -> None:
        """A stage has another stream: opened again, it repeats what we may have missed."""
        stage = self._stage_of.get(operator)
        if stage is not None and stage in self._channels:
            spawn(self._open_again(stage, channel), self._background)

    @property
    def is_broken(self) -> bool:
        """Whether a stage is lost, and nothing of the job goes on."""
        return self._broken is not None

    @property
    def _remaining(self) -> list[int]:
        """Stages with an open stream that are not lost."""
        return [
            stage
            for stage, channel in sorted(self._channels.items())
            if channel.is_open and self._match.plan[stage].operator not in self._lost
        ]

    async def _open_stage(self, stage: int) -> None:
        place, match = self._match.plan[stage], self._match
        try:
            channel = await self._streams.to(place, match.endpoints[stage])
            self._channels[stage] = channel
            answer = await channel.call(self._opening_of(stage))
        except PeerUnreachable:
            self._lost.add(place.operator)
            raise
        if not isinstance(answer.message, wire.JobOpened):
            raise refusal(stage, place, answer.message)
        if answer.message.credit:
            # Who gives less than anybody must is not paid ahead for it.
            self._credits[stage] = max(answer.message.credit, LEAST_CREDIT_ROWS)

    def _opening_of(self, stage: int) -> wire.OpenJob:
        match = self._match
        return wire.OpenJob(
            signed=match.signed,
            plan=list(match.plan),
            endpoints=list(match.endpoints),
            stage=stage,
            continues=self._continues,
            known=[i for i, request in self._requests.items() if request.is_done],
        )

    async def _open_again(self, stage: int, channel: Channel) -> None:
        place = self._match.plan[stage]
        try:
            answer = (await channel.call(self._opening_of(stage))).message
        except PeerUnreachable as error:
            if channel.is_open:  # else `Streams` watches it
                self.lose(place.operator, error)
            return
        if isinstance(answer, wire.JobOpened) and answer.again:
            self._channels[stage] = channel
            self._moved.set()
        else:  # another process, which knows nothing of what this one did
            self.lose(place.operator, refusal(stage, place, answer))

    async def _ask(
        self,
        stage: int,
        message: wire.AnyMessage,
        payload: bytes = b"",
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> wire.AnyMessage:
        """A stage's answer, over its next stream if this one ends first. Raises PeerUnreachable."""
        place = self._match.plan[stage]
        while True:
            channel = self._channels[stage]
            try:
                return (await channel.call(message, payload, timeout_s=timeout_s)).message
            except PeerUnreachable as error:
                if channel.is_open:
                    raise
                try:
                    async with asyncio.timeout(timeout_s):
                        while self._channels[stage] is channel and place.operator not in self._lost:
                            self._moved.clear()
                            await self._moved.wait()
                except TimeoutError:
                    raise error from None
                if self._channels[stage] is channel:
                    raise

    async def _cut_at(self, index: int, stage: int) -> SignedReceipt | None:
        request = self._requests[index]
        ask = wire.Cut(
            order_hash=self._match.order_hash,
            request=index,
            tokens_in=len(request.prompt_ids),
            tokens_out=len(request.tokens),
        )
        try:
            answer = await self._ask(stage, ask, timeout_s=CUT_TIMEOUT_S)
        except PeerUnreachable:
            return None
        if isinstance(answer, wire.Receipt):
            return answer.signed
        log.info("a stage does not sign for a part", stage=stage, request=index, answer=str(answer))
        return None

    def _ordered(self, index: int) -> tuple[Sequence[int], dict[str, Any]]:
        """A request's prompt ids, and the fields of `wire.Submit` that prove them ordered."""
        raise NotImplementedError

    def _has_begun(self) -> None:
        """A request has its first token."""

    async def _submit(self, index: int) -> None:
        prompt_ids, proof = self._ordered(index)
        order_hash, payload = self._match.order_hash, commit.token_bytes(prompt_ids)
        message = wire.Submit(
            order_hash=order_hash, request=index, origin=origin.current(), **proof
        )
        self._submitted.add(index)
        self._on_credit += len(prompt_ids)
        if self._is_credit_short:
            await self._pay_on_the_way()
        # The last stage first: it must know how to sample before the first activations reach it.
        for stage in dict.fromkeys((len(self._match.plan) - 1, 0)):
            answer = await self._ask(stage, message, payload)
            if not isinstance(answer, wire.Submitted):
                raise refusal(stage, self._match.plan[stage], answer)

    def _take_token(self, message: wire.Token) -> None:
        request = self._running(message.order_hash, message.request)
        if request is None or request.finish or message.step != len(request.tokens):
            return
        try:
            due = message.finish if request.ending is None else request.ending.push(message.token)
        except CheckFailed as error:  # nothing of it is passed on, or paid
            request.fail(error)
            return
        request.tokens.append(message.token)
        request.logprobs.append(
            None if message.logprob is None else Logprobs(message.logprob, message.top)
        )
        request.finish = message.finish
        self._progress.set()
        self._on_token(message.request, message.step, message.token)
        if message.step == 0:
            self._has_begun()
        self._on_credit += 1
        if self._is_credit_short:
            spawn(self._pay_on_the_way(), self._background)
        if len(request.tokens) >= request.max_new_tokens and not request.finish:
            most = f"after {request.max_new_tokens} tokens"
            request.fail(CheckFailed("the last stage goes on", most))
        if request.finish == "cancelled":
            # Nobody asked for it here: what came is paid, and the answer goes on elsewhere.
            request.finish = ""
            request.fail(PeerUnreachable("the pipeline", "it ended a request before its end"))
        elif due != request.finish:
            end = (
                f"token {message.step} is said to end it by '{request.finish}', it does by '{due}'"
            )
            request.fail(CheckFailed("the last stage ends the answer in the wrong place", end))

    def _owed(self) -> tuple[int, int]:
        """Tokens in and out that came, with the prompts that stages have."""
        begun = [self._requests[index] for index in self._submitted]
        due = [one for one in begun if one.tokens or not one.done.is_set()]
        return sum(len(one.prompt_ids) for one in due), sum(len(one.tokens) for one in due)

    @property
    def _is_credit_short(self) -> bool:
        """Whether half of what the stages do on credit is left for what is under way, or less."""
        return bool(self._credits) and self._on_credit > min(self._credits.values()) // 2

    def _count_paid(self, paid: tuple[int, int]) -> None:
        self._paid, self._on_credit = paid, max(0, sum(self._owed()) - sum(paid))

    async def _pay_on_the_way(self) -> None:
        """Acknowledge what came, with the prompts under way: `docs/protocol.md` §9."""
        owed = self._owed()
        paid = max(owed[0], self._paid[0]), max(owed[1], self._paid[1])
        self._count_paid(paid)
        await self._will_pay(*paid)
        ack = Ack(self._match.order_hash, self._match.plan_hash, ZERO_HASH, *paid)
        signature = signing.sign(self._identity.signer, self._identity.domain, ack)
        await self._push(wire.Acknowledge(ack, signature))

    async def _will_pay(self, tokens_in: int, tokens_out: int) -> None:
        """An acknowledgement on the way is about to be signed."""

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
            check_pipeline(receipts, self._bought)
            check_answers(receipts, {index: request.answer})
            _check_end(index, request)
        except CheckFailed as error:
            request.fail(error)
        request.done.set()

    def _take_failure(self, stage: int, message: wire.RequestFailed) -> None:
        request = self._running(message.order_hash, message.request)
        if request is None:
            return
        operator, why = self._match.plan[stage].operator, f"{message.code}: {message.reason}"
        what = f"stage {stage} ({operator}) gave up request {message.request}"
        if message.code in _DISTRUSTED:
            request.fail(CheckFailed(what, why))
        elif message.lost is not None and message.lost in self._stage_of:
            self.lose(message.lost, PeerUnreachable(what, why))
        else:
            request.fail(PeerUnreachable(what, why))

    def _running(self, order_hash: str, index: int) -> RequestState | None:
        request = self._requests.get(index) if order_hash == self._match.order_hash else None
        return None if request is None or request.done.is_set() else request

    async def _watch_silence(self) -> None:
        """While requests run, a stage must say something now and then."""
        while True:
            await self._busy.wait()
            self._progress.clear()
            try:
                async with asyncio.timeout(self._limits.silence_s):
                    await self._progress.wait()
            except TimeoutError:
                if self._busy.is_set():
                    silence = f"no token or receipt for {self._limits.silence_s:g} s"
                    self._break(PeerUnreachable("the pipeline", silence))
                    return

    def _break(self, error: HeadraceError) -> None:
        """End everything here. A stage that slept is told, lest it end what goes on elsewhere."""
        if self._broken is None:
            self._broken = error
            running = [i for i in sorted(self._submitted) if not self._requests[i].done.is_set()]
            stopped = (wire.Stopped(self._match.order_hash, i) for i in running)
            spawn(self._push(*stopped), self._background)
        for request in self._requests.values():
            request.fail(error)

    async def _push(self, *messages: wire.AnyMessage) -> None:
        """Tell every stage that is left, waiting at most `PUSH_TIMEOUT_S` for one to read."""

        async def tell(stage: int) -> None:
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(PUSH_TIMEOUT_S):
                    for message in messages:
                        await self._channels[stage].send(message)

        await asyncio.gather(*map(tell, self._remaining))

    def outcome(self) -> PipelineOutcome:
        """What is finished by now, and why the rest is not."""
        finished, unfinished, begun = {}, {}, {}
        for index, request in self._requests.items():
            if request.is_done:
                finished[index] = request
                continue
            unfinished[index] = request.failure or Interrupted()
            if request.tokens and request.is_trusted:
                begun[index] = request
        return PipelineOutcome(finished, unfinished, begun, frozenset(self._lost))


#: What a stage says when it caught another one, or us, in a lie.
_DISTRUSTED = frozenset({CheckFailed.code, MalformedMessage.code})


def _check_end(index: int, request: RequestState) -> None:
    """Raise CheckFailed when an answer was signed for before it ended, or was cut short."""
    produced, most = len(request.tokens), request.max_new_tokens
    if not request.finish or (request.finish == "length" and produced != most):
        raise CheckFailed(
            f"the answer to request {index} is not whole",
            f"{produced} of at most {most} tokens, its end is said to be '{request.finish}'",
            state="nothing was acknowledged, so nothing is paid for it",
        )


def refusal(stage: int, place: Stage, message: wire.AnyMessage) -> HeadraceError:
    """A stage's refusal as an error."""
    why = f"{message.code}: {message.reason}" if isinstance(message, wire.Failed) else str(message)
    return PeerUnreachable(f"stage {stage} ({place.operator}) refused", why[:400])
