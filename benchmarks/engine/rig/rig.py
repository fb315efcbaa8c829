"""How do two stages, their links, their clients and a peer run a load, and when do tokens come?"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.engine.rig.chain import (
    DOMAIN,
    FIRST_CLIENT_KEY,
    FIRST_STAGE_KEY,
    MATCHER_KEY,
    signer,
    spec_of,
)
from benchmarks.engine.rig.child import Child
from benchmarks.engine.rig.steps import Step
from client.jobs.job_run import JobRun
from client.orders.orders import Prompt, PromptBatch, make_order
from client.pipeline.pipeline import Match, PipelinePatience, RequestState
from client.pipeline.streams import Streams
from client.pipeline.verify import RegisteredShards
from core.dispute.trace.families import SPAN_LAYERS
from core.engine.model.config_facts import read_config
from core.engine.weights.shape import describe_model, layer_count
from core.keys.signer import Signer
from core.protocol import signing, wire
from core.protocol import types as t
from core.runtime.network.channel import Peers, StreamIdentity
from devnet.links.service import ask, write_plan
from devnet.ports import free_ports
from tests.town.orders import sign_order, terms

PROMPT_TOKENS = 18
#: Of one job that a stage runs at once (`miner.chain.admission.JOB_REQUESTS`).
PER_JOB = 8
MIB = 2**20


@dataclass(frozen=True)
class Load:
    """So many clients, each with a job of so many requests at once, all of the same lengths."""

    clients: int
    requests: int = 1
    new_tokens: int = 24
    prompt_tokens: int = PROMPT_TOKENS

    @classmethod
    def offline(cls, sequences: int, new_tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> Load:
        """Sequences that nobody waits for, in as few jobs as stages take at once."""
        assert sequences % PER_JOB == 0
        return cls(sequences // PER_JOB, PER_JOB, new_tokens, prompt_tokens)


@dataclass(frozen=True)
class Ran:
    """What a load came to: times and tokens of each sequence, steps and other time of each stage.

    `roots` are what every stage signed of its rows, for each sequence.
    """

    times: list[list[float]]
    tokens: list[list[int]]
    steps: list[list[Step]]
    spent: list[dict[str, float]]
    roots: list[list[str]]


@dataclass(frozen=True)
class Client:
    """One client with its job, and what it hears of every request."""

    job: JobRun
    key: Signer
    job_id: str
    order_hash: str
    times: list[list[float]]
    tokens: list[list[int]]


class Rig:
    """An async context manager. Stages run in processes with one compute thread each."""

    def __init__(
        self,
        folder: Path,
        cuts: Sequence[int],
        *,
        max_requests: int = 512,
        kv_bytes: int = 1024 * MIB,
        groups: int = 0,
        peer: bool = True,
        guesses: bool = False,
        layers: Sequence[tuple[int, int]] | None = None,
        emulate: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """`cuts` are the layers at which a stage begins; `layers` names all stages instead.

        `kv_bytes` is what a stage has beside its weights; with `groups` of requests that take turns
        in it, keys and values of the others lie in a second tier. `guesses` are made ahead, as by a
        miner. `emulate` slows each stage down (`stage_process.Spec`).
        """
        self.folder = folder
        bounds = [0, *cuts, layer_count(read_config(folder))]
        self.layers = list(itertools.pairwise(bounds)) if layers is None else list(layers)
        self._emulate = emulate
        self._max_requests, self._kv_bytes, self._wants_peer = max_requests, kv_bytes, peer
        self._guesses, self._groups = guesses, groups
        self.stages: list[Child] = []
        self._generate: Child | None = None
        self._stack = AsyncExitStack()
        self._matcher = Peers(StreamIdentity(signer(MATCHER_KEY), DOMAIN))
        self._nonces = itertools.count(1)
        self._keys = itertools.count(FIRST_CLIENT_KEY)
        self._links_file = Path()

    async def __aenter__(self) -> Self:
        scratch = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-rig-"))
        )
        self._links_file = scratch / "links.json"
        spec_of(self.folder)  # hashes the weights once, before stages ask for the same
        try:
            starting = [
                self._start_stage(i, layers, scratch) for i, layers in enumerate(self.layers)
            ]
            started = await asyncio.gather(*starting, return_exceptions=True)
            for failure in started:
                if isinstance(failure, BaseException):
                    raise failure
            self.stages = [child for child in started if isinstance(child, Child)]
            await self._start_links()
            if self._wants_peer:
                module = "benchmarks.engine.rig.generate_process"
                self._generate = await Child.start(module, {"model": str(self.folder)})
                self._stack.push_async_callback(self._generate.stop)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._matcher.close()
        await self._stack.aclose()

    def shard_bytes(self, stage: int) -> int:
        """What the weights of a stage take."""
        return describe_model(self.folder).shard_bytes(*self.layers[stage])

    # --- ours ---

    async def run(self, load: Load, *, latency_ms: float | None = None) -> Ran:
        """Run a load to its end; with a latency, over links of that many ms one way."""
        endpoints = self.endpoints(latency_ms)
        clients = [await self.client(load, endpoints) for _ in range(load.clients)]
        await self.take()
        try:
            outcomes = await asyncio.gather(*(client.job.run() for client in clients))
        finally:
            await asyncio.gather(*(client.job.close() for client in clients))
        for outcome in outcomes:
            for error in outcome.unfinished.values():
                raise error
        taken = await self.take()
        return Ran(
            [times for client in clients for times in client.times],
            [tokens for client in clients for tokens in client.tokens],
            [steps for steps, _ in taken],
            [spent for _, spent in taken],
            [
                _signed_roots(outcome.finished[index])
                for outcome in outcomes
                for index in range(load.requests)
            ],
        )

    def endpoints(
        self, latency_ms: float | None, each_ms: Sequence[float] | None = None
    ) -> list[str]:
        """Where stages find each other: directly, over links of this latency, or of `each_ms`."""
        if latency_ms is None and each_ms is None:
            return [stage.ready["endpoint"] for stage in self.stages]
        for i, found in enumerate(each_ms or ()):
            ask(self._links_file, do="change", link=f"stage-{i}", changes={"latency_ms": found})
        if latency_ms is None:
            return [link["endpoint"] for link in ask(self._links_file, do="describe")]
        links = ask(self._links_file, do="change", changes={"latency_ms": latency_ms})
        return [link["endpoint"] for link in links]

    async def client(
        self,
        load: Load,
        endpoints: Sequence[str],
        *,
        route: Sequence[int] | None = None,
        streams: Streams | None = None,
    ) -> Client:
        """A new client with a matched job, opened at every stage.

        Stages find each other at `endpoints`. `route` names the stages of its pipeline (all of
        them). Over `streams` it is a job of their owner.
        """
        batch = self._batch(load)
        key = signer(next(self._keys)) if streams is None else streams.identity.signer
        chosen = range(len(self.stages)) if route is None else route
        stages, spans = [self.stages[i] for i in chosen], [self.layers[i] for i in chosen]
        endpoints = [endpoints[i] for i in chosen]
        spec = spec_of(self.folder)
        deadline = int(time.time()) + 3600
        offer = terms(price_in=1, price_out=1, matcher=t.ZERO_ADDRESS, deadline=deadline)
        order = make_order(
            batch, signing.model_id(spec), spec, offer, key.address, next(self._nonces)
        )
        signed = sign_order(order, key)
        plan = [
            t.Stage(operator=stage.ready["operator"], layer_from=start, layer_to=end)
            for stage, (start, end) in zip(stages, spans, strict=True)
        ]
        direct = [stage.ready["endpoint"] for stage in stages]
        for i, stage in enumerate(stages):
            channel = await self._matcher.get(stage.ready["operator"], direct[i])
            proposal = wire.Propose(signed=signed, plan=plan, endpoints=list(endpoints), stage=i)
            answer = (await channel.call(proposal)).message
            if not isinstance(answer, wire.Accepted):
                raise RuntimeError(f"stage {i} refused: {answer}")
        job_id = signing.job_id(DOMAIN, order)
        for stage in stages:
            await stage.ask("match", job=job_id, plan=signing.plan_hash(plan))
        roots = {
            layers: stage.ready["shard_root"] for layers, stage in zip(spans, stages, strict=True)
        }
        times: list[list[float]] = [[] for _ in range(load.requests)]
        tokens: list[list[int]] = [[] for _ in range(load.requests)]

        def note(index: int, step: int, token: int) -> None:
            times[index].append(time.monotonic())
            tokens[index].append(token)

        job = JobRun(
            Match(job_id, signed, tuple(plan), tuple(direct), t.ZERO_HASH),
            batch,
            StreamIdentity(key, DOMAIN) if streams is None else streams.identity,
            RegisteredShards(lambda start, end: roots[start, end], SPAN_LAYERS),
            on_token=note,
            on_finish=lambda index, request: None,
            limits=PipelinePatience(in_flight=min(load.requests, PER_JOB), silence_s=120.0),
            streams=streams,
        )
        await job.open()
        return Client(job, key, job_id, signing.order_hash(order), times, tokens)

    async def take(self) -> list[tuple[list[Step], dict[str, float]]]:
        """Steps and time spent of every stage since the last call."""
        answers = await asyncio.gather(*(stage.ask("take") for stage in self.stages))
        return [([Step(*step) for step in a["steps"]], a["spent"]) for a in answers]

    # --- the peer ---

    async def generate(self, batch: int, new_tokens: int, *, threads: int = 1) -> Ran:
        """The same prompts through one process's `generate`."""
        assert self._generate is not None, "made without a peer"
        prompts = [list(ids) for ids in self._prompts(batch, PROMPT_TOKENS)]
        answer = await self._generate.ask(
            "generate", prompts=prompts, new_tokens=new_tokens, threads=threads
        )
        return Ran([answer["times_s"]] * batch, answer["tokens"], [], [], [])

    # --- inside ---

    async def _start_stage(self, index: int, layers: tuple[int, int], scratch: Path) -> Child:
        child = await Child.start(
            "benchmarks.engine.rig.stage_process",
            {
                "model": str(self.folder),
                "layers": layers,
                "key": FIRST_STAGE_KEY + index,
                "folder": str(scratch),
                "memory_bytes": self._kv_bytes * (2 + self._groups) // 2 + self.shard_bytes(index),
                "kv_bytes": self._kv_bytes,
                "groups": self._groups,
                "max_requests": self._max_requests,
                "guesses": self._guesses,
                "emulate": self._emulate[index] if self._emulate else None,
            },
        )
        self._stack.push_async_callback(child.stop)
        return child

    async def _start_links(self) -> None:
        ports = free_ports(len(self.stages))
        links = {
            f"stage-{i}": {"listen": f"127.0.0.1:{port}", "to": stage.ready["endpoint"]}
            for i, (port, stage) in enumerate(zip(ports, self.stages, strict=True))
        }
        write_plan(self._links_file, links, {})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "devnet.links.service",
            str(self._links_file),
            env=dict(os.environ),
        )

        async def stop() -> None:
            process.terminate()
            await process.wait()

        self._stack.push_async_callback(stop)
        async with asyncio.timeout(30):
            while "control" not in self._links_file.read_text():
                await asyncio.sleep(0.05)

    def _batch(self, load: Load) -> PromptBatch:
        sampling = t.SamplingParams(max_new_tokens=load.new_tokens)
        return PromptBatch.of(
            [
                Prompt(str(i), ids, sampling, i.to_bytes(32, "big"))
                for i, ids in enumerate(self._prompts(load.requests, load.prompt_tokens))
            ]
        )

    def _prompts(self, count: int, tokens: int) -> list[tuple[int, ...]]:
        vocab = spec_of(self.folder).vocab
        return [
            tuple(10 + (7919 * i + 104_729 * j) % (vocab - 10) for j in range(tokens))
            for i in range(count)
        ]


def _signed_roots(request: RequestState) -> list[str]:
    receipts = [signed for _, signed in sorted(request.receipts.items())]
    return [leaf.out_root for signed in receipts for leaf in signed.leaves]
