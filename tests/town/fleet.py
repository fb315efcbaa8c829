"""What machines say to a matcher: records, a swarm and stages in memory, and jobs that they took.

The fakes follow the protocol for what a matcher asks, and can be made to fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.keys.signer import Signer
from core.money import pricing
from core.protocol import commit, records, signing, wire
from core.protocol import types as t
from core.protocol.errors import PeerUnreachable
from core.protocol.receipts import word_of
from matcher.fleet.fleet_view import ChainStanding, Sighting
from matcher.records.jobs import Job, SignedAck
from tests.clocks import ManualClock
from tests.town.chain import OWNER
from tests.town.orders import ARBITRATOR, DOMAIN, MATCHER, NOW_S, REQUESTER, key, sign_receipt

NOW_MS = NOW_S * 1000
PRICE_IN, PRICE_OUT = 2_564_103, 10_256_411  # 0.1 and 0.4 usd/Mtok over 39 layer units
PROFILE = signing.name_hash("fp32")


def machine_key(number: int) -> Signer:
    return key(100 + number)


def make_spec(**changes: Any) -> t.ModelSpec:
    """Thirty small layers: 14 MB each, the tables 113 MB."""
    values = {
        "architecture": signing.name_hash("llama"),
        "layers": 30,
        "hidden": 576,
        "heads": 9,
        "kv_heads": 3,
        "ffn": 1536,
        "vocab": 49152,
        "context": 2048,
        "embed_units": 1,
        "head_units": 8,
        "dtype": signing.name_hash("float32"),
        "numerics_profile": PROFILE,
        "weights_root": "0x" + "22" * 32,
        "manifest_hash": "0x" + "33" * 32,
    }
    return t.ModelSpec(**{**values, **changes})


SPEC = make_spec()
MODEL_ID = signing.model_id(SPEC)


def make_order(**changes: Any) -> t.Order:
    """An order that is in order."""
    values: dict[str, Any] = {
        "requester": REQUESTER.address,
        "model_id": MODEL_ID,
        "input_root": "0x" + "44" * 32,
        "sampling_root": "0x" + "55" * 32,
        "requests": 2,
        "max_tokens_in": 20,
        "max_tokens_out": 64,
        "price_in": PRICE_IN,
        "price_out": PRICE_OUT,
        "matcher": MATCHER.address,
        "matcher_fee_bps": 200,
        "opening_fee": 0,
        "min_stake": 0,
        "deadline": NOW_S + 600,
        "window": 60,
        "auditor": t.ZERO_ADDRESS,
        "arbitrator": ARBITRATOR,
        "numerics_profile": PROFILE,
        "terms_hash": t.ZERO_HASH,
        "nonce": 1,
    }
    return t.Order(**{**values, **changes})


def make_record(number: int, **changes: Any) -> records.MinerRecord:
    """What machine `number` says of itself."""
    values: dict[str, Any] = {
        "operator": machine_key(number).address,
        "endpoint": f"127.0.0.1:{9000 + number}",
        "state": "JOIN",
        "model_id": MODEL_ID,
        "layers": None,
        "memory_bytes": 400 * 2**20,
        "tflops": 0.2,
        "bandwidth_gb_s": 10.0,
        "region": "here",
        "tau_ms_per_layer": 0.0,
        "rho_ms": {},
        "max_requests": 16,
        "active_requests": 0,
        "kv_free_tokens": 10_000,
        "context": 2048,
        "price_in": PRICE_IN,
        "price_out": PRICE_OUT,
        "allocation": 0,
        "sent_at_ms": NOW_MS,
    }
    return records.MinerRecord(**{**values, **changes})


def seal(number: int, record: records.MinerRecord, sequence: int = 1) -> bytes:
    return records.seal(record, sequence, machine_key(number), DOMAIN)


def sighting(number: int, *, seen_ms: int = NOW_MS, sequence: int = 1, **changes: Any) -> Sighting:
    record = make_record(number, **changes)
    return Sighting(record.operator, record, sequence, seen_ms)


def serving_at(number: int, start: int, end: int, **changes: Any) -> Sighting:
    """A machine that follows an allocation and serves [start, end)."""
    values = {"state": "SERVING", "layers": t.LayerRange(start, end), "allocation": 7} | changes
    return sighting(number, **values)


def standing(stake: int = 500_000_000, *, can_work: bool = True) -> ChainStanding:
    return ChainStanding(OWNER, stake, can_work)


def make_job(signed: t.SignedOrder, stages: Sequence[tuple[int, int, int]]) -> Job:
    """A job of machines (number, start, end) that all accepted for five minutes."""
    plan = tuple(t.Stage(machine_key(n).address, a, b) for n, a, b in stages)
    return Job(
        job_id=signing.job_id(DOMAIN, signed.order),
        signed=signed,
        plan=plan,
        endpoints=tuple(f"127.0.0.1:{9000 + n}" for n, _, _ in stages),
        acceptances=tuple(
            accept(signed.order, plan, index, machine_key(n), NOW_S + 300)
            for index, (n, _, _) in enumerate(stages)
        ),
        locked_units=pricing.max_amount(signed.order, SPEC),
    )


def accept(
    order: t.Order, plan: Sequence[t.Stage], stage: int, signer: Signer, expiry: int
) -> t.SignedAcceptance:
    acceptance = t.Acceptance(
        signing.order_hash(order), signing.plan_hash(tuple(plan)), stage, expiry
    )
    return t.SignedAcceptance(acceptance, signing.sign(signer, DOMAIN, acceptance))


def make_receipt(
    order: t.Order,
    plan: Sequence[t.Stage],
    stage: int,
    requests: Sequence[int],
    signer: Signer,
    *,
    tokens_in: int = 10,
    tokens_out: int = 30,
) -> t.SignedReceipt:
    """What an honest stage signs when each request had these counts; boundaries agree."""

    def boundary(at: int, request: int) -> str:
        return commit.to_hex(commit.leaf_hash(f"{at}/{request}".encode()))

    leaves = [
        t.RequestLeaf(i, boundary(stage, i), boundary(stage + 1, i), tokens_in, tokens_out)
        for i in requests
    ]
    answers = [boundary(len(plan), i) for i in requests]
    return sign_receipt(signer, order, plan, stage, leaves, [], answers)


def make_words(signed: t.SignedReceipt, signer: Signer) -> list[t.SignedWord]:
    """What the receipt's stage told the next one of its requests."""
    place = signed.receipt.order_hash, signed.receipt.plan_hash, signed.receipt.stage
    answers = signed.answers or [t.ZERO_HASH] * len(signed.leaves)
    words = [word_of(*place, *said) for said in zip(signed.leaves, answers, strict=True)]
    return [t.SignedWord(word, signing.sign(signer, DOMAIN, word)) for word in words]


