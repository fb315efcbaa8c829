"""Real stages over real streams on loopback, with a tiny model and a chain that is a dictionary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from client.orders.orders import OrderTerms, Prompt, PromptBatch, make_order
from core.batching.chunks import replay_chunks
from core.engine.weights.tokenizer import Tokenizer
from core.keys.keystore import Signer
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import ChainUnreachable
from core.protocol.types import JobState
from core.runtime.clock import SystemClock
from core.runtime.network.channel import Channel, Listener, Peers, StreamIdentity, connect
from core.runtime.network.pulse import Beat
from devnet.models.model_spec import spec_of_folder
from miner.chain.admission import ChainView
from miner.chain.onchain import JobOnChain
from miner.compute.compute import KV_BYTES, Compute
from miner.records.store import MinerStore
from miner.serving.job_table import Desk, LoadedShard, MinerTerms
from miner.serving.neighbours import Neighbours
from miner.serving.outbox import Outboxes
from miner.serving.receipts import Book
from miner.serving.stage import StageService

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
ARBITRATOR = "0x" + "aa" * 20
PROFILE = signing.name_hash("test")
NOW_S = 1_800_000_000


def key(number: int) -> Signer:
    return Signer(number.to_bytes(32, "big"), chain_id=DOMAIN.chain_id)


@dataclass
class FakeChain:
    """The few reads a stage makes. `is_down` makes every one of them fail."""

    balances: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, JobOnChain] = field(default_factory=dict)
    panels: dict[str, list[str]] = field(default_factory=dict)
    spenders: dict[str, list[str]] = field(default_factory=dict)
    can_work: bool = True
    is_down: bool = False
    clock_s: int = NOW_S
    reads: int = 0

    def now_s(self) -> int:
        return self.clock_s

    def _ask(self) -> None:
        self.reads += 1
        if self.is_down:
            raise ChainUnreachable("no answer from the test chain", "it is down")

    async def view(self, order: t.Order, job_id: str, signer: str | None) -> ChainView:
        self._ask()
        return ChainView(
            now_s=self.clock_s,
            requester_balance=self.balances.get(order.requester, 0),
            arbitrator_listed=order.arbitrator == ARBITRATOR,
            can_work=self.can_work,
            job_exists=job_id in self.jobs,
            nonce_revoked=False,
            max_job_s=86400,
            max_window_s=7 * 86400,
            signer_may_spend=signer in (order.requester, *self.spenders.get(order.requester, ())),
        )

    async def job(self, job_id: str) -> JobOnChain:
        self._ask()
        return self.jobs.get(job_id, JobOnChain(JobState.NONE, t.ZERO_HASH))

    async def panel(self, dispute_id: str) -> list[str]:
        self._ask()
        return self.panels.get(dispute_id, [])


def spec_of(model_dir: Path) -> t.ModelSpec:
    """The tiny model's specification, with its real weights root."""
    return spec_of_folder(model_dir, head_units=1, numerics_profile=PROFILE)


async def all_free(compute: Compute) -> None:
    """Wait for the pages of answers that were cancelled in their own drop: the running step
    ends.
    """
    async with asyncio.timeout(30):
        while compute.kv_tokens or compute.kv_free_tokens != compute.kv_capacity_tokens:
            await asyncio.sleep(0.001)


