"""How does one thread serve many requests?

The thread owns the engine; nothing else touches it. A caller's step joins the line-up, and what
waits there when the thread is free runs as one batch: steps of different requests, jobs and callers
share each pass over the weights.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from core.batching.chunks import CHUNK_TOKENS
from core.batching.lineup import Lineup
from core.batching.times import StepTimes
from core.protocol.errors import CheckFailed, HeadraceError, UsageError
from core.runtime.logs import get_logger
from miner.compute.memory import Promises
from miner.compute.pace import Pace, entry
from miner.compute.prefixes import ChunkChain, note_run, sort_out
from miner.compute.stepper import (
    DrawnToken,
    Stepped,
    StepWork,
    enters_as_ids,
    leaves_as_logits,
    run_batch,
)
from miner.compute.tiers import SecondTier, choose_offload
from miner.records.machine import held_up_s
from miner.records.metrics import EngineMetrics

if TYPE_CHECKING:
    from core.batching.batch_former import StepBatch
    from core.batching.tickets import Tickets
    from core.engine.memory.sizing import Offload
    from core.engine.model.blocks import ModelShard
    from core.engine.sampling.sampling import Sampler
    from core.protocol.types import LayerRange
    from miner.compute.stepper import Engine

T = TypeVar("T")
Key = tuple[str, int]
"""(order hash, request index)."""
Rows = bytes | memoryview | Sequence[int]

MAX_ROWS = 256
#: Rows that may wait; a sender that brings more is asked to wait.
MAX_WAITING_ROWS = 4096
KV_BYTES = 64 * 2**20
#: Of these, how much may keep prompts for later requests with the same.
PREFIX_SHARE = 0.25
#: Between two looks at a running step; after longer it counts as new.
LOOK_S = 2.5
#: A step may take this long to end when the thread is asked to.
CLOSE_S = 60.0
_PROBE_ROWS = (1, 4, 16)
_PROBE_STEPS = 4
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a request is, as its first rows open it.

    `most_rows` says how many it will have at most (0: the context), `layers` which of the
    shard's it runs (None: all), `ring` by any name the stages after this one: requests of one
    ring run the same layers. Requests of one `group_before` come together from the stage before
    (see `Compute.group`). What the prompts of one `owner` have in common is computed once
    (`miner.compute.prefixes`).
    """

    key: Key
    most_rows: int = 0
    ring: Hashable = None
    layers: LayerRange | None = None
    group_before: int | None = None
    owner: str = ""


class _OpenRequest:
    """One request from its first step to its drop; two of the same key never share anything."""

    __slots__ = (
        "begins",
        "chain",
        "end",
        "ends",
        "futures",
        "group_before",
        "is_open",
        "job",
        "layers",
        "left_at_s",
        "most_rows",
        "ring",
    )

    def __init__(self, spec: RequestSpec, shard: ModelShard) -> None:
        """`begins` and `ends`: it takes ids, it gives logits."""
        self.job, self.ring = spec.key[0], spec.ring
        self.most_rows = spec.most_rows or shard.context
        self.layers = None if spec.layers == shard.layers else spec.layers
        self.group_before = spec.group_before
        self.chain = ChunkChain(spec.owner) if spec.owner else None
        self.begins = enters_as_ids(shard, self.layers)
        self.ends = leaves_as_logits(shard, self.layers)
        self.end = 0  # positions submitted
        self.futures: list[asyncio.Future[Any]] = []  # of steps that are not done
        self.is_open = False  # in the engine
        self.left_at_s = 0.0  # when the step that carries a trace ended


class _Look:
    """The running step: since when it is seen, and how long the thread had no processor by then."""

    __slots__ = ("held_up_s", "number", "seen_s", "since_s")

    def __init__(self, number: int, now_s: float, held_up_s: float) -> None:
        self.number, self.since_s, self.seen_s, self.held_up_s = number, now_s, now_s, held_up_s


