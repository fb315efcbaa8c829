"""How do microbatches take turns in hot memory that is too small for all? (DeServe §4.2)

Hot memory M_KV holds N_B local pools and two global pools G₀ and G₁ of M_G each. While one
microbatch computes in one global pool, the other is written back for the microbatch before and
filled for the next. What is written back is only what a turn has changed: keys and values are
appended, so the rest of their copy in cold memory is still true.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.engine.memory.layout import PageShape
from core.engine.memory.page_copies import move
from core.engine.memory.pages import PAGE_TOKENS, Pages
from core.engine.memory.pool import Content, HotStore, PagePool
from core.protocol.errors import UsageError

_COPY_BYTES = 4 * 2**20
_WHOLE = slice(None)


def global_pool_bytes(bandwidth_bytes_per_s: float, stage_s: float) -> int:
    """M_G = W · T_S: what can be copied while a stage computes (DeServe, formula 2)."""
    return int(bandwidth_bytes_per_s * stage_s)


def microbatch_bytes(hot: int, pool: int, microbatches: int) -> int:
    """M_B' = (M_KV − 2 M_G) / N_B + M_G: what a microbatch can hold (DeServe, formula 1)."""
    if not 0 <= 2 * pool <= hot:
        raise ValueError(f"two global pools of {pool} in a hot memory of {hot}")
    return (hot - 2 * pool) // microbatches + pool


@dataclass(frozen=True)
class ArenaPlan:
    """The pages of one pool: `local` for each of N microbatches, `swapped` in each of G₀ and G₁."""

    microbatches: int
    local: int
    swapped: int

    @property
    def hot_pages(self) -> int:
        """Hot pages in all; one more, page 0, is the padding."""
        return self.microbatches * self.local + 2 * self.swapped

    @property
    def pages_of_microbatch(self) -> int:
        return self.local + self.swapped


def plan_arena(hot_pages: int, swapped: int, microbatches: int) -> ArenaPlan:
    """Formula 1 in pages: what the global pools leave is divided evenly."""
    local = microbatch_bytes(hot_pages, swapped, microbatches) - swapped
    return ArenaPlan(microbatches, local, swapped)


@dataclass
class _Slot:
    """One global pool: whose pages it holds, and whether the copier has finished with it."""

    owner: int | None = None
    ready: threading.Event | None = None