class Machine:
    """One miner: real store, engine, stage and listener."""

    def __init__(self, signer: Signer, folder: Path, model_dir: Path, chain: FakeChain) -> None:
        self.signer, self.folder, self.model_dir, self.chain = signer, folder, model_dir, chain
        self.clock: Callable[[], float] = time.monotonic
        self.offset_s = 0.0

    def now(self) -> float:
        return time.monotonic() + self.offset_s

    async def start(
        self,
        layers: t.LayerRange,
        *,
        max_requests: int = 16,
        guesses: bool = True,
        numerics: str = "float32",
        **terms: Any,
    ) -> None:
        from core.engine.weights.load_shard import load_shard
        from core.engine.weights.weights import model_manifest

        self.layers = layers
        kv_bytes, second = terms.pop("kv_bytes", KV_BYTES), terms.pop("second", None)
        spec = spec_of(self.model_dir)
        self.terms = MinerTerms(
            operator=self.signer.address,
            domain=DOMAIN,
            model_id=signing.model_id(spec),
            spec=spec,
            price_in=terms.pop("price_in", 100),
            price_out=terms.pop("price_out", 200),
            max_requests=max_requests,
            **terms,
        )
        self.store = MinerStore(self.folder / f"{self.signer.address}.sqlite")
        self.book = Book(self.store, self.signer, DOMAIN, self.chain.now_s)
        self.desk = Desk(self.terms, self.book, self.chain, self.now)
        self.compute = Compute(threads=1)
        identity = StreamIdentity(self.signer, DOMAIN)
        self.peers = Peers(identity)
        self.links = Outboxes(self.peers)
        neighbours = Neighbours(Peers(identity), Beat(), SystemClock())
        self.stage = StageService(
            self.desk,
            self.compute,
            self.links,
            self.now,
            neighbours=neighbours,
            guesses=guesses,
        )
        shard = await self.compute.load(
            lambda: load_shard(self.model_dir, layers, numerics=numerics),
            kv_bytes=kv_bytes,
            second=second,
        )
        manifest = model_manifest(self.model_dir)
        self.shard = shard
        self.stage.serve(
            LoadedShard(
                layers=layers,
                shard_root=commit.to_hex(manifest.shard_root(layers.start, layers.end)),
                hidden=shard.hidden,
                vocab=shard.vocab,
                context=shard.context,
                eos_ids=frozenset(self.eos_ids),
                tokenizer=cache(partial(Tokenizer, self.model_dir)),
                kv_tokens=100_000,
                root_of=lambda part: commit.to_hex(manifest.shard_root(part.start, part.end)),
            )
        )
        self.listener = Listener(identity, self.stage.handle)
        await self.listener.start("127.0.0.1", getattr(self, "port", 0))
        self.port = self.listener.port

    eos_ids: Iterable[int] = (258,)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        await self.stage.close()
        await self.links.close()
        await self.peers.close()
        await self.listener.close()
        self.compute.close()
        self.book.close()
        self.store.close()


