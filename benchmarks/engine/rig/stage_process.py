"""How does one miner serve without chain and swarm?

The product's stage, compute thread, streams, store and signatures, put together as by
`miner.daemon.daemon`; the chain is a list of jobs and nothing is announced.
`python -m benchmarks.engine.rig.stage_process SPEC` serves until its input closes; `main` serves
the same from a warm interpreter.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.engine.rig.chain import DOMAIN, RichChain, signer, spec_of
from benchmarks.engine.rig.child import keep_stdout, obey, say
from benchmarks.engine.rig.steps import Spent, StepLog
from core.batching.ring import MicrobatchChoice
from core.dispute.trace.families import SPAN_LAYERS
from core.protocol import signing
from core.protocol import types as t
from core.protocol.types import JobState
from core.runtime import logs
from core.runtime.clock import SystemClock
from core.runtime.garbage import look_seldom, pass_over_what_is_here
from core.runtime.network.channel import Listener, Peers, StreamIdentity
from core.runtime.network.pulse import Beat
from miner.chain.onchain import JobNews, MinerChain
from miner.compute.compute import Compute
from miner.daemon import assignment
from miner.records.store import MinerStore
from miner.serving.committed_rows import RootedRows
from miner.serving.job_table import JobTable, MinerTerms
from miner.serving.neighbours import Neighbours
from miner.serving.outbox import Outboxes
from miner.serving.receipts import ReceiptBook
from miner.serving.stage import StageService

if TYPE_CHECKING:
    from miner.compute.stepper import Stepped

_TEND_S = 1.0
_WATCH_S = 0.002


class Spec(msgspec.Struct):
    """What a stage is told at its start."""

    model: str  # folder
    layers: tuple[int, int]
    key: int
    folder: str  # for its database
    memory_bytes: int
    max_requests: int
    kv_bytes: int | None = None  # of that for keys and values; None: what the weights leave
    #: Of requests whose keys and values take turns there; the others' lie in a second tier.
    groups: int = 0
    threads: int = 1
    guesses: bool = False  # of tokens, ahead
    #: Milliseconds that a pass lasts at least: in all, by prompt token, decode step, position read.
    emulate: tuple[float, float, float, float] | None = None
    span_layers: int = SPAN_LAYERS  # between two boundaries that it signs
    control: str = ""  # a named pipe with what is asked, instead of the input


class StageProcess:
    """The stage and what is measured at it."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._steps, self._spent = StepLog(), Spent()
        self._most_inside = 0
        self._jobs, self._signer = RichChain(), signer(spec.key)
        self._chain = MinerChain(self._jobs, self._signer.address, SystemClock())
        for name in ("append", "hash", "root"):
            self._spent.watch(RootedRows, name, "hashing rows")
        self._spent.watch(signing, "sign", "signing")
        self._spent.watch(signing, "is_signed_by", "checking signatures")

    async def serve(self) -> None:
        spec, folder = self._spec, Path(self._spec.model)
        model_spec = spec_of(folder)
        model_id = signing.model_id(model_spec)
        model = assignment.open_model(
            folder.name, model_id, model_spec, folder, span_layers=spec.span_layers
        )
        store = MinerStore(Path(spec.folder) / f"stage-{spec.key}.sqlite")
        self._book = ReceiptBook(store, self._signer, DOMAIN, self._chain.now_s)
        terms = MinerTerms(
            operator=self._signer.address,
            domain=DOMAIN,
            model_id=model_id,
            spec=model_spec,
            price_in=1,
            price_out=1,
            max_requests=spec.max_requests,
        )
        self._compute = Compute(threads=spec.threads, on_step=self._note_step)
        identity = StreamIdentity(self._signer, DOMAIN)
        peers = Peers(identity)
        links = Outboxes(peers)
        table = JobTable(terms, self._book, self._chain, time.monotonic)
        self._table = table
        neighbours = Neighbours(Peers(identity), Beat(), SystemClock())
        self._stage = StageService(
            table,
            self._compute,
            links,
            time.monotonic,
            neighbours=neighbours,
            guesses=spec.guesses,
        )
        if spec.emulate is not None:
            last_as_long(spec.emulate)
        if spec.groups:
            take_turns(spec.groups)
        before_bytes = memory_bytes()["VmRSS"]
        # Runs repeat their prompts, and each is to cost what it costs.
        serving = await assignment.load(
            self._compute,
            model,
            t.LayerRange(*spec.layers),
            memory_bytes=spec.memory_bytes,
            kv_bytes=spec.kv_bytes,
            offload_bytes=spec.groups * (spec.kv_bytes or 0) // 2,
            prefix_share=0,
        )
        pass_over_what_is_here()
        # Nobody stops early: every run has the same number of tokens.
        self._stage.serve(replace(serving, eos_ids=frozenset()))
        listener = Listener(identity, self._stage.handle)
        await listener.start("127.0.0.1", 0)
        tending = asyncio.create_task(self._tend())
        say(
            {
                "endpoint": f"127.0.0.1:{listener.port}",
                "operator": self._signer.address,
                "shard_root": serving.shard_root,
                "tau_ms": self._compute.tau_ms_per_layer,
                "before_bytes": before_bytes,
            }
        )
        await obey(self._perform, Path(spec.control) if spec.control else None)
        tending.cancel()
        await self._stage.close()
        await links.close()
        await peers.close()
        await listener.close()
        self._compute.close()
        self._book.close()
        store.close()

    async def _tend(self) -> None:
        while True:
            self._stage.tick()
            await asyncio.sleep(_TEND_S)

    def _note_step(self, done: Stepped, prompts: int) -> None:
        self._steps.add(done, prompts)
        inside = self._compute.requests - self._compute.waiting_requests
        self._most_inside = max(self._most_inside, inside)

    async def _perform(self, request: dict[str, Any]) -> Mapping[str, Any]:
        match request["do"]:
            case "match":
                self._jobs.told(request["job"], request["plan"])
                return {}
            case "take":
                return {
                    "steps": self._steps.take(),
                    "spent": self._spent.take(),
                }
            case "memory":
                metrics = self._compute.metrics()
                return {
                    **memory_bytes(),
                    "kv_tokens": metrics.kv_tokens,
                    "kv_capacity_tokens": metrics.kv_capacity_tokens,
                    "microbatches": metrics.microbatches,
                    "swap_waited_s": metrics.swap_waited_s,
                    "most_inside": self._most_inside,
                    "active": self._table.active_requests,
                    "jobs": len(self._table.jobs),
                }
            case "empty":  # when does the last page come free?
                deadline = time.monotonic() + request["within_s"]
                while self._compute.kv_tokens and time.monotonic() < deadline:
                    await asyncio.sleep(_WATCH_S)
                return {"at_s": time.monotonic(), "kv_tokens": self._compute.kv_tokens}
            case "settle":  # the jobs are paid on chain: nothing of them need be remembered
                for job in request["jobs"]:
                    await self._table.hear(JobNews(job, JobState.SETTLED))
                self._stage.tick()
                return {}
            case "tickets":  # so many microbatches, instead of what the stage measures
                fixed = request["tickets"]
                self._compute.pace.choice = (  # type: ignore[method-assign]
                    lambda ring, active, now_s, is_alone: MicrobatchChoice(
                        fixed, -(-active // fixed)
                    )
                )
                return {}
        raise ValueError(f"a stage cannot {request['do']}")


def last_as_long(emulate: tuple[float, float, float, float]) -> None:
    """From now on engines compute, then sleep until a pass has lasted as long as it should."""
    from core.engine.batch import compat

    make_engine, (a_ms, b_ms, c_ms, d_ms) = compat.make_engine, emulate

    def slowed(*arguments: Any, **options: Any) -> Any:
        engine = make_engine(*arguments, **options)
        step = engine.step

        def slow_step(pieces: Any, **how: Any) -> Any:
            began = time.perf_counter()
            outs = step(pieces, **how)
            rows = [(len(piece.x), piece.position) for piece in pieces]
            decodes = [first + 1 for count, first in rows if count == 1 and first]
            prompt = sum(count for count, first in rows) - len(decodes)
            read = sum(decodes) + sum(first for count, first in rows if count > 1)
            due_s = (a_ms + b_ms * prompt + c_ms * len(decodes) + d_ms * read) / 1e3
            time.sleep(max(0.0, due_s - (time.perf_counter() - began)))
            return outs

        engine.step = slow_step
        return engine

    compat.make_engine = slowed


def take_turns(groups: int) -> None:
    """From now on a second tier takes `groups`, half of hot memory for each of two at a time."""
    from core.engine.memory.sizing import Offload
    from miner.compute import compute

    def chosen(make: Any, hot_bytes: int, second: Any) -> Offload:
        return Offload(groups, 0.5)

    compute.choose_offload = chosen


def memory_bytes() -> dict[str, int]:
    """What this process holds in memory, now and at most."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM", "RssAnon", "RssFile"):
            fields[name] = int(value.split()[0]) * 1024
    return fields


def main() -> int:
    """Be the stage that the command line describes, to its end."""
    look_seldom()
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    keep_stdout()
    logs.set_up("stage", form="json", folder=Path(spec.folder) / f"logs-{spec.key}")
    asyncio.run(StageProcess(spec).serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
