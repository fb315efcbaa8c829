"""A small world for a requester: keys, an order, a plan of three stages, and peers that play the stages on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec

from client.orders.orders import OrderTerms, Prompt, PromptBatch, make_order
from client.pipeline.pipeline import Match
from client.pipeline.verify import RequestAnswer
from core.keys.signer import Signer
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.runtime.network.channel import Channel, Listener, StreamIdentity

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
ARBITRATOR = "0x" + "aa" * 20
NOW_S = 1_800_000_000
SPANS = ((0, 2), (2, 5), (5, 6))
#: Root of what scripted last stages sign beside their tokens.
STATES = "0x" + "5a" * 32


def key(number: int) -> Signer:
    return Signer(number.to_bytes(32, "big"), chain_id=DOMAIN.chain_id)


REQUESTER = key(50)
SPEC = t.ModelSpec(
    architecture=signing.name_hash("llama"),
    layers=6,
    hidden=64,
    heads=4,
    kv_heads=2,
    ffn=128,
    vocab=272,
    context=512,
    embed_units=1,
    head_units=1,
    dtype=signing.name_hash("float32"),
    numerics_profile=signing.name_hash("fp32"),
    weights_root="0x" + "77" * 32,
    manifest_hash="0x" + "88" * 32,
)
MODEL_ID = signing.model_id(SPEC)


def digest(*parts: object) -> str:
    return "0x" + sha256(repr(parts).encode()).hexdigest()


def shard_root_of(start: int, end: int) -> str:
    return digest("shard", start, end)


def prompts(count: int, *, max_new_tokens: int = 4) -> list[Prompt]:
    sampling = t.SamplingParams(max_new_tokens=max_new_tokens)
    return [
        Prompt(f"p{i}", tuple(range(10 * i, 10 * i + 3 + i % 2)), sampling, bytes([i]) * 32)
        for i in range(count)
    ]


def terms(**changes: Any) -> OrderTerms:
    values: dict[str, Any] = {
        "price_in": 10**9,
        "price_out": 2 * 10**9,
        "matcher": key(40).address,
        "matcher_fee_bps": 0,
        "min_stake": 0,
        "deadline": NOW_S + 600,
        "window": 60,
        "auditor": t.ZERO_ADDRESS,
        "arbitrator": ARBITRATOR,
    }
    return OrderTerms(**(values | changes))


def signed_order(batch: PromptBatch, nonce: int = 1) -> t.SignedOrder:
    order = make_order(batch, MODEL_ID, SPEC, terms(), REQUESTER.address, nonce)
    return t.SignedOrder(order, signing.sign(REQUESTER, DOMAIN, order))


def answer_of(prompt: Prompt) -> RequestAnswer:
    """What the scripted stages answer: as many tokens as allowed, gone on from the step that the prompt has reached."""
    first = prompt.sampling.first_step
    steps = range(first, first + prompt.sampling.max_new_tokens)
    return RequestAnswer(prompt.ids, tuple(200 + (prompt.ids[0] + i) % 50 for i in steps), STATES)


def leaves_of(answers: dict[int, RequestAnswer], stage: int, stages: int) -> list[t.RequestLeaf]:
    """What an honest stage commits to for these answers; inner boundaries are made up but agree."""
    leaves = []
    for index, answer in sorted(answers.items()):
        fed = commit.to_hex(commit.tokens_root(answer.fed_ids))
        leaves.append(
            t.RequestLeaf(
                request_index=index,
                in_root=fed if stage == 0 else digest("boundary", index, answer, stage - 1),
                out_root=answer.out_root
                if stage == stages - 1
                else digest("boundary", index, answer, stage),
                tokens_in=len(answer.prompt_ids),
                tokens_out=len(answer.tokens),
            )
        )
    return leaves


def sign_receipt(
    operator: Signer,
    order: t.Order,
    plan: Sequence[t.Stage],
    stage: int,
    leaves: list[t.RequestLeaf],
    /,
    states: Sequence[str] = (),
    **changes: Any,
) -> t.SignedReceipt:
    """A stage's receipt over these leaves, a last one's with these roots of `states`; `changes` replace fields before it is signed."""
    if stage == len(plan) - 1:
        states = states or [STATES] * len(leaves)
    roots = [commit.to_hex(root) for root in commit.receipt_roots(leaves)]
    receipt = t.StageReceipt(
        order_hash=signing.order_hash(order),
        plan_hash=signing.plan_hash(tuple(plan)),
        stage=stage,
        layer_from=plan[stage].layer_from,
        layer_to=plan[stage].layer_to,
        shard_root=shard_root_of(plan[stage].layer_from, plan[stage].layer_to),
        input_root=roots[0],
        output_root=roots[1],
        requests_root=roots[2],
        requests=len(leaves),
        tokens_in=sum(leaf.tokens_in for leaf in leaves),
        tokens_out=sum(leaf.tokens_out for leaf in leaves),
        started_at=NOW_S,
        signed_at=NOW_S + 1,
    )
    receipt = msgspec.structs.replace(receipt, **changes)
    return t.SignedReceipt(receipt, signing.sign(operator, DOMAIN, receipt), leaves, list(states))


Script = Callable[["Stages", int], Awaitable[None]]


class Stages:
    """Three operators that play the stages of one job after another over real streams.

    `script` is run for each submitted request; `refuse` answers OpenJob of a stage with a failure.
    """

    def __init__(self, first_key: int = 100) -> None:
        self.operators = [key(first_key + i) for i in range(len(SPANS))]
        self.plan = tuple(
            t.Stage(signer.address, start, end)
            for signer, (start, end) in zip(self.operators, SPANS, strict=True)
        )
        self.script: Script = serve
        self.refuse: dict[int, wire.Failed] = {}
        self.refuse_submit: set[int] = set()
        self.batch: PromptBatch | None = None
        self.heard: list[tuple[int, wire.AnyMessage]] = []
        self.channels: dict[int, Channel] = {}
        self.running = 0
        self.most_running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []

    async def start(self) -> Stages:
        for stage, operator in enumerate(self.operators):
            listener = Listener(StreamIdentity(operator, DOMAIN), self._handler_of(stage))
            await listener.start("127.0.0.1", 0)
            self._listeners.append(listener)
        return self

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            await listener.close()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{listener.port}" for listener in self._listeners)

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
                    return wire.JobOpened()
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


class InstantClock:
    """A clock whose sleeps take no time but count."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return NOW_S + sum(self.slept)

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class FakeChain:
    """The reads and calls of a requester, over dictionaries. `broken` raises what it holds at the next read."""

    chain_id = DOMAIN.chain_id
    domain = DOMAIN

    def __init__(self, *, wallet: int = 0, prepaid: int = 10**15) -> None:
        self.addresses = {"Escrow": "0x" + "ee" * 20, "JuryArbitrator": ARBITRATOR}
        self.wallet, self.prepaid = wallet, prepaid
        self.thaw = {"amount": 0, "readyAt": 0}
        self.jobs: dict[str, tuple[t.JobState, str]] = {}
        self.reads: list[str] = []
        self.sent: list[tuple[Any, ...]] = []
        self.broken: dict[str, Exception] = {}
        self.now_s = NOW_S

    async def now(self) -> int:
        return self.now_s

    async def balance_wei(self, address: str) -> int:
        return 10**18

    async def read(self, contract: str, function: str, *args: Any, block: int | None = None) -> Any:
        name = f"{contract}.{function}"
        self.reads.append(name)
        if name in self.broken:
            raise self.broken[name]
        match name:
            case "TaskRegistry.jobOf":
                state, plan_hash = self.jobs.get(args[0], (t.JobState.NONE, t.ZERO_HASH))
                return {"state": int(state), "planHash": plan_hash}
            case "ModelRegistry.shardRoot":
                return shard_root_of(args[1], args[2])
            case "Escrow.balanceOf":
                return self.prepaid
            case "Escrow.thawOf":
                return self.thaw
            case "Escrow.withdrawDelaySeconds":
                return 60
            case "Escrow.creditOf":
                return 0
            case "TestUSD.balanceOf":
                return self.wallet
        raise AssertionError(f"unexpected read {name}")

    async def simulate(self, sender: str, contract: str, function: str, *args: Any) -> int:
        return 50_000

    async def transact(self, signer: Any, contract: str, function: str, *args: Any) -> None:
        self.sent.append((contract, function, *args))
        if function == "deposit":
            self.wallet -= args[0]
            self.prepaid += args[0]