class Requester:
    """A client that talks to every stage of a job."""

    def __init__(self, signer: Signer, chain: FakeChain, machines: Sequence[Machine]) -> None:
        self.signer, self.chain, self.machines = signer, chain, machines
        self.identity = StreamIdentity(signer, DOMAIN)
        self.tokens: dict[int, list[int]] = {}
        self.told: list[wire.Token] = []  # each token once, in order
        self.finish: dict[int, str] = {}
        self.receipts: dict[int, dict[int, t.SignedReceipt]] = {}
        self.failures: list[wire.RequestFailed] = []
        self.channels: list[Channel] = []
        self.changed = asyncio.Event()

    def order(
        self,
        prompts: Sequence[tuple[Sequence[int], t.SamplingParams]],
        *,
        matcher: str = t.ZERO_ADDRESS,
        nonce: int = 1,
        **changes: Any,
    ) -> None:
        """Prepare and sign an order; `changes` replace its fields before signing."""
        import msgspec

        self.batch = PromptBatch.of(
            [
                Prompt(str(i), tuple(ids), sampling, bytes([i]) * 32)
                for i, (ids, sampling) in enumerate(prompts)
            ]
        )
        spec = self.machines[0].terms.spec
        order = make_order(
            self.batch,
            signing.model_id(spec),
            spec,
            OrderTerms(
                price_in=100,
                price_out=200,
                matcher=matcher,
                matcher_fee_bps=0,
                min_stake=0,
                deadline=self.chain.clock_s + 600,
                window=60,
                auditor=t.ZERO_ADDRESS,
                arbitrator=ARBITRATOR,
            ),
            self.signer.address,
            nonce,
        )
        order = msgspec.structs.replace(order, **changes)
        self.signed = t.SignedOrder(order=order, signature=signing.sign(self.signer, DOMAIN, order))
        self.order_hash = signing.order_hash(order)
        self.job_id = signing.job_id(DOMAIN, order)
        self.plan = [
            t.Stage(operator=m.signer.address, layer_from=m.layers.start, layer_to=m.layers.end)
            for m in self.machines
        ]
        self.plan_hash = signing.plan_hash(self.plan)
        self.endpoints = [m.endpoint for m in self.machines]

    def proposal(self, stage: int) -> wire.Propose:
        return wire.Propose(
            signed=self.signed, plan=self.plan, endpoints=self.endpoints, stage=stage
        )

    async def propose(self, proposer: Signer) -> list[wire.AnyMessage]:
        """Ask every stage, as a matcher would."""
        peers = Peers(StreamIdentity(proposer, DOMAIN))
        answers = []
        for stage, machine in enumerate(self.machines):
            channel = await peers.get(machine.signer.address, machine.endpoint)
            answers.append((await channel.call(self.proposal(stage))).message)
        await peers.close()
        return answers

    def match(self, state: JobState = JobState.MATCHED) -> None:
        """Put the job on the chain."""
        self.chain.jobs[self.job_id] = JobOnChain(state, self.plan_hash)

    async def connect(self) -> None:
        self.channels = [
            await connect(
                m.endpoint,
                self.identity,
                expected=m.signer.address,
                handler=self._handler_of(stage),
            )
            for stage, m in enumerate(self.machines)
        ]

    def opening(self, stage: int) -> wire.OpenJob:
        return wire.OpenJob(
            signed=self.signed, plan=self.plan, endpoints=self.endpoints, stage=stage
        )

    async def open(self) -> list[wire.AnyMessage]:
        await self.connect()
        return [
            (await channel.call(self.opening(stage))).message
            for stage, channel in enumerate(self.channels)
        ]

    def submission(self, index: int) -> tuple[wire.Submit, bytes]:
        prompt, opening = self.batch.prompts[index], self.batch.opening(index)
        message = wire.Submit(
            order_hash=self.order_hash,
            request=index,
            salt=commit.to_hex(prompt.salt),
            prompt_proof=opening.prompt_proof,
            sampling=prompt.sampling,
            sampling_proof=opening.sampling_proof,
        )
        return message, commit.token_bytes(prompt.ids)

    async def submit(self, index: int) -> list[wire.AnyMessage]:
        message, payload = self.submission(index)
        ends = dict.fromkeys((len(self.channels) - 1, 0))
        return [(await self.channels[s].call(message, payload)).message for s in ends]

    async def until(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until something is true that only messages can change."""
        async with asyncio.timeout(timeout_s):
            while not done():
                self.changed.clear()
                try:
                    async with asyncio.timeout(0.2):
                        await self.changed.wait()
                except TimeoutError:
                    continue

    async def finished(self, indices: Iterable[int]) -> None:
        wanted = set(indices)
        await self.until(
            lambda: (
                bool(self.failures)
                or all(len(self.receipts.get(i, {})) == len(self.machines) for i in wanted)
            )
        )
        assert not self.failures, self.failures

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self.channels))

    async def run_all(self, proposer: Signer) -> None:
        """Everything from the proposal to the last receipt."""
        for answer in await self.propose(proposer):
            assert isinstance(answer, wire.Accepted), answer
        self.match()
        for answer in await self.open():
            assert isinstance(answer, wire.JobOpened), answer
        indices = range(len(self.batch.prompts))
        for answers in await asyncio.gather(*(self.submit(i) for i in indices)):
            assert all(isinstance(answer, wire.Submitted) for answer in answers), answers
        await self.finished(indices)

    def _handler_of(self, stage: int) -> Any:
        async def handle(channel: Channel, frame: wire.Frame) -> None:
            message = frame.message
            if isinstance(message, wire.Token):
                known = self.tokens.setdefault(message.request, [])
                if message.step == len(known):
                    known.append(message.token)
                    self.told.append(message)
                    self.finish[message.request] = message.finish
            elif isinstance(message, wire.Receipt):
                leaf = message.signed.leaves[0]
                self.receipts.setdefault(leaf.request_index, {})[stage] = message.signed
            elif isinstance(message, wire.RequestFailed):
                self.failures.append(message)
            self.changed.set()

        return handle


def greedy(max_new_tokens: int) -> t.SamplingParams:
    return t.SamplingParams(max_new_tokens=max_new_tokens)


@cache
def _whole(model_dir: Path) -> Any:
    from core.engine.weights.load_shard import load_shard
    from core.engine.weights.shape import layer_count, read_config

    return load_shard(model_dir, t.LayerRange(0, layer_count(read_config(model_dir))))


def reference(
    model_dir: Path, ids: Sequence[int], sampling: t.SamplingParams, index: int
) -> list[int]:
    """The answer of the whole model in one shard, fed in the same canonical chunks."""
    return list(_answer(model_dir, tuple(ids), sampling, index, frozenset(Machine.eos_ids)))


@cache
def _answer(
    model_dir: Path,
    ids: tuple[int, ...],
    sampling: t.SamplingParams,
    index: int,
    eos_ids: frozenset[int],
) -> tuple[int, ...]:
    import torch

    from core.engine.sampling.sampling import Sampler, sample_batch
    from core.engine.sampling.stops import AnswerEnding

    shard = _whole(model_dir)
    cache = shard.new_cache()
    tokens: list[int] = []
    sampler = Sampler(sampling, index, ids, eos_ids)
    ending = AnswerEnding(sampling, eos_ids, Tokenizer(model_dir) if sampling.stop else None, ids)
    parts = [list(ids[start:end]) for start, end in replay_chunks(0, len(ids), len(ids))]
    while True:
        for part in parts:
            logits = shard.forward(torch.tensor(part), cache, last_only=True)
        (choice,) = sample_batch(logits[-1:], [sampler])
        sampler.take(choice.token)
        tokens.append(choice.token)
        if ending.push(choice.token):
            return tuple(tokens)
        parts = [[choice.token]]