class Compute:
    """A shard behind one thread."""

    def __init__(
        self, *, threads: int = 1, on_step: Callable[[Stepped, int], None] | None = None
    ) -> None:
        """`on_step` hears of every batch and how many of its steps were prompts, in the thread."""
        self.pace = Pace(max_rows=MAX_ROWS)
        self.busy_s = self.idle_s = 0.0  # idle: while requests were open
        self.steps = self.stepped_rows = self.prefix_tokens = 0
        #: Whether a request has the same bits with any others here: tried with every shard; None
        #: while there is none.
        self.same_bits: bool | None = None
        self._swapped = 0, 0.0  # bytes and seconds of shards that were unloaded
        self._threads, self._on_step = threads, on_step
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: dict[Key, _OpenRequest] = {}
        self._new: list[tuple[_OpenRequest, StepWork]] = []
        self._room = asyncio.Event()
        self._room.set()
        # Shared with the thread, under the condition's lock:
        self._changed = threading.Condition()
        self._engine: Engine | None = None
        self._promises: Promises | None = None
        self._lineup: Lineup[StepWork] | None = None
        self._dropped: deque[tuple[_OpenRequest, asyncio.Future[None]]] = deque()
        self._calls: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._is_closing = False
        self._running: tuple[int, float] | None = None  # the step's number and its expected seconds
        self._prompt_times = StepTimes()
        self._look: _Look | None = None
        self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self._thread.start()

    # --- what it holds ---

    @property
    def tau_ms_per_layer(self) -> float:
        """τ: milliseconds per layer of a decode step of one row, from the steps run so far."""
        return self.tau_ms(1)

    def tau_ms(self, rows: int) -> float:
        """Milliseconds per layer of a step of `rows` rows; 0 before anything was measured."""
        engine = self._engine
        return (
            0.0 if engine is None else self.pace.own.seconds(rows) * 1e3 / len(engine.shard.layers)
        )

    @property
    def kv_tokens(self) -> int:
        """Positions that running requests hold in memory."""
        return self._promises.used_tokens if self._promises is not None else 0

    @property
    def kv_free_tokens(self) -> int:
        """Positions that no request has been promised."""
        return self._promises.free_tokens if self._promises is not None else 0

    @property
    def kv_capacity_tokens(self) -> int:
        return self._promises.capacity_tokens if self._promises is not None else 0

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for memory."""
        return self._lineup.waiting_requests if self._lineup is not None else 0

    @property
    def requests(self) -> int:
        """Requests that are here, running or waiting."""
        return len(self._requests)

    def group(self, key: Key) -> int | None:
        """The group of a request's pages, which leaves here together; None without groups."""
        request, promises = self._requests.get(key), self._promises
        if request is None or not request.is_open or promises is None or promises.engine.groups < 2:
            return None
        return promises.group_of(request)

    def spare_rows(self, key: Key) -> int:
        """Guesses that may go with each step of a request and delay no other answer."""
        request = self._requests.get(key)
        return 0 if request is None else self.pace.spare_rows(request.ring)

    def is_waiting(self, key: Key) -> bool:
        """Whether a request waits here for memory, as opposed to for its peers."""
        request, lineup = self._requests.get(key), self._lineup
        return request is not None and lineup is not None and lineup.is_waiting(request)

    def running_s(self) -> tuple[float, float]:
        """Seconds for which the step that runs has been seen to run, and those that were to be
        expected; 0, 0 between steps. What other programs held up is left out. A step that nobody
        looked at for some seconds is new: we may have slept.
        """
        running, now_s = self._running, time.monotonic()
        if running is None:
            self._look = None
            return 0.0, 0.0
        number, due_s = running
        held_s, look = held_up_s(self._thread.native_id or 0), self._look
        if look is None or look.number != number or now_s - look.seen_s > LOOK_S:
            look = self._look = _Look(number, now_s, held_s)
        look.seen_s = now_s
        return max(0.0, now_s - look.since_s - (held_s - look.held_up_s)), due_s

    def metrics(self) -> EngineMetrics:
        """What is counted and measured here."""
        engine, rings = self._engine, self.pace.rings()
        swapped_bytes, waited_s = self._swapped
        counted = EngineMetrics(
            self.busy_s,
            self.idle_s,
            self.steps,
            self.stepped_rows,
            swapped_bytes=swapped_bytes + (engine.swapped[0] if engine else 0),
            swap_waited_s=waited_s + (engine.swapped[1] if engine else 0.0),
            prefix_tokens=self.prefix_tokens,
        )
        if engine is None:
            return counted
        layers = len(engine.shard.layers)
        choice, latency_s = max(
            rings.values(), key=lambda ring: ring[0].tickets, default=(None, 0.0)
        )
        return replace(
            counted,
            waiting_requests=self.waiting_requests,
            kv_tokens=self.kv_tokens,
            kv_free_tokens=self.kv_free_tokens,
            kv_capacity_tokens=self.kv_capacity_tokens,
            tau_ms_by_rows={
                rows: round(seconds * 1e3 / layers, 4)
                for rows, seconds in self.pace.own.by_rows().items()
            },
            microbatches=choice.tickets if choice else 0,
            microbatch_rows=choice.rows if choice else 0,
            ring_latency_s=latency_s,
            kv_bytes=engine.held_bytes(),
        )

    def longest_request(self, context: int) -> int:
        """Positions, at most `context`, that a single request may have here."""
        return self._promises.longest(context) if self._promises is not None else 0

    # --- loading ---

    async def load(
        self,
        loader: Callable[[], ModelShard],
        *,
        kv_bytes: int | Callable[[ModelShard], int] = KV_BYTES,
        model_dir: Path | None = None,
        second: SecondTier | Offload | None = None,
        prefix_share: float = PREFIX_SHARE,
        span_layers: int = 0,
    ) -> ModelShard:
        """Replace the shard, with `kv_bytes` for keys and values.

        The old one is freed first; no request may be running. `kv_bytes` may be asked of the shard
        when it is there; what it raises is raised, and nothing is loaded. `second` is where more
        keys and values may lie than that, of requests whose turn is not near; it is measured how
        much may, unless an `Offload` says it. Up to `prefix_share` of `kv_bytes` keep prompts for
        their owner's next ones (0: none) until requests need it, and rows beside them take at most
        as much again. Every `span_layers` of a request's layers there is a boundary inside (0:
        none). `model_dir` is where an embedding that the head shares may be read from instead of
        being held twice.
        """
        self._lose_all()
        return await self._run(
            lambda: self._load(loader, kv_bytes, model_dir, second, prefix_share, span_layers)
        )

    async def unload(self) -> None:
        """Free the shard and every request's memory; steps that wait fail."""
        self._lose_all()
        await self._run(self._unload)

    async def measure(self) -> float:
        """τ: ms per layer of one decode step, the median of a few; larger batches are tried."""
        await self._run(self._probe)
        return self.tau_ms_per_layer

    async def benchmark(
        self, shares: Sequence[tuple[str, int]] = (("cpu", 1),), numerics: str = "float32"
    ) -> tuple[float, float]:
        """As `benchmark_devices`, as this thread gets it."""
        return await self._run(lambda: benchmark_devices(shares, numerics))

    # --- requests ---

    async def rows(
        self,
        request: RequestSpec,
        x: Rows,
        *,
        first: int | None = None,
        trace: list[int] | None = None,
        as_decodes: bool = False,
        guessed: int = 0,
        inside: list[bytes] | None = None,
    ) -> bytes:
        """Feed ids [T] (first stage) or float32 rows [T, D]; returns this stage's rows [T, D].

        They stand at position `first`, by default after those fed so far. A `trace` is lengthened
        by what this step took, `inside` by the rows at each boundary inside. `as_decodes` gives the
        bits of as many steps of one row; the last `guessed` are guesses. The request opens with its
        first rows.
        Raises CheckFailed for rows that hold NaN or infinity, ContextTooLong past the context.
        """
        work = self._new_work(
            request,
            x,
            first,
            trace=trace,
            as_decodes=as_decodes,
            guessed=guessed,
            inside=inside,
        )
        result: bytes = await work.future
        return result

    async def token(
        self,
        request: RequestSpec,
        x: Rows,
        sampler: Sampler,
        *,
        first: int | None = None,
        trace: list[int] | None = None,
        as_decodes: bool = False,
        inside: list[bytes] | None = None,
    ) -> DrawnToken:
        """Feed a last stage rows [T, D] and draw the next token; `sampler` is not moved on."""
        how = {"trace": trace, "as_decodes": as_decodes, "inside": inside}
        work = self._new_work(request, x, first, draw=sampler, **how)
        result: DrawnToken = await work.future
        return result

    async def tokens(
        self,
        request: RequestSpec,
        x: Rows,
        sampler: Sampler,
        guesses: Sequence[int],
        *,
        first: int,
        trace: list[int] | None = None,
        as_decodes: bool = True,
        inside: list[bytes] | None = None,
    ) -> list[DrawnToken]:
        """Feed a row and those of `guesses` [1 + guesses, D]: draws that fit, and one more."""
        work = self._new_work(
            request,
            x,
            first,
            draw=sampler,
            guesses=guesses,
            guessed=len(guesses),
            trace=trace,
            as_decodes=as_decodes,
            inside=inside,
        )
        result: list[DrawnToken] = await work.future
        return result

    async def feed(
        self,
        request: RequestSpec,
        x: Rows,
        *,
        first: int | None = None,
        as_decodes: bool = False,
        inside: list[bytes] | None = None,
    ) -> None:
        """Feed a last stage rows [T, D] that no token follows yet."""
        await self._new_work(request, x, first, as_decodes=as_decodes, inside=inside).future

    async def drop(self, key: Key) -> None:
        """Forget a request; its pages are free when the running step ends."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        for future in request.futures:
            future.cancel()
        self._new = [(g, work) for g, work in self._new if g is not request]
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._lineup is not None:
                self._lineup.drop(request)
            self._dropped.append((request, freed))
            self._changed.notify()
        await freed

    async def carry(self, old: Key, new: Key, rows: int, *, ring: Hashable = None) -> int:
        """Let `new` go on with what is remembered of `old`, which may be the same: its first `rows`
        positions. Returns how many of them are here; the others must be fed again. What waited of
        `old` is taken out. `ring` is as in `rows`.
        """
        request = self._requests.get(old)
        if request is None or (old != new and new in self._requests):
            return 0
        for future in request.futures:
            future.cancel()
        self._new = [(g, work) for g, work in self._new if g is not request]
        del self._requests[old]
        self._requests[new], request.job, request.ring = request, new[0], ring
        with self._changed:
            stays = self._lineup is not None and self._lineup.recall(request, request.job, ring)
        if not stays:
            await self.drop(new)
            return 0
        request.end = await self._run(lambda: self._cut_back(request, rows))
        return request.end

    def heard(self, key: Key, trace: Sequence[int] | None, *, is_last: bool = False) -> None:
        """A first stage: what left is home, with its trace; `is_last` if no step follows."""
        request = self._requests.get(key)
        if request is None:
            return
        with self._changed:
            if trace and request.left_at_s:
                self.pace.heard(request.ring, time.perf_counter() - request.left_at_s, trace)
                request.left_at_s = 0.0
            if is_last and self._lineup is not None:
                self._lineup.land(request)
                self._changed.notify()

    async def wait_for_room(self) -> None:
        """Wait while more rows wait here than the engine can soon run: backpressure."""
        await self._room.wait()

    def close(self) -> None:
        """Stop the thread and free the shard; steps that wait are cancelled."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the compute thread does not end, and is left behind")
            return
        self._unload()

    # --- in the loop ---

    def _new_work(self, spec: RequestSpec, x: Rows, first: int | None, **options: Any) -> StepWork:
        engine = self._engine
        assert engine is not None, "no shard is loaded"
        request = self._requests.get(spec.key)
        if request is None:
            request = self._requests[spec.key] = _OpenRequest(spec, engine.shard)
        count = _count(x, None if request.begins else engine.shard.hidden)
        if not 0 < count <= CHUNK_TOKENS:
            raise CheckFailed(
                f"a step of {count} rows is refused", f"a frame holds 1 to {CHUNK_TOKENS}"
            )
        at = request.end if first is None else first
        request.end = at + count
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        request.futures = [old for old in request.futures if not old.done()] + [future]
        work = StepWork(
            request, at, request.end, request.job, x, future, layers=request.layers, **options
        )
        if not self._new:
            # Steps that came in one frame are submitted in one turn of the loop; they should run in
            # one batch.
            loop.call_soon(self._submit)
        self._new.append((request, work))
        return work

    def _submit(self) -> None:
        new, self._new = self._new, []
        with self._changed:
            for request, work in new:
                error = self._admit(request, work)
                if error is not None and not work.future.done():
                    work.future.set_exception(error)
            self._changed.notify()
            waiting = 0 if self._lineup is None else self._lineup.waiting_rows
        self._look_for_room(waiting)

    def _admit(self, request: _OpenRequest, work: StepWork) -> HeadraceError | None:
        engine = self._engine
        if self._lineup is None or self._promises is None or engine is None:
            return HeadraceError("the step is lost", "this stage holds no layers now")
        if request not in self._lineup:
            if not self._promises.expect(
                request, request.most_rows, request.layers, request.group_before
            ):
                holds = self._promises.capacity_tokens // engine.groups
                return UsageError(
                    f"a request of {request.most_rows} positions does not fit",
                    f"this stage's memory holds {holds}",
                )
            self._lineup.open(request, request.job, request.ring, is_gated=request.begins)
        elif work.end > request.most_rows:
            return CheckFailed(
                "more rows than were announced",
                f"row {work.end - 1} of a request of {request.most_rows}",
            )
        self._lineup.add(work)
        return None

    def _lose_all(self) -> None:
        lost = HeadraceError("the step is lost", "this stage is about to hold other layers")
        for request in self._requests.values():
            for future in request.futures:
                if not future.done():
                    future.set_exception(lost)
        self._requests.clear()
        self._new.clear()

    def _look_for_room(self, waiting_rows: int) -> None:
        if waiting_rows > MAX_WAITING_ROWS:
            self._room.clear()
        elif waiting_rows <= MAX_WAITING_ROWS // 2:
            self._room.set()

    def _deliver(
        self, outcomes: Sequence[tuple[asyncio.Future[Any], Any]], waiting_rows: int
    ) -> None:
        for future, result in outcomes:
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._look_for_room(waiting_rows)

    async def _run(self, call: Callable[[], T]) -> T:
        """Run something in the thread, between steps."""
        loop = self._loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with self._changed:
            self._calls.append((call, done))
            self._changed.notify()
        return await done

    # --- in the thread ---

    def _work(self) -> None:
        try:
            self._work_until_closed()
        except BaseException:  # no step runs any more, and neighbours are to notice
            log.exception("the compute thread ended")
            self._running = (self.steps + 1, 0.0)

    def _work_until_closed(self) -> None:
        while True:
            with self._changed:
                idle_since = time.perf_counter()
                while not (self._is_closing or self._dropped or self._calls):
                    batch = self._form()
                    if batch is not None:
                        break
                    self._changed.wait()
                else:
                    batch = None
                if self._lineup is not None and self._lineup.open_requests:
                    self.idle_s += time.perf_counter() - idle_since
                if self._is_closing:
                    return
                dropped, self._dropped = self._dropped, deque()
                call = self._calls.popleft() if self._calls else None
            if dropped:
                self._free(dropped)
            if call is not None:
                self._do(*call)
            if batch is not None:
                self._step(batch)

    def _form(self) -> StepBatch[StepWork] | None:
        lineup = self._lineup
        if lineup is None or self._engine is None:
            return None
        if lineup.gated:
            self._choose_tickets(lineup)
        return lineup.form()

    def _choose_tickets(self, lineup: Lineup[StepWork]) -> None:
        now_s = time.perf_counter()
        rings: dict[Hashable, list[Tickets[StepWork]]] = {}
        for name, tickets in lineup.rings():
            if tickets.tickets is not None:  # else it begins elsewhere
                rings.setdefault(name, []).append(tickets)
        for name, groups in rings.items():
            members = [request for tickets in groups for request in tickets.members]
            is_alone = any(isinstance(g, _OpenRequest) and g.ends for g in members)
            chosen = self.pace.choice(name, len(members), now_s, is_alone=is_alone)
            if len(groups) == 1:
                groups[0].tickets, groups[0].rows = chosen.tickets, chosen.rows
                continue
            each = -(-chosen.tickets // len(groups))  # all groups together make up the microbatches
            for tickets in groups:
                tickets.tickets = each
                tickets.rows = min(-(-len(tickets.members) // each), MAX_ROWS)

    def _free(self, dropped: deque[tuple[_OpenRequest, asyncio.Future[None]]]) -> None:
        for request, _ in dropped:
            if self._engine is not None and request.is_open:
                self._engine.free(request)
            request.is_open = False
        with self._changed:
            for request, _ in dropped:
                if self._promises is not None:
                    self._promises.release(request)
        self._tell([(freed, None) for _, freed in dropped])

    def _do(self, call: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        try:
            result = call()
        except BaseException as error:  # handed to the caller
            result = error
        self._tell([(done, result)])

    def _cut_back(self, request: _OpenRequest, rows: int) -> int:
        engine = self._engine
        if engine is None or not request.is_open:
            return 0
        rows = min(rows, engine.length(request))
        try:
            engine.truncate(request, rows)
        except UsageError:  # a sliding window has let go what would be needed
            engine.free(request)
            request.is_open, rows = False, 0
        if request.chain is not None:
            request.chain.cut_back(rows)
        return rows

    def _step(self, batch: StepBatch[StepWork]) -> None:
        engine, lineup = self._engine, self._lineup
        assert engine is not None and lineup is not None, "a batch was formed"
        works, chunks = [*batch.decodes, *batch.prefills], {id(work) for work in batch.prefills}
        gone = [work for work in works if work.future.cancelled()]
        if gone:
            works = [work for work in works if not work.future.cancelled()]
            with self._changed:
                for work in gone:
                    lineup.land(work.request)
        if not works:
            return
        for work in works:
            if not work.request.is_open:
                engine.open(work.request, work.request.layers, microbatch=batch.group)
                work.request.is_open = True
        works = self._take_known(engine, lineup, works)
        if not works:
            return
        prompts = sum(id(work) in chunks for work in works)
        started = time.perf_counter()
        self._running = (self.steps, self._due_s(works, prompts))
        done = run_batch(engine, works, batch.group, batch.following)
        self._running = None
        note_run(done.ran)
        self._trace(done, started, prompts)
        self.busy_s += done.seconds
        self.steps += 1
        self.stepped_rows += done.rows
        if done.ran and not prompts:
            self.pace.own.observe(done.rows, done.seconds / _share(engine.shard, done.ran))
        elif done.ran:
            self._prompt_times.observe(done.rows, done.seconds)
        if self._on_step is not None:
            self._on_step(done, prompts)
        with self._changed:
            if done.deferred:
                lineup.put_back([work for work in done.deferred if not work.future.cancelled()])
        self._tell([(work.future, result) for work, result in done.outcomes])

    def _take_known(
        self, engine: Engine, lineup: Lineup[StepWork], works: Sequence[StepWork]
    ) -> list[StepWork]:
        """Those that must run; the others are done, or wait for a step that runs the same."""
        sorted_out = sort_out(engine, works)
        if sorted_out.to_wait:
            with self._changed:
                lineup.put_back([w for w in sorted_out.to_wait if not w.future.cancelled()])
        if sorted_out.known:
            self.prefix_tokens += sum(work.tokens for work, _ in sorted_out.known)
            self._tell([(work.future, rows) for work, rows in sorted_out.known])
        return sorted_out.to_run

    def _due_s(self, works: Sequence[StepWork], prompts: int) -> float:
        """What a step should take; rows that stand for steps of their own count as such."""
        own, rows = self.pace.own, sum(work.tokens for work in works)
        alone_s = own.seconds(1) * sum(work.tokens for work in works if work.as_decodes)
        return alone_s + max(
            own.seconds(rows), self._prompt_times.seconds(rows) if prompts else 0.0
        )

    def _trace(self, done: Stepped, started: float, prompts: int) -> None:
        rows, ended, traced = 0 if prompts else done.rows, time.perf_counter(), set()
        for work in done.ran:
            begins = work.request.begins
            if work.trace is None or not (begins or work.trace):
                continue
            if begins:
                if work.request.ring in traced or not work.is_decode:
                    continue
                traced.add(work.request.ring)
                work.request.left_at_s = ended
            work.trace += entry(rows, started - work.queued_s, done.seconds)

    def _tell(self, outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
        loop = self._loop
        assert loop is not None, "a caller waits"
        with self._changed:
            waiting = 0 if self._lineup is None else self._lineup.waiting_rows
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._deliver, outcomes, waiting)

    def _load(
        self,
        loader: Callable[[], ModelShard],
        kv_bytes: int | Callable[[ModelShard], int],
        model_dir: Path | None,
        second: SecondTier | Offload | None,
        prefix_share: float,
        span_layers: int,
    ) -> ModelShard:
        import torch

        from core.engine.batch.compat import make_engine
        from core.engine.kernels.prepack import prepack

        self._unload()
        if self._threads:
            torch.set_num_threads(self._threads)
        shard = loader()
        size = kv_bytes if isinstance(kv_bytes, int) else kv_bytes(shard)
        packed = prepack(shard, model_dir=model_dir)
        make = partial(
            make_engine,
            shard,
            prefix_share=prefix_share,
            least_rows=packed.least_rows,
            span_layers=span_layers,
        )
        offload = choose_offload(make, size, second) if isinstance(second, SecondTier) else second
        engine = make(kv_bytes=size, offload=offload)
        same_bits = _keeps_bits(engine)
        promises = Promises(engine, CHUNK_TOKENS)
        with self._changed:
            self._engine, self._promises = engine, promises
            self.same_bits = same_bits
            self.pace, self._prompt_times = Pace(max_rows=MAX_ROWS), StepTimes()
            self._lineup = Lineup(
                promises,
                gated=shard.is_first,
                max_rows=MAX_ROWS,
                group_of=promises.group_of,
                joins=self.pace.joins,
            )
        return shard

    def _unload(self) -> None:
        with self._changed:
            engine, self._engine = self._engine, None
            self.same_bits = None
            self._promises = self._lineup = None
        if engine is not None:
            engine.close()
            copied_bytes, waited_s = engine.swapped
            self._swapped = self._swapped[0] + copied_bytes, self._swapped[1] + waited_s

    def _probe(self) -> None:
        from core.engine.memory.paged_kv import KvShort

        engine = self._engine
        assert engine is not None, "no shard is loaded"
        for rows in _PROBE_ROWS:
            names = [("probe", number) for number in range(rows)]
            for name in names:
                engine.open(name)
            try:
                times = [_probe_step(engine, names, at) for at in range(_PROBE_STEPS + 1)]
            except KvShort:  # this many rows never fit together here
                if rows == 1:
                    raise
                return
            finally:
                for name in names:
                    engine.free(name)
            self.pace.own.observe(rows, sorted(times[1:])[_PROBE_STEPS // 2])
        refusal = engine.graphs.refusal if engine.graphs is not None else ""
        if refusal:
            log.warning("every operator of a step is launched by itself", why=refusal)


def _probe_step(engine: Engine, names: Sequence[Hashable], position: int) -> float:
    import torch

    from core.engine.batch.pieces import RequestPiece

    shard = engine.shard
    x = torch.zeros(1, dtype=torch.int64) if shard.is_first else torch.zeros(1, shard.hidden)
    started = time.perf_counter()
    engine.step([RequestPiece(name, x, position) for name in names])
    return time.perf_counter() - started


def _keeps_bits(engine: Engine) -> bool:
    """Whether a request's rows depend on no other's, tried on the last layer and the head."""
    from core.engine.batch.batch import BatchEngine
    from core.engine.batch.determinism import is_batch_invariant
    from core.engine.memory.paged_kv import KvShort
    from core.protocol.types import LayerRange

    if not isinstance(engine, BatchEngine):
        return True  # requests run one after the other
    end = engine.shard.layers.end
    try:
        return is_batch_invariant(engine, layers=LayerRange(end - 1, end))
    except KvShort:
        return False  # six short requests never come together here: it cannot be known


def _share(shard: ModelShard, works: Sequence[StepWork]) -> float:
    """The mean share of the shard's layers in these steps: times of whole steps follow from it."""
    whole = len(shard.layers)
    ran = [whole if work.layers is None else len(work.layers) for work in works]
    return sum(ran) / (whole * len(ran))


def _count(x: Rows, hidden: int | None) -> int:
    if hidden is None:
        return len(x)
    size = memoryview(x).nbytes  # type: ignore[arg-type]
    if size % (4 * hidden):
        raise CheckFailed("activations are refused", f"{size} bytes are not whole rows of {hidden}")
    return size // (4 * hidden)


def benchmark_devices(
    shares: Sequence[tuple[str, int]], numerics: str = "float32"
) -> tuple[float, float]:
    """As `benchmark_device`, of devices by name, with the share of the layers that each will hold.

    A step goes through them one after another, so that together they are as fast as one of them.
    """
    whole = sum(share for _, share in shares)
    rates = [benchmark_device(name, numerics) for name, _ in shares]
    times = [
        [share / whole / rate[n] for (_, share), rate in zip(shares, rates, strict=True)]
        for n in (0, 1)
    ]
    return 1 / sum(times[0]), 1 / sum(times[1])


def benchmark_device(device: str, numerics: str = "float32") -> tuple[float, float]:
    """(teraflops, gigabytes per second read) of a device of torch's; the former of products in what
    a model of these numerics (`formats.FORMATS`) computes in.
    """
    import torch

    from core.engine.weights.formats import format_of

    dtype = getattr(torch, format_of(numerics).compute)
    # What keeps one core busy for a millisecond is nothing to a graphics processor.
    width, numbers = (512, 16 * 2**20) if device == "cpu" else (8192, 256 * 2**20)
    square = torch.ones(width, width, dtype=dtype, device=device)
    block = torch.ones(numbers, device=device)
    # A number of each result is waited for.
    flops = _best_rate(lambda: torch.mm(square, square)[0, 0].item(), 2 * width**3)
    read = _best_rate(lambda: block.sum().item(), block.nbytes)
    return flops / 1e12, read / 1e9


def _best_rate(work: Callable[[], object], amount: float, rounds: int = 8) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return amount / best
