"""A small world for a matcher: keys, a model, machines, chain, swarm and stages in memory.

The fakes are for unit level only: they follow the contract's rules for the calls of a matcher.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.chain.chain import ChainCall, ChainEvent, Sent
from core.keys.signer import Signer
from core.money import pricing
from core.protocol import commit, records, signing, wire
from core.protocol import types as t
from core.protocol.errors import ChainUnreachable, ContractRefused, PeerUnreachable
from matcher.fleet.fleet_view import ChainStanding, Sighting
from matcher.records.jobs import CHAIN_STATES, Job
from tests.clocks import ManualClock

CHAIN_ID = 31337
TASK_REGISTRY = "0x" + "11" * 20
DOMAIN = signing.Domain(CHAIN_ID, TASK_REGISTRY)
ARBITRATOR = "0x" + "aa" * 20
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
PRICE_IN, PRICE_OUT = 2_564_103, 10_256_411  # 0.1 and 0.4 usd/Mtok over 39 layer units
PROFILE = signing.name_hash("fp32")


def key(number: int) -> Signer:
    """A key that is the same in every run."""
    return Signer(number.to_bytes(32, "big"), chain_id=CHAIN_ID)


MATCHER, REQUESTER = key(1), key(2)


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


def sign_order(
    order: t.Order, signer: Signer = REQUESTER, domain: signing.Domain = DOMAIN
) -> t.SignedOrder:
    return t.SignedOrder(order, signing.sign(signer, domain, order))


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
    return ChainStanding(key(200).address, stake, can_work)


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
    """What an honest stage signs when each request had these tokens; boundaries agree."""

    def boundary(at: int, request: int) -> str:
        return commit.to_hex(commit.leaf_hash(f"{at}/{request}".encode()))

    leaves = [
        t.RequestLeaf(i, boundary(stage, i), boundary(stage + 1, i), tokens_in, tokens_out)
        for i in requests
    ]
    roots = [commit.to_hex(root) for root in commit.receipt_roots(leaves)]
    receipt = t.StageReceipt(
        order_hash=signing.order_hash(order),
        plan_hash=signing.plan_hash(tuple(plan)),
        stage=stage,
        layer_from=plan[stage].layer_from,
        layer_to=plan[stage].layer_to,
        shard_root="0x" + "66" * 32,
        input_root=roots[0],
        output_root=roots[1],
        requests_root=roots[2],
        requests=len(leaves),
        tokens_in=tokens_in * len(leaves),
        tokens_out=tokens_out * len(leaves),
        started_at=NOW_S,
        signed_at=NOW_S + 1,
    )
    return t.SignedReceipt(receipt, signing.sign(signer, DOMAIN, receipt), leaves)


def make_ack(
    job: Job, tokens_in: int, tokens_out: int, result_root: str, signer: Signer = REQUESTER
) -> Any:
    from matcher.records.jobs import SignedAck

    ack = t.Ack(job.order_hash, job.plan_hash, result_root, tokens_in, tokens_out)
    return SignedAck(ack, signing.sign(signer, DOMAIN, ack))


class Clock(ManualClock):
    """Sleeps of the daemon's loop are driven by hand; `now` starts at the fakes' time."""

    def __init__(self) -> None:
        super().__init__(float(NOW_S))


# --- the chain ---------------------------------------------------------------------------------


@dataclass
class ChainJob:
    """A job as TaskRegistry keeps it."""

    order: t.Order
    plan: list[t.Stage]
    plan_hash: str
    state: str = "Matched"
    final_at: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    result_root: str = t.ZERO_HASH
    open_disputes: int = 0


@dataclass
class FakeChain:
    """The calls a matcher makes, with the contract's own refusals. One transaction a block."""

    clock: ManualClock
    balances: dict[str, int] = field(default_factory=lambda: {REQUESTER.address: 10**12})
    stakes: dict[str, int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    strikes: int = 0
    jobs: dict[str, ChainJob] = field(default_factory=dict)
    models: dict[str, t.ModelSpec] = field(default_factory=lambda: {MODEL_ID: SPEC})
    spenders: set[tuple[str, str]] = field(default_factory=set)
    revoked: set[int] = field(default_factory=set)
    is_down: bool = False
    lose_answers: int = 0  # so many transactions are mined, but we do not hear of it
    sent: list[str] = field(default_factory=list)
    chain_id: int = CHAIN_ID

    def __post_init__(self) -> None:
        self.addresses = {"TaskRegistry": TASK_REGISTRY}
        self.calls: dict[str, ChainCall] = {}
        self.salt = 0
        self.blocks: list[tuple[str, list[ChainEvent]]] = []
        for model_id in self.models:
            self._mine("ModelRegistry", "ModelRegistered", {"id": model_id})

    @property
    def domain(self) -> signing.Domain:
        return DOMAIN

    # reading

    def _up(self) -> None:
        if self.is_down:
            raise ChainUnreachable("no answer from the test chain", "it is down")

    async def now(self) -> int:
        self._up()
        return int(self.clock.now())

    async def balance_wei(self, address: str) -> int:
        self._up()
        return 10**18

    async def block_number(self) -> int:
        self._up()
        return len(self.blocks) - 1

    async def block_hash(self, number: int) -> str | None:
        self._up()
        return self.blocks[number][0] if 0 <= number < len(self.blocks) else None

    async def events(self, first: int, last: int) -> list[ChainEvent]:
        self._up()
        return [event for _, events in self.blocks[first : last + 1] for event in events]

    async def call_of(self, tx_hash: str) -> ChainCall | None:
        self._up()
        return self.calls.get(tx_hash)

    async def read(self, contract: str, function: str, *args: Any) -> Any:
        self._up()
        return getattr(self, f"_{function}")(*args)

    def _jobOf(self, job_id: str) -> Mapping[str, Any]:  # noqa: N802
        job = self.jobs.get(job_id)
        if job is None:
            job = ChainJob(make_order(deadline=0), [], t.ZERO_HASH, "None")
        return {
            "state": CHAIN_STATES.index(job.state),
            "planHash": job.plan_hash,
            "deadline": job.order.deadline,
            "finalAt": job.final_at,
            "tokensIn": job.tokens_in,
            "tokensOut": job.tokens_out,
            "openDisputes": job.open_disputes,
            "resultRoot": job.result_root,
        }

    def _balanceOf(self, account: str) -> int:  # noqa: N802
        return self.balances.get(account, 0)

    def _isSpender(self, requester: str, signer: str) -> bool:  # noqa: N802
        return (requester, signer) in self.spenders

    def _isNonceRevoked(self, requester: str, nonce: int) -> bool:  # noqa: N802
        return nonce in self.revoked

    def _isArbitrator(self, account: str) -> bool:  # noqa: N802
        return account == ARBITRATOR

    def _params(self) -> Mapping[str, int]:
        return {"maxJobSeconds": 1800, "maxWindowSeconds": 900}

    def _ownerOf(self, operator: str) -> str:  # noqa: N802
        one_for_all = key(200).address if operator in self.stakes else t.ZERO_ADDRESS
        return self.owners.get(operator, one_for_all)

    def _minerOf(self, owner: str) -> Mapping[str, int]:  # noqa: N802
        return {"stake": max(self.stakes.values(), default=0), "strikes": self.strikes}

    def _canWork(self, operator: str, least: int) -> bool:  # noqa: N802
        return self.stakes.get(operator, 0) >= max(1, least)

    def _specOf(self, model_id: str) -> Mapping[str, Any]:  # noqa: N802
        return dict(msgspec.to_builtins(self.models[model_id]))

    # writing

    def _mine(self, contract: str, name: str, args: dict[str, Any]) -> Sent:
        number = len(self.blocks)
        block_hash = f"0x{number + 2**16 * self.salt:064x}"
        tx_hash = f"0x{number + 2**16 * self.salt + 2**40:064x}"
        event = ChainEvent(contract, name, args, number, block_hash, tx_hash, 0)
        self.blocks.append((block_hash, [event]))
        return Sent(tx_hash, number, 100_000)

    def roll_back(self, blocks: int) -> None:
        """Forget the newest blocks and what jobs became in them; the next have other hashes."""
        lost = [event for _, events in self.blocks[-blocks:] for event in events]
        del self.blocks[-blocks:]
        self.salt += 1
        for event in lost:
            if event.contract == "TaskRegistry":
                job_id = event.args["job"]
                if event.name == "JobMatched":
                    del self.jobs[job_id]
                elif job_id in self.jobs:
                    self.jobs[job_id].state = "Matched"

    async def transact(self, signer: Signer, contract: str, function: str, *args: Any) -> Sent:
        self._up()
        name, event_args = getattr(self, f"_do_{function}")(*args)
        self.sent.append(function)
        sent = self._mine(contract, name, event_args)
        if function == "openMatched":
            names = ("order", "requesterSig", "plan", "acceptances", "acceptanceSigs")
            plain = msgspec.to_builtins(dict(zip(names, args, strict=True)))
            self.calls[sent.tx_hash] = ChainCall(contract, function, plain, signer.address)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ChainUnreachable("the answer was lost", "mined, but we did not hear of it")
        return sent

    def _refuse(self, error: str, **args: Any) -> ContractRefused:
        return ContractRefused("TaskRegistry was refused", error=error, args=args)

    def _bound(self, order: t.Order, plan: list[t.Stage], *states: str) -> tuple[str, ChainJob]:
        job_id = signing.job_id(DOMAIN, order)
        job = self.jobs.get(job_id)
        if job is None or job.state not in states:
            raise self._refuse("WrongState", have=job.state if job else "None")
        if job.plan_hash != signing.plan_hash(tuple(plan)):
            raise self._refuse("PlanMismatch")
        return job_id, job

    def _do_openMatched(  # noqa: N802
        self, order: t.Order, signature: str, plan: list[t.Stage], acceptances: Any, sigs: Any
    ) -> tuple[str, dict[str, Any]]:
        job_id = signing.job_id(DOMAIN, order)
        if job_id in self.jobs:
            raise self._refuse("WrongState", have=self.jobs[job_id].state)
        assert signing.is_signed_by(DOMAIN, order, signature, order.requester)
        plan_hash = signing.plan_hash(tuple(plan))
        for stage, acceptance, sig in zip(plan, acceptances, sigs, strict=True):
            assert acceptance.plan_hash == plan_hash
            if acceptance.expiry < self.clock.now():
                raise self._refuse("AcceptanceExpired", stage=acceptance.stage)
            assert signing.is_signed_by(DOMAIN, acceptance, sig, stage.operator)
        need = pricing.max_amount(order, SPEC)
        if self.balances.get(order.requester, 0) < need:
            raise self._refuse("InsufficientBalance")
        self.balances[order.requester] -= need
        self.jobs[job_id] = ChainJob(order, list(plan), plan_hash)
        return "JobMatched", {"job": job_id, "matcher": MATCHER.address, "planHash": plan_hash}

    def _settled(self, job_id: str, job: ChainJob) -> tuple[str, dict[str, Any]]:
        job.state = "Settled"
        found = pricing.split(job.order, job.plan, SPEC, job.tokens_in, job.tokens_out)
        self.balances[job.order.requester] += found.refund
        paid = found.locked - found.refund
        return "JobSettled", {"job": job_id, "paid": paid, "refunded": found.refund, "withheld": 0}

    def _do_settleAck(  # noqa: N802
        self, order: t.Order, ack: t.Ack, signature: str, plan: list[t.Stage]
    ) -> tuple[str, dict[str, Any]]:
        job_id, job = self._bound(order, plan, "Matched", "Delivered")
        assert signing.is_signed_by(DOMAIN, ack, signature, order.requester)
        said = (ack.tokens_in, ack.tokens_out, ack.result_root)
        if job.state == "Delivered" and said != (job.tokens_in, job.tokens_out, job.result_root):
            raise self._refuse("AckMismatch")
        job.tokens_in, job.tokens_out = ack.tokens_in, ack.tokens_out
        return self._settled(job_id, job)

    def _do_deliver(
        self, order: t.Order, plan: list[t.Stage], receipts: Any, sigs: Any
    ) -> tuple[str, dict[str, Any]]:
        job_id, job = self._bound(order, plan, "Matched")
        if self.clock.now() > order.deadline:
            raise self._refuse("DeadlinePassed")
        for stage, receipt, sig in zip(plan, receipts, sigs, strict=True):
            assert signing.is_signed_by(DOMAIN, receipt, sig, stage.operator)
            if receipt.requests != order.requests:
                raise self._refuse("RequestCountMismatch")
        for before, after in itertools.pairwise(receipts):
            assert after.input_root == before.output_root
        last = receipts[-1]
        job.state, job.result_root = "Delivered", last.output_root
        job.tokens_in, job.tokens_out = last.tokens_in, last.tokens_out
        job.final_at = int(self.clock.now()) + order.window
        return "JobDelivered", {
            "job": job_id,
            "resultRoot": last.output_root,
            "tokensIn": last.tokens_in,
            "tokensOut": last.tokens_out,
            "finalAt": job.final_at,
        }

    def _do_finalize(self, order: t.Order, plan: list[t.Stage]) -> tuple[str, dict[str, Any]]:
        job_id, job = self._bound(order, plan, "Delivered")
        if self.clock.now() <= job.final_at:
            raise self._refuse("WindowOpen", until=job.final_at)
        return self._settled(job_id, job)

    def _do_expire(self, job_id: str) -> tuple[str, dict[str, Any]]:
        job = self.jobs[job_id]
        if job.state != "Matched":
            raise self._refuse("WrongState", have=job.state)
        if self.clock.now() <= job.order.deadline:
            raise self._refuse("DeadlineNotPassed")
        job.state = "Expired"
        refund = pricing.max_amount(job.order, SPEC)
        self.balances[job.order.requester] += refund
        return "JobExpired", {"job": job_id, "refunded": refund}


# --- the swarm and the stages ------------------------------------------------------------------


@dataclass
class FakeSwarm:
    """Topics in a dictionary."""

    topics: dict[str, dict[str, bytes]] = field(default_factory=dict)
    is_down: bool = False

    def addresses(self) -> list[str]:
        return ["/ip4/127.0.0.1/tcp/1/p2p/Qm"]

    async def publish(self, topic: str, key: str, record: bytes, ttl_s: float) -> bool:
        self.topics.setdefault(topic, {})[key] = record
        return True

    async def peers(self) -> list[str]:
        return ["/ip4/127.0.0.1/tcp/2/p2p/Qn"]

    async def lookup(self, topic: str) -> dict[str, bytes]:
        if self.is_down:
            raise PeerUnreachable("the swarm", "our own peer has ended")
        return dict(self.topics.get(topic, {}))


@dataclass
class FakeStage:
    """One machine's side of the conversation with a matcher."""

    number: int
    clock: ManualClock
    refuse: str = ""
    is_gone: bool = False
    finished: set[int] = field(default_factory=set)
    proposals: int = 0
    continued: str | None = None  # by the newest proposal
    pong: wire.Pong = field(default_factory=wire.Pong)
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
        if isinstance(message, wire.Ping):
            return self.pong
        if isinstance(message, wire.Progress):
            return wire.Finished(sorted(self.finished))
        if isinstance(message, wire.CloseJob):
            order, plan, stage = self.orders[message.order_hash]
            return wire.Receipt(make_receipt(order, plan, stage, message.requests, signer))
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
