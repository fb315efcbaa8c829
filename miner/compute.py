"""How does one thread serve many requests?

The thread owns the engine; nothing else touches it. Whoever calls joins the line-up, and whatever waits there when the thread is
free runs as one batch: steps of different requests, jobs and callers share each pass over the weights.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from core.batching.lineup import Lineup
from core.batching.times import StepTimes
from core.protocol.errors import CheckFailed, HeadraceError, UsageError
from core.runtime.logs import get_logger
from miner.jobs import CHUNK_TOKENS
from miner.machine import held_up_s
from miner.memory import Promises
from miner.numbers import EngineNumbers
from miner.pace import Pace, entry
from miner.prefixes import Chain, note_run, sort_out
from miner.stepper import Drawn, Stepped, Work, enters_as_ids, leaves_as_logits, run_batch
from miner.tiers import SecondTier, choose_offload

if TYPE_CHECKING:
    from core.batching.batch_former import Batch
    from core.batching.tickets import Tickets
    from core.engine.blocks import Shard
    from core.engine.sampling import Sampler
    from core.engine.sizing import Offload
    from core.protocol.types import LayerRange
    from miner.stepper import Engine

T = TypeVar("T")
Key = tuple[str, int]
"""(order hash, request index)."""
Rows = bytes | memoryview | Sequence[int]

MAX_ROWS = 256
#: Who brings more while so many rows wait is asked to wait.
MAX_WAITING_ROWS = 4096
KV_BYTES = 64 * 2**20
#: Of these, how much may keep prompts for whoever comes with the same.
PREFIX_SHARE = 0.25
#: Between two looks at a running step; after longer it counts as new.
LOOK_S = 2.5
#: A step may take this long to end when the thread is asked to.
CLOSE_S = 60.0
_PROBE_ROWS = (1, 4, 16)
_PROBE_STEPS = 4
log = get_logger(__name__)


class _Guest:
    """One request from its first step to its drop; two of the same key never share anything."""

    __slots__ = (
        *("begins", "chain", "company", "end", "ends", "futures", "is_open", "job", "layers"),
        *("left_at_s", "most_rows", "ring"),
    )

    def __init__(
        self,
        job: Hashable,
        ring: Hashable,
        most_rows: int,
        layers: LayerRange | None,
        shard: Shard,
        company: int | None = None,
        owner: str = "",
    ) -> None:
        """`layers` None are all of the shard's; `begins` and `ends`: it takes ids, it gives logits."""
        self.company = company
        self.chain = Chain(owner) if owner else None
        self.job, self.ring, self.most_rows, self.layers = job, ring, most_rows, layers
        self.begins = enters_as_ids(shard, layers)
        self.ends = leaves_as_logits(shard, layers)
        self.end = 0  # positions submitted
        self.futures: list[asyncio.Future[Any]] = []  # of steps that are not done
        self.is_open = False  # in the engine
        self.left_at_s = 0.0  # when the step that carries a trace ended


class _Look:
    """Somebody saw a step run: since when, and how long the thread had waited for a processor by then."""

    __slots__ = ("held_up_s", "number", "seen_s", "since_s")

    def __init__(self, number: int, now_s: float, held_up_s: float) -> None:
        self.number, self.since_s, self.seen_s, self.held_up_s = number, now_s, now_s, held_up_s


