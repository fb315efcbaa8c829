"""Real miners over real streams on loopback, with a tiny model. They can be killed and frozen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from core.batching.chunks import replay_chunks
from core.dispute.trace.families import SPAN_LAYERS
from core.engine.sampling.sampler import Sampler
from core.engine.weights.manifest import MANIFEST_FILE
from core.engine.weights.tokenizer import Tokenizer
from core.keys.signer import Signer
from core.models.publication import publication_of, write_manifest
from core.protocol import commit, signing
from core.protocol import types as t
from core.runtime.clock import SystemClock
from core.runtime.network.channel import Channel, Listener, Peers, StreamIdentity
from core.runtime.network.pulse import Beat
from miner.chain.onchain import MinerChain
from miner.compute.compute import KV_BYTES, Compute, Key, RequestSpec
from miner.records.store import MinerStore
from miner.serving.job_table import JobTable, LoadedShard, MinerTerms
from miner.serving.neighbours import Neighbours
from miner.serving.outbox import Outboxes
from miner.serving.receipts import ReceiptBook
from miner.serving.sharing import SharedFiles, Sharing
from miner.serving.stage import StageService
from tests.town.chain import FakeChain
from tests.town.orders import DOMAIN

PROFILE = signing.name_hash("test")
STAKE = 500_000_000


def spec_of(model_dir: Path) -> t.ModelSpec:
    """The tiny model's specification, with its real weights root. Its manifest is beside it."""
    publication = publication_of(model_dir)
    if not (model_dir / MANIFEST_FILE).exists():
        write_manifest(publication)
    spec = publication.spec
    return msgspec.structs.replace(spec, head_units=1, numerics_profile=PROFILE)


async def all_free(compute: Compute) -> None:
    """Wait for the pages of answers that were cancelled in their own drop: the running step
    ends.
    """
    async with asyncio.timeout(30):
        while compute.kv_tokens or compute.kv_free_tokens != compute.kv_capacity_tokens:
            await asyncio.sleep(0.001)