def make_ack(
    job: Job, tokens_in: int, tokens_out: int, result_root: str, signer: Signer = REQUESTER
) -> SignedAck:
    ack = t.Ack(job.order_hash, job.plan_hash, result_root, tokens_in, tokens_out)
    return SignedAck(ack, signing.sign(signer, DOMAIN, ack))


@dataclass
class FakeSwarm:
    """Topics in a dictionary."""

    topics: dict[str, dict[str, bytes]] = field(default_factory=dict)
    is_down: bool = False
    admitted: set[str] = field(default_factory=set)

    def addresses(self) -> list[str]:
        return ["/ip4/127.0.0.1/tcp/1/p2p/Qm"]

    async def admit(self, operators: Iterable[str]) -> None:
        self.admitted = set(operators)

    async def peers(self) -> list[str]:
        return ["/ip4/127.0.0.1/tcp/2/p2p/Qn"]

    async def lookup(self, *topics: str) -> dict[str, bytes]:
        if self.is_down:
            raise PeerUnreachable("the swarm", "our own peer has ended")
        return {k: v for topic in topics for k, v in self.topics.get(topic, {}).items()}


@dataclass
class FakeStage:
    """One machine's side of the conversation with a matcher."""

    number: int
    clock: ManualClock
    refuse: str = ""
    is_gone: bool = False
    finished: set[int] = field(default_factory=set)
    words: list[t.SignedWord] = field(default_factory=list)  # of the stage before
    proposals: int = 0
    continued: str | None = None  # by the newest proposal
    pong: wire.Pong = field(default_factory=wire.Pong)
    allocated: list[wire.Allocate] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    orders: dict[str, tuple[t.Order, list[t.Stage], int]] = field(default_factory=dict)

    async def call(
        self, message: wire.AnyMessage, payload: bytes = b"", *, timeout_s: float = 15.0
    ) -> wire.Frame:
        if self.is_gone:
            raise PeerUnreachable(machine_key(self.number).address, "connection refused")
        return wire.Frame(self._answer(message), memoryview(b""))

    def _answer(self, message: wire.AnyMessage) -> wire.AnyMessage:
        signer = machine_key(self.number)
        if isinstance(message, wire.Propose):
            self.proposals += 1
            self.continued = message.continues
            if self.refuse:
                return wire.Failed(code="E-ADMIT-SLOTS", reason=self.refuse)
            order = message.signed.order
            place = (order, list(message.plan), message.stage)
            self.orders[signing.order_hash(order)] = place
            expiry = min(order.deadline, int(self.clock.now()) + 300)
            return wire.Accepted(accept(order, message.plan, message.stage, signer, expiry))
        if isinstance(message, wire.Withdraw):
            self.withdrawn.append(message.order_hash)
            return wire.ProposalWithdrawn()
        if isinstance(message, wire.Ping):
            return self.pong
        if isinstance(message, wire.Allocate):
            self.allocated.append(message)
            return wire.Allocated()
        if isinstance(message, wire.Progress):
            return wire.Finished(sorted(self.finished))
        if isinstance(message, wire.CloseJob):
            order, plan, stage = self.orders[message.order_hash]
            return wire.Receipt(make_receipt(order, plan, stage, message.requests, signer))
        if isinstance(message, wire.FetchReceipts):
            return wire.Receipts([], self.words)
        return wire.Failed(code="E-WIRE-05", reason="not for a matcher")


@dataclass
class FakePeers:
    """Streams to the fake stages by operator."""

    stages: dict[str, FakeStage] = field(default_factory=dict)

    async def get(self, operator: str, endpoint: str, *, timeout_s: float = 5.0) -> FakeStage:
        stage = self.stages.get(operator)
        if stage is None or stage.is_gone:
            raise PeerUnreachable(operator, f"{endpoint}: connection refused")
        return stage