class Compute:
    """A shard behind one thread."""

    def __init__(
        self,
        *,
        threads: int = 1,
        on_step: Callable[[Stepped, int], None] | None = None,
    ) -> None:
        """`on_step` hears of every batch, and how many of its steps were prompts, in the compute thread."""
        self.pace = Pace(max_rows=MAX_ROWS)
        self.busy_s = self.idle_s = 0.0  # idle: while requests were open
        self.steps = self.stepped_rows = self.prefix_tokens = 0
        #: Whether a request has the same bits in any company here: tried with every shard; None while there is none.
        self.same_bits: bool | None = None
        self._swapped = 0, 0.0  # bytes and seconds of shards that were unloaded
        self._threads, self._on_step = threads, on_step
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guests: dict[Key, _Guest] = {}
        self._new: list[tuple[_Guest, Work]] = []
        self._room = asyncio.Event()
        self._room.set()
        # Shared with the thread, under the condition's lock:
        self._changed = threading.Condition()
        self._engine: Engine | None = None
        self._promises: Promises | None = None
        self._lineup: Lineup[Work] | None = None
        self._dropped: deque[tuple[_Guest, asyncio.Future[None]]] = deque()
        self._errands: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
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
        """Milliseconds per layer of a step of so many rows; 0 before anything was measured."""
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
        return self._lineup.in_lobby if self._lineup is not None else 0

    @property
    def requests(self) -> int:
        """Requests that are here, running or waiting."""
        return len(self._guests)

    def company(self, key: Key) -> int | None:
        """The group in which a request has its pages, whose requests leave here together; None where there are no groups."""
        guest, promises = self._guests.get(key), self._promises
        if guest is None or not guest.is_open or promises is None or promises.engine.groups < 2:
            return None
        return promises.group_of(guest)

    def spare_rows(self, key: Key) -> int:
        """How many guesses may go with each step of a request without anybody's answer coming later (`miner.pace`)."""
        guest = self._guests.get(key)
        return 0 if guest is None else self.pace.spare_rows(guest.ring)

    def is_waiting(self, key: Key) -> bool:
        """Whether a request waits here for memory, as opposed to for its peers."""
        guest, lineup = self._guests.get(key), self._lineup
        return guest is not None and lineup is not None and lineup.is_in_lobby(guest)

    def running_s(self) -> tuple[float, float]:
        """Seconds for which the step that runs has been seen to run, and those that were to be expected; 0, 0 between steps.

        What other programs held up is left out. A step that nobody looked at for some seconds is new: we may have slept.
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

    def numbers(self) -> EngineNumbers:
        """All that is counted and measured here."""
        engine, rings = self._engine, self.pace.rings()
        if engine is None:
            swapped_bytes, waited_s = self._swapped
            return EngineNumbers(
                self.busy_s,
                self.idle_s,
                self.steps,
                self.stepped_rows,
                swapped_bytes=swapped_bytes,
                swap_waited_s=waited_s,
                prefix_tokens=self.prefix_tokens,
            )
        swapped_bytes, waited_s = engine.swapped
        layers = len(engine.shard.layers)
        choice, latency_s = max(
            rings.values(), key=lambda ring: ring[0].tickets, default=(None, 0.0)
        )
        return EngineNumbers(
            busy_s=self.busy_s,
            idle_s=self.idle_s,
            steps=self.steps,
            rows=self.stepped_rows,
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
            swapped_bytes=self._swapped[0] + swapped_bytes,
            swap_waited_s=self._swapped[1] + waited_s,
            prefix_tokens=self.prefix_tokens,
        )

    def longest_request(self, context: int) -> int:
        """Positions, at most `context`, that a single request may have here."""
        return self._promises.longest(context) if self._promises is not None else 0

    # --- loading ---

    async def load(
        self,
        loader: Callable[[], Shard],
        *,
        kv_bytes: int | Callable[[Shard], int] = KV_BYTES,
        model_dir: Path | None = None,
        second: SecondTier | Offload | None = None,
        prefix_share: float = PREFIX_SHARE,
    ) -> Shard:
        """Replace the shard, with so many bytes for keys and values. The old one is freed first; no request may be running.

        `kv_bytes` may be asked of the shard when it is there; what it raises is raised, and nothing is loaded. `second` is
        where more keys and values may lie than that, of requests whose turn is not near; it is measured how much may, unless an
        `Offload` says it. Up to `prefix_share` of `kv_bytes` keep prompts for their owner's next ones (0: none) until requests
        need it, and rows beside them take at most as much again.

        `model_dir` is where an embedding that the head shares may be read from instead of being held twice.
        """
        self._lose_all()
        return await self._run(
            lambda: self._load(loader, kv_bytes, model_dir, second, prefix_share)
        )

    async def unload(self) -> None:
        """Free the shard and every request's memory; steps that wait fail."""
        self._lose_all()
        await self._run(self._unload)

    async def measure(self) -> float:
        """τ: milliseconds per layer of one decode step, the median of a few; larger batches are tried too."""
        await self._run(self._probe)
        return self.tau_ms_per_layer

    async def benchmark(self) -> tuple[float, float]:
        """(teraflops of float32 products, gigabytes per second read), as this thread gets them."""
        return await self._run(_benchmark)

    # --- requests ---

    async def rows(
        self,
        key: Key,
        x: Rows,
        *,
        first: int | None = None,
        most_rows: int = 0,
        ring: Hashable = None,
        trace: list[int] | None = None,
        as_decodes: bool = False,
        guessed: int = 0,
        layers: LayerRange | None = None,
        company: int | None = None,
        owner: str = "",
    ) -> bytes:
        """Feed token ids (first stage) or float32 rows; returns this stage's float32 rows.

        They stand at position `first`, by default after those fed so far. With the first rows of a request, `most_rows`
        says how many it will have at most (0: the context), `layers` which of the shard's it runs (all), and `ring` who
        comes after this stage, by any name: requests of one ring run the same layers. Requests of one `company` come together
        from the stage before (see `company`). What the prompts of one `owner` have in common is computed once
        (`miner.prefixes`). A `trace` is lengthened by this step's numbers. `as_decodes` gives the bits of as
        many steps of one row; the last `guessed` are guesses.
        Raises CheckFailed for rows that hold NaN or infinity, ContextTooLong past the model's context.
        """
        work = self._new_work(
            key,
            x,
            first,
            most_rows,
            ring,
            layers,
            company,
            owner,
            trace=trace,
            as_decodes=as_decodes,
            guessed=guessed,
        )
        result: bytes = await work.future
        return result

    async def token(
        self,
        key: Key,
        x: Rows,
        sampler: Sampler,
        *,
        first: int | None = None,
        most_rows: int = 0,
        ring: Hashable = None,
        trace: list[int] | None = None,
        as_decodes: bool = False,
        layers: LayerRange | None = None,
        company: int | None = None,
        owner: str = "",
    ) -> Drawn:
        """Feed a last stage and draw the sampler's next token from the last position; the sampler is not moved on."""
        work = self._new_work(
            key,
            x,
            first,
            most_rows,
            ring,
            layers,
            company,
            owner,
            draw=sampler,
            trace=trace,
            as_decodes=as_decodes,
        )
        result: Drawn = await work.future
        return result

    async def tokens(
        self,
        key: Key,
        x: Rows,
        sampler: Sampler,
        guesses: Sequence[int],
        *,
        first: int,
        most_rows: int = 0,
        ring: Hashable = None,
        trace: list[int] | None = None,
        as_decodes: bool = True,
        layers: LayerRange | None = None,
        company: int | None = None,
        owner: str = "",
    ) -> list[Drawn]:
        """Feed a last stage a row and those of `guesses`; as many draws as fit, and the one after. The sampler is not moved on."""
        work = self._new_work(
            key,
            x,
            first,
            most_rows,
            ring,
            layers,
            company,
            owner,
            draw=sampler,
            guesses=guesses,
            guessed=len(guesses),
            trace=trace,
            as_decodes=as_decodes,
        )
        result: list[Drawn] = await work.future
        return result

    async def feed(
        self,
        key: Key,
        x: Rows,
        *,
        first: int | None = None,
        most_rows: int = 0,
        ring: Hashable = None,
        as_decodes: bool = False,
        layers: LayerRange | None = None,
        company: int | None = None,
        owner: str = "",
    ) -> None:
        """Feed a last stage what no token follows yet."""
        await self._new_work(
            key, x, first, most_rows, ring, layers, company, owner, as_decodes=as_decodes
        ).future

    async def drop(self, key: Key) -> None:
        """Forget a request: what waits of it is taken out at once, its pages are free when the running step ends."""
        guest = self._guests.pop(key, None)
        if guest is None:
            return
        for future in guest.futures:
            future.cancel()
        self._new = [(g, work) for g, work in self._new if g is not guest]
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._lineup is not None:
                self._lineup.drop(guest)
            self._dropped.append((guest, freed))
            self._changed.notify()
        await freed

    async def carry(self, old: Key, new: Key, rows: int, *, ring: Hashable = None) -> int:
        """Let `new` go on with what is remembered of `old`, which may be the same: its first `rows` positions.

        Returns how many of them are here; the others must be fed again. What waited of `old` is taken out. `ring` is as in `rows`.
        """
        guest = self._guests.get(old)
        if guest is None or (old != new and new in self._guests):
            return 0
        for future in guest.futures:
            future.cancel()
        self._new = [(g, work) for g, work in self._new if g is not guest]
        del self._guests[old]
        self._guests[new], guest.job, guest.ring = guest, new[0], ring
        with self._changed:
            stays = self._lineup is not None and self._lineup.recall(guest, guest.job, ring)
        if not stays:
            await self.drop(new)
            return 0
        guest.end = await self._run(lambda: self._cut_back(guest, rows))
        return guest.end

    def heard(self, key: Key, trace: Sequence[int] | None, *, is_last: bool = False) -> None:
        """A first stage: what left for this request is home, with the trace that it carried; `is_last` if no step follows."""
        guest = self._guests.get(key)
        if guest is None:
            return
        with self._changed:
            if trace and guest.left_at_s:
                self.pace.heard(guest.ring, time.perf_counter() - guest.left_at_s, trace)
                guest.left_at_s = 0.0
            if is_last and self._lineup is not None:
                self._lineup.land(guest)
                self._changed.notify()

    async def room(self) -> None:
        """Wait while more rows wait here than the engine can soon run: the backpressure that senders feel."""
        await self._room.wait()

    def close(self) -> None:
        """Stop the thread and free the shard; whoever waits is cancelled."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the compute thread does not end, and is left behind")
            return
        self._unload()

    # --- in the loop ---

    def _new_work(
        self,
        key: Key,
        x: Rows,
        first: int | None,
        most_rows: int,
        ring: Hashable,
        layers: LayerRange | None,
        company: int | None,
        owner: str,
        **options: Any,
    ) -> Work:
        engine = self._engine
        assert engine is not None, "no shard is loaded"
        guest = self._guests.get(key)
        if guest is None:
            shard = engine.shard
            layers = None if layers == shard.layers else layers
            most = most_rows or shard.context
            guest = _Guest(key[0], ring, most, layers, shard, company, owner)
            self._guests[key] = guest
        count = _count(x, None if guest.begins else engine.shard.hidden)
        if not 0 < count <= CHUNK_TOKENS:
            raise CheckFailed(
                f"a step of {count} rows is refused", f"a frame holds 1 to {CHUNK_TOKENS}"
            )
        at = guest.end if first is None else first
        guest.end = at + count
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        guest.futures = [old for old in guest.futures if not old.done()] + [future]
        work = Work(guest, at, guest.end, guest.job, x, future, layers=guest.layers, **options)
        if not self._new:
            # Steps that came in one frame are submitted in one turn of the loop; they should run in one batch.
            loop.call_soon(self._submit)
        self._new.append((guest, work))
        return work

    def _submit(self) -> None:
        new, self._new = self._new, []
        with self._changed:
            for guest, work in new:
                error = self._admit(guest, work)
                if error is not None and not work.future.done():
                    work.future.set_exception(error)
            self._changed.notify()
            waiting = 0 if self._lineup is None else self._lineup.waiting_rows
        self._look_for_room(waiting)

    def _admit(self, guest: _Guest, work: Work) -> HeadraceError | None:
        engine = self._engine
        if self._lineup is None or self._promises is None or engine is None:
            return HeadraceError("the step is lost", "this stage holds no layers now")
        if guest not in self._lineup:
            if not self._promises.expect(guest, guest.most_rows, guest.layers, guest.company):
                holds = self._promises.capacity_tokens // engine.groups
                return UsageError(
                    f"a request of {guest.most_rows} positions does not fit",
                    f"this stage's memory holds {holds}",
                )
            self._lineup.open(guest, guest.job, guest.ring, is_gated=guest.begins)
        elif work.end > guest.most_rows:
            return CheckFailed(
                "more rows than were announced",
                f"row {work.end - 1} of a request of {guest.most_rows}",
            )
        self._lineup.add(work)
        return None

    def _lose_all(self) -> None:
        lost = HeadraceError("the step is lost", "this stage is about to hold other layers")
        for guest in self._guests.values():
            for future in guest.futures:
                if not future.done():
                    future.set_exception(lost)
        self._guests.clear()
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

    async def _run(self, errand: Callable[[], T]) -> T:
        """Run something in the thread, between steps."""
        loop = self._loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with self._changed:
            self._errands.append((errand, done))
            self._changed.notify()
        return await done

    # --- in the thread ---

    def _work(self) -> None:
        try:
            self._work_until_closed()
        except BaseException:  # nobody computes here any more, and everybody is to notice
            log.exception("the compute thread ended")
            self._running = (self.steps + 1, 0.0)

    def _work_until_closed(self) -> None:
        while True:
            with self._changed:
                idle_since = time.perf_counter()
                while not (self._is_closing or self._dropped or self._errands):
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
                errand = self._errands.popleft() if self._errands else None
            if dropped:
                self._free(dropped)
            if errand is not None:
                self._do(*errand)
            if batch is not None:
                self._step(batch)

    def _form(self) -> Batch[Work] | None:
        lineup = self._lineup
        if lineup is None or self._engine is None:
            return None
        if lineup.gated:
            self._choose_tickets(lineup)
        return lineup.form()

    def _choose_tickets(self, lineup: Lineup[Work]) -> None:
        now_s = time.perf_counter()
        rings: dict[Hashable, list[Tickets[Work]]] = {}
        for name, tickets in lineup.rings():
            if tickets.tickets is not None:  # else it begins elsewhere
                rings.setdefault(name, []).append(tickets)
        for name, groups in rings.items():
            members = [guest for tickets in groups for guest in tickets.members]
            is_alone = any(isinstance(g, _Guest) and g.ends for g in members)
            chosen = self.pace.choice(name, len(members), now_s, is_alone=is_alone)
            if len(groups) == 1:
                groups[0].tickets, groups[0].rows = chosen.tickets, chosen.rows
                continue
            each = -(-chosen.tickets // len(groups))  # all groups together make up the microbatches
            for tickets in groups:
                tickets.tickets = each
                tickets.rows = min(-(-len(tickets.members) // each), MAX_ROWS)

    def _free(self, dropped: deque[tuple[_Guest, asyncio.Future[None]]]) -> None:
        for guest, _ in dropped:
            if self._engine is not None and guest.is_open:
                self._engine.free(guest)
            guest.is_open = False
        with self._changed:
            for guest, _ in dropped:
                if self._promises is not None:
                    self._promises.release(guest)
        self._tell([(freed, None) for _, freed in dropped])

    def _do(self, errand: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        try:
            result = errand()
        except BaseException as error:  # handed to whoever asked
            result = error
        self._tell([(done, result)])

    def _cut_back(self, guest: _Guest, rows: int) -> int:
        engine = self._engine
        if engine is None or not guest.is_open:
            return 0
        rows = min(rows, engine.length(guest))
        try:
            engine.truncate(guest, rows)
        except UsageError:  # a sliding window has let go what would be needed
            engine.free(guest)
            guest.is_open, rows = False, 0
        if guest.chain is not None:
            guest.chain.cut_back(rows)
        return rows

    def _step(self, batch: Batch[Work]) -> None:
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
        self, engine: Engine, lineup: Lineup[Work], works: Sequence[Work]
    ) -> list[Work]:
        """Those that must run; the others are done, or wait for a step that runs the same."""
        sorted_out = sort_out(engine, works)
        if sorted_out.to_wait:
            with self._changed:
                lineup.put_back([w for w in sorted_out.to_wait if not w.future.cancelled()])
        if sorted_out.known:
            self.prefix_tokens += sum(work.tokens for work, _ in sorted_out.known)
            self._tell([(work.future, rows) for work, rows in sorted_out.known])
        return sorted_out.to_run

    def _due_s(self, works: Sequence[Work], prompts: int) -> float:
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
        assert loop is not None, "somebody has asked"
        with self._changed:
            waiting = 0 if self._lineup is None else self._lineup.waiting_rows
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._deliver, outcomes, waiting)

    def _load(
        self,
        loader: Callable[[], Shard],
        kv_bytes: int | Callable[[Shard], int],
        model_dir: Path | None,
        second: SecondTier | Offload | None,
        prefix_share: float,
    ) -> Shard:
        import torch

        from core.engine.compat import make_engine
        from core.engine.prepack import prepack

        self._unload()
        if self._threads:
            torch.set_num_threads(self._threads)
        shard = loader()
        size = kv_bytes if isinstance(kv_bytes, int) else kv_bytes(shard)
        packed = prepack(shard, model_dir=model_dir)
        make = partial(make_engine, shard, prefix_share=prefix_share, least_rows=packed.least_rows)
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
        from core.engine.paged_kv import KvShort

        engine = self._engine
        assert engine is not None, "no shard is loaded"
        for rows in _PROBE_ROWS:
            names = [("probe", number) for number in range(rows)]
            for name in names:
                engine.open(name)
            try:
                times = [_probe_step(engine, names, at) for at in range(_PROBE_STEPS + 1)]
            except KvShort:  # so many never come together here
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

    from core.engine.pieces import Piece

    shard = engine.shard
    x = torch.zeros(1, dtype=torch.int64) if shard.is_first else torch.zeros(1, shard.hidden)
    started = time.perf_counter()
    engine.step([Piece(name, x, position) for name in names])
    return time.perf_counter() - started


def _keeps_bits(engine: Engine) -> bool:
    """Whether a request's rows do not depend on who else is computed, tried on the last layer and what comes after it."""
    from core.engine.batch import BatchEngine
    from core.engine.determinism import is_batch_invariant
    from core.engine.paged_kv import KvShort
    from core.protocol.types import LayerRange

    if not isinstance(engine, BatchEngine):
        return True  # requests run one after the other
    end = engine.shard.layers.end
    try:
        return is_batch_invariant(engine, layers=LayerRange(end - 1, end))
    except KvShort:
        return False  # six short requests never come together here: it cannot be known


def _share(shard: Shard, works: Sequence[Work]) -> float:
    """Which part of the shard's layers these steps ran in the mean: what times of whole steps are told from."""
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


def _benchmark() -> tuple[float, float]:
    import torch

    square = torch.ones(512, 512)
    block = torch.ones(16 * 2**20)  # 64 MiB
    flops = _best_rate(lambda: torch.mm(square, square), 2 * 512**3)
    read = _best_rate(lambda: block.sum(), block.nbytes)
    return flops / 1e12, read / 1e9


def _best_rate(work: Callable[[], object], amount: float, rounds: int = 8) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return amount / best