class Machine:
    """One miner: real store, engine, stage and listener. It can be killed and frozen."""

    def __init__(self, signer: Signer, folder: Path, model_dir: Path, chain: FakeChain) -> None:
        self.signer, self.folder, self.model_dir = signer, folder, model_dir
        self.chain = MinerChain(chain, signer.address, chain.clock)
        chain.stakes[signer.address] = STAKE
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
        from core.engine.weights.weights import weight_roots

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
        self.book = ReceiptBook(self.store, self.signer, DOMAIN, self.chain.now_s)
        self.table = JobTable(self.terms, self.book, self.chain, self.now)
        self.compute = Compute(threads=1)
        identity = StreamIdentity(self.signer, DOMAIN)
        self.peers = Peers(identity)
        self.links = Outboxes(self.peers)
        neighbours = Neighbours(Peers(identity), Beat(), SystemClock())
        self.stage = StageService(
            self.table,
            self.compute,
            self.links,
            self.now,
            sharing=Sharing(
                self.terms.model_id,
                SharedFiles(self.model_dir, spec.manifest_hash, SystemClock()),
                self.share_rate_bytes_s,
                SystemClock(),
            ),
            neighbours=neighbours,
            guesses=guesses,
        )
        shard = await self.compute.load(
            lambda: load_shard(self.model_dir, layers, numerics=numerics),
            kv_bytes=kv_bytes,
            second=second,
            span_layers=self.span_layers,
        )
        weights = weight_roots(self.model_dir)
        self.shard = shard
        self.stage.serve(
            LoadedShard(
                layers=layers,
                shard_root=commit.to_hex(weights.shard_root(layers.start, layers.end)),
                hidden=shard.hidden,
                vocab=shard.vocab,
                context=shard.context,
                eos_ids=frozenset(self.eos_ids),
                tokenizer=cache(partial(Tokenizer, self.model_dir)),
                kv_tokens=100_000,
                root_of=lambda part: commit.to_hex(weights.shard_root(part.start, part.end)),
                span_layers=self.span_layers,
            )
        )
        self.listener = Listener(identity, self.stage.handle)
        await self.listener.start("127.0.0.1", getattr(self, "port", 0))
        self.port = self.listener.port

    share_rate_bytes_s = 2**20
    eos_ids: Iterable[int] = (258,)
    span_layers = SPAN_LAYERS  # between two boundaries that it signs

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self.goes_on is not None:
            self.goes_on.set()
        await self.stage.close()
        await self.links.close()
        await self.peers.close()
        await self.listener.close()
        self.compute.close()
        self.book.close()
        self.store.close()

    is_dead = False
    goes_on: threading.Event | None = None

    def _channels(self) -> list[Channel]:
        assert self.stage._neighbours is not None
        pulses = self.stage._neighbours._peers
        dialled = [*self.peers._channels.values(), *pulses._channels.values()]
        return [*self.listener.channels, *dialled]

    async def kill(self) -> None:
        """As kill −9: every stream breaks at once, nobody listens any more."""
        self.is_dead = True
        self.listener._server.close()
        for channel in self._channels():
            channel._writer.transport.abort()

    def slow_down(self, seconds: float) -> None:
        """Every step takes so much longer."""
        engine = self.compute._engine
        assert engine is not None
        step = engine.step

        def slow(*pieces: Any, **options: Any) -> Any:
            time.sleep(seconds)
            return step(*pieces, **options)

        engine.step = slow  # type: ignore[method-assign]

    async def freeze(self) -> None:
        """As SIGSTOP: streams stay open and nothing is read or written.

        The kernel still takes connections.
        """
        self.is_dead = True
        goes_on = asyncio.Event()
        welcome = self.listener._welcome

        async def hang(*streams: Any) -> Channel | None:
            await goes_on.wait()
            return await welcome(*streams)

        self.listener._welcome = hang  # type: ignore[method-assign]
        neighbours = self.stage._neighbours
        assert neighbours is not None
        lost, neighbours.on_lost = (
            neighbours.on_lost,
            lambda *_: None,
        )  # it sleeps, and hears nobody
        frozen = self._channels()
        for channel in frozen:
            await channel._send_lock.acquire()
            channel._writer.transport.pause_reading()

        def thaw() -> None:
            self.listener._welcome = welcome  # type: ignore[method-assign]
            goes_on.set()
            neighbours.on_lost = lost
            for channel in frozen:
                channel._send_lock.release()
                if channel.is_open:
                    channel._writer.transport.resume_reading()

        self._thaw = thaw

    def thaw(self) -> None:
        """As SIGCONT: what was about to leave leaves now, what came meanwhile is read."""
        self.is_dead = False
        self._thaw()

    def hang(self) -> None:
        """The compute thread stays in its next step, while the network side goes on."""
        engine = self.compute._engine
        assert engine is not None
        step, self.goes_on = engine.step, threading.Event()

        def hanging(*pieces: Any, **options: Any) -> Any:
            self.goes_on.wait()
            return step(*pieces, **options)

        engine.step = hanging  # type: ignore[method-assign]

    @contextmanager
    def held(self, tokens: int, makes_room: Callable[[Key], None]) -> Iterator[None]:
        """Inside, a last stage draws no answer's token from number `tokens` on.

        `makes_room` is told which request waits: others round its ring are not to wait for it.
        """
        compute, ends = self.compute, asyncio.Event()

        def after_it(draw: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def waits(
                request: RequestSpec, x: Any, sampler: Sampler, *more: Any, **how: Any
            ) -> Any:
                if sampler.step >= tokens and not ends.is_set():
                    makes_room(request.key)
                    await ends.wait()
                return await draw(request, x, sampler, *more, **how)

            return waits

        compute.token, compute.tokens = (  # type: ignore[method-assign]
            after_it(compute.token),
            after_it(compute.tokens),
        )
        try:
            yield
        finally:
            del compute.token, compute.tokens
            ends.set()

    def reset(self, peer: str | None = None) -> int:
        """Break the streams that others opened to us, all or those of one peer, as a network may;
        says how many.
        """
        broken = [c for c in self.listener.channels if peer is None or c.peer == peer]
        for channel in broken:
            channel._writer.transport.abort()
        return len(broken)


def greedy(max_new_tokens: int) -> t.SamplingParams:
    return t.SamplingParams(max_new_tokens=max_new_tokens)


@cache
def _whole(model_dir: Path) -> Any:
    from core.engine.model.config_facts import read_config
    from core.engine.weights.load_shard import load_shard
    from core.engine.weights.shape import layer_count

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

    from core.engine.sampling.grammar import grammar_of
    from core.engine.sampling.sampling import Sampler, sample_batch
    from core.engine.sampling.stops import AnswerEnding

    shard = _whole(model_dir)
    cache = shard.new_cache()
    tokens: list[int] = []
    tokenizer = Tokenizer(model_dir) if sampling.stop or sampling.grammar else None
    sampler = Sampler(sampling, index, ids, eos_ids, grammar_of(sampling, ids, tokenizer))
    ending = AnswerEnding(sampling, eos_ids, tokenizer, ids)
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