class SwapStore(HotStore):
    """Hot pools with two global pools at their end, a cold tier, and the copier thread between
    them. Page numbers from `resident` on belong to a microbatch; its turn decides where they lie.
    `turn` must be called before a microbatch's pages are read or written by a step.
    """

    def __init__(
        self,
        shapes: Sequence[PageShape],
        plans: Sequence[ArenaPlan],
        dtype: torch.dtype,
        *,
        folder: Path | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`folder` keeps the cold tier in memory-mapped files there, None in ordinary memory.

        The files have no name: nobody else can open them, and nothing is left of them when the
        process ends. Raises UsageError where the folder has no room for all of them.
        """
        device = device or torch.device("cpu")
        self.plans = list(plans)
        hot = [plan.hot_pages + 1 for plan in plans]
        super().__init__(shapes, hot, dtype, [device])
        self._resident = [plan.microbatches * plan.local + 1 for plan in plans]
        self.microbatches = plans[0].microbatches
        self.is_in_files = folder is not None
        self._cold = [
            _cold_pool(shape, plan, dtype, folder)
            for shape, plan in zip(shapes, plans, strict=True)
        ]
        self._dirty = [
            np.zeros((self.microbatches, plan.swapped, PAGE_TOKENS), bool) for plan in plans
        ]
        self._slots = (_Slot(), _Slot())
        self._last = 1
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self.stalled_s = 0.0
        self.copied_bytes = 0
        self.copying_s = 0.0
        self._copier = threading.Thread(target=self._copy_loop, name="kv-copier", daemon=True)
        self._copier.start()

    def close(self) -> None:
        """Stop the copier after what it has begun."""
        self._jobs.put(None)
        self._copier.join()

    def turn(
        self, microbatch: int, used: Callable[[int], list[Pages]], following: int | None = None
    ) -> None:
        """Make this microbatch's pages hot, and start on those of the one that follows.

        `used(m)` gives, for each pool, the swapped pages that microbatch m holds. Waits
        when the copier is not through.
        """
        slot = self._slot_of(microbatch)
        if slot is None:
            pages = used(microbatch)
            if any(len(found) for found in pages):
                slot = 1 - self._last
                self._exchange(slot, microbatch, pages)
        if slot is None:  # all that it has is resident
            slot = self._last
        else:
            self._wait(slot)
            self._last = slot
        if following is not None and following != microbatch and self._slot_of(following) is None:
            pages = used(following)
            if any(len(found) for found in pages):
                self._exchange(1 - slot, following, pages)

    def touched(self, number: int, pages: Pages, in_page: Pages | slice, microbatch: int) -> None:
        is_swapped = pages >= self._resident[number]
        if not is_swapped.any():
            return
        if not isinstance(in_page, slice):
            in_page = np.broadcast_to(in_page, pages.shape)[is_swapped]
        self._dirty[number][microbatch, pages[is_swapped] - self._resident[number], in_page] = True

    def clear(self, number: int, pages: Pages, microbatch: int) -> None:
        super().clear(number, pages, microbatch)
        self.touched(number, pages, _WHOLE, microbatch)

    def physical(self, number: int, pages: Pages, microbatch: int) -> Pages:
        plan, base = self.plans[number], self._resident[number]
        slot = self._slot_of(microbatch)
        if slot != 1:
            assert slot == 0 or (pages < base).all(), f"it is not microbatch {microbatch}'s turn"
            return pages
        return np.where(pages < base, pages, pages + plan.swapped)

    def read(self, number: int, pages: Pages, microbatch: int) -> Content:
        self._settle()
        if self._slot_of(microbatch) is not None:
            return self.pools[number].read_pages(self.physical(number, pages, microbatch))
        base = self._resident[number]
        hot = self.pools[number].read_pages(np.where(pages < base, pages, 0))
        if (pages < base).all():
            return hot
        cold = self._cold[number].read_pages(self._cold_pages(number, pages, microbatch))
        away = torch.from_numpy(np.repeat(pages >= base, self.pools[number].shape.kv_heads))[
            :, None
        ]
        return torch.where(away, cold[0], hot[0]), torch.where(away, cold[1], hot[1])

    def write(self, number: int, pages: Pages, microbatch: int, content: Content) -> None:
        self._settle()
        base = self._resident[number]
        if self._slot_of(microbatch) is not None:
            self.pools[number].write_pages(self.physical(number, pages, microbatch), content)
            self.touched(number, pages, _WHOLE, microbatch)
            return
        heads = self.pools[number].shape.kv_heads
        for pool, mask in ((self.pools[number], pages < base), (self._cold[number], pages >= base)):
            if mask.any():
                rows = torch.from_numpy(np.repeat(mask, heads))
                at = pages[mask]
                if pool is not self.pools[number]:
                    at = self._cold_pages(number, at, microbatch)
                pool.write_pages(at, (content[0][rows], content[1][rows]))

    def _cold_pages(self, number: int, pages: Pages, microbatch: int) -> Pages:
        start = microbatch * self.plans[number].swapped - self._resident[number]
        return np.maximum(pages + start, 0)

    def _slot_of(self, microbatch: int) -> int | None:
        for number, slot in enumerate(self._slots):
            if slot.owner == microbatch:
                return number
        return None

    def _exchange(self, number: int, microbatch: int, pages: list[Pages]) -> None:
        """Have the copier write back what the slot's owner changed, and fetch another's pages."""
        slot = self._slots[number]
        changed: list[npt.NDArray[np.bool_]] = []
        before = slot.owner
        if before is not None:
            for dirty in self._dirty:
                changed.append(dirty[before].copy())
                dirty[before] = False
        wanted = [
            found[found >= base] - base for found, base in zip(pages, self._resident, strict=True)
        ]
        ready = threading.Event()
        slot.owner, slot.ready = microbatch, ready

        def work() -> None:
            try:
                for n, dirty in enumerate(changed):
                    self._write_back(n, number, before or 0, dirty)
                for n, swapped in enumerate(wanted):
                    self._move(n, number, microbatch, swapped, to_cold=False)
            finally:
                ready.set()

        self._jobs.put(work)

    def _write_back(self, n: int, slot: int, microbatch: int, dirty: npt.NDArray[np.bool_]) -> None:
        """Copy positions [swapped pages, 16] of a global pool out: whole pages, or one by one."""
        counts = dirty.sum(axis=1)
        is_most = counts > PAGE_TOKENS // 2
        self._move(n, slot, microbatch, np.flatnonzero(is_most), to_cold=True)
        pages, in_page = np.nonzero(dirty & ~is_most[:, None])
        if not len(pages):
            return
        pool, away = self.pools[n], self._cold[n]
        heads, plan = pool.shape.kv_heads, self.plans[n]

        def rows(first: int) -> Tensor:
            of_heads = (first + pages)[:, None] * heads + np.arange(heads)
            return torch.from_numpy((of_heads * PAGE_TOKENS + in_page[:, None]).reshape(-1))

        hot, cold = rows(self._resident[n] + slot * plan.swapped), rows(microbatch * plan.swapped)
        for near, far, width in (
            (pool.keys, away.keys, pool.shape.key_dim),
            (pool.values, away.values, pool.shape.value_dim),
        ):
            started = time.perf_counter()
            found = near.view(-1, width).index_select(0, hot.to(near.device)).to(far.device)
            far.view(-1, width).index_copy_(0, cold, found)
            self._account(found.nbytes, started)

    def _move(self, n: int, slot: int, microbatch: int, swapped: Pages, *, to_cold: bool) -> None:
        """Copy pages between a global pool and the cold tier, in runs of consecutive numbers."""
        if not len(swapped):
            return
        plan, heads = self.plans[n], self.pools[n].shape.kv_heads
        ids = np.sort(swapped)
        cuts = np.flatnonzero(np.diff(ids) != 1) + 1
        hot_base = self._resident[n] + slot * plan.swapped
        for run in np.split(ids, cuts):
            start, end = int(run[0]), int(run[-1]) + 1
            hot = slice((hot_base + start) * heads, (hot_base + end) * heads)
            at = microbatch * plan.swapped
            cold = slice((at + start) * heads, (at + end) * heads)
            pool, away = self.pools[n], self._cold[n]
            for near, far in ((pool.keys, away.keys), (pool.values, away.values)):
                if to_cold:
                    self._copy(far[cold], near[hot])
                else:
                    self._copy(near[hot], far[cold])

    def _copy(self, target: Tensor, source: Tensor) -> None:
        row_bytes = source.nbytes // len(source)
        step = max(1, _COPY_BYTES // row_bytes)
        for start in range(0, len(source), step):
            part = source[start : start + step]
            started = time.perf_counter()
            move(target[start : start + step], part)
            self._account(part.nbytes, started)

    def _account(self, size_bytes: int, started: float) -> None:
        self.copied_bytes += size_bytes
        self.copying_s += time.perf_counter() - started

    def _copy_loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # told to the compute thread, which waits for it
                self._failure = error

    def _wait(self, number: int) -> None:
        ready = self._slots[number].ready
        if ready is None or ready.is_set():
            self._raise_failure()
            return
        started = time.perf_counter()
        ready.wait()
        self.stalled_s += time.perf_counter() - started
        self._raise_failure()

    def _settle(self) -> None:
        for number in (0, 1):
            self._wait(number)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the copier of KV pages has failed") from self._failure


def _cold_pool(
    shape: PageShape, plan: ArenaPlan, dtype: torch.dtype, folder: Path | None
) -> PagePool:
    pages = plan.microbatches * plan.swapped
    if folder is None:
        return PagePool(shape, max(1, pages), dtype, torch.device("cpu"))
    pool = PagePool(shape, 0, dtype, torch.device("cpu"))
    rows = max(1, pages) * shape.kv_heads
    for name, width in (("keys", pool.keys.shape[1]), ("values", pool.values.shape[1])):
        setattr(pool, name, mapped(folder, rows * width, dtype).view(rows, width))
    return pool


def mapped(folder: Path, size: int, dtype: torch.dtype) -> Tensor:
    """[size] zeros in a nameless file of this folder. Raises UsageError where they do not fit."""
    path = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix="kv-", dir=folder)
        try:
            # A hole that cannot be filled later would end the process at a write.
            os.posix_fallocate(handle, 0, size * dtype.itemsize)
        finally:
            os.close(handle)
        return torch.from_file(path, shared=True, size=size, dtype=dtype)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"{folder} cannot hold keys and values",
            why=str(error),
            next_step="make room there, name another engine.offload_folder, or lower "
            "engine.offload",
        ) from error
    finally:
        if path:
            Path(path).unlink()
