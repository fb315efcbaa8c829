"""Which pages does each row of a pass write and read?

Built once for a run of layers, in numpy, and used by every layer of it. Decode rows attend to their
pages where they lie (`direct`). Where that cannot be they are grouped by how many pages they see,
rounded up to a few sizes: a row's products then have the same shape beside any other rows,
which keeps its bits, and a short request does not pay for a long one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.engine.memory.paged_kv import Held, PagedKv
from core.engine.memory.pages import PAGE_TOKENS, Pages
from core.engine.memory.pool import PagePool
from core.engine.memory.row_attention import SeenRows, is_direct, is_plain, put
from core.engine.model.attention import chunk_rows, decode_rows
from core.engine.model.gates import LayerGates

_LEAST_BLOCKS = 2


@dataclass(frozen=True)
class PlannedRows:
    """Consecutive rows of one request in a pass: `count` positions from `position` on, from row
    `first` on. `as_decodes` attends row by row, as if each had come alone.
    """

    held: Held
    first: int
    count: int
    position: int
    as_decodes: bool


@dataclass(frozen=True)
class _Single:
    """A row that attends alone: the pages it sees [layers, n], where they begin, and its own."""

    row: int
    pages: Pages
    first: int
    position: int


@dataclass
class _PlannedGroup:
    rows: Tensor | None  # None: all rows of the pass, in order
    gather: Sequence[Tensor]  # of each layer, [R·K·n]
    mask: Tensor  # [R·K, 1, S]
    count: int


@dataclass
class _PlannedChunk:
    rows: slice
    gather: Sequence[Tensor] | None  # of each layer, [K·n]; None: it sees itself alone
    first: int
    position: int


@dataclass
class _ClassPlan:
    pool: PagePool
    window: int
    index_of: dict[int, int]
    slots: Sequence[Tensor]  # of each layer, [T·K]
    is_direct: bool
    alone: list[int]  # rows of the pass that attend one by one
    seen: SeenRows | None  # by those rows, where they can look directly
    make_groups: Callable[[], list[_PlannedGroup]]  # of those rows, where they cannot
    chunks: list[_PlannedChunk]

    @cached_property
    def groups(self) -> list[_PlannedGroup]:
        return self.make_groups()

    @cached_property
    def rows(self) -> Tensor:
        return torch.tensor(self.alone, device=self.pool.keys.device)


class PassPlan:
    """Answers the attention calls of layers [start, end) for some rows of one microbatch."""

    def __init__(
        self,
        kv: PagedKv,
        gates: LayerGates,
        rows: Sequence[PlannedRows],
        start: int,
        end: int,
        microbatch: int,
        dtype: torch.dtype,
    ) -> None:
        self._gates = gates
        self._count = sum(r.count for r in rows)
        self._plans: dict[int, _ClassPlan] = {}
        for number, kind in enumerate(kv.classes):
            layers = [layer for layer in kind.layers if start <= layer < end]
            if layers:
                plan = _plan_class(kv, number, layers, rows, self._count, microbatch, dtype)
                self._plans |= dict.fromkeys(layers, plan)

    @property
    def rows(self) -> int:
        """Planned rows, padding left out."""
        return self._count

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, e] → [1, T, H, e] in the running layer."""
        return self.attend_at(self._gates.layer, query, key, value, options)

    def seen_alone(self, start: int, end: int) -> npt.NDArray[np.int64] | None:
        """What `layers.c` needs for layers [start, end) if all rows attend directly, else None."""
        plans = [self._plans[layer] for layer in range(start, end)]
        if any(plan.chunks or plan.seen is None or not plan.is_direct for plan in plans):
            return None
        found = np.empty((end - start, 7), np.int64)
        for row, (layer, plan) in enumerate(zip(range(start, end), plans, strict=True)):
            assert plan.seen is not None
            index = plan.index_of[layer]
            found[row] = (
                plan.pool.keys.data_ptr(),
                plan.pool.values.data_ptr(),
                plan.slots[index].data_ptr(),
                *plan.seen.at(index),
            )
        return found

    def attend_at(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """As `attend`, [1, H, T, d] → [1, T, H, e], for a layer by its number in the shard."""
        plan = self._plans[layer]
        index, pool, count = plan.index_of[layer], plan.pool, self._count
        if plan.is_direct:
            put(pool, plan.slots[index], key[0], value[0])
        else:
            pool.write(plan.slots[index], key[0].transpose(0, 1), value[0].transpose(0, 1))
        by_row, rows = query[0].transpose(0, 1), query.shape[2]  # [T, H, d]
        done: list[tuple[Tensor | None, Tensor]] = []
        if plan.seen is not None and is_plain(options):
            whole = len(plan.alone) == count
            picked = by_row[:count] if whole else by_row.index_select(0, plan.rows)
            out = plan.seen.attend(index, picked, float(options["scaling"]))
            done.append((None if whole else plan.rows, out))
        else:
            for group in plan.groups:
                picked = (
                    by_row[:count] if group.rows is None else by_row.index_select(0, group.rows)
                )
                # Handed on unnamed: of two groups only one lies beside the pool at a time.
                kept = decode_rows(
                    picked, *pool.gather(group.gather[index], group.count), group.mask, options
                )
                done.append((group.rows, kept))
        if len(done) == 1 and not plan.chunks:
            if count == rows:
                return done[0][1][None]
            if count == 1:
                return done[0][1].expand(rows, -1, -1)[None]
        out = query.new_zeros(rows, query.shape[1], pool.shape.value_dim)
        for at, part in done:
            if at is None:
                out[:count] = part
            else:
                out.index_copy_(0, at, part)
        for chunk in plan.chunks:
            if chunk.gather is None:
                keys, values = key[0, :, chunk.rows], value[0, :, chunk.rows]
            else:
                gathered = pool.gather(chunk.gather[index], 1)
                keys, values = gathered[0][0], gathered[1][0]
            out[chunk.rows] = chunk_rows(
                query[0, :, chunk.rows],
                keys,
                values,
                chunk.first,
                chunk.position,
                plan.window,
                options,
            )
        return out[None]


def rounded_blocks(blocks: int) -> int:
    """The size of product for a row that sees `blocks` pages: a page or a quarter more."""
    step = max(_LEAST_BLOCKS, 2 ** (blocks.bit_length() - 1) // 4)
    return -(-blocks // step) * step


def _plan_class(
    kv: PagedKv,
    number: int,
    layers: list[int],
    rows: Sequence[PlannedRows],
    count: int,
    microbatch: int,
    dtype: torch.dtype,
) -> _ClassPlan:
    kind = kv.classes[number]
    pool = kv.store.pools[kind.pool]
    device = pool.keys.device

    def place(pages: Pages) -> tuple[Tensor, ...]:
        """[layers, …, n] page numbers → for each layer [… · K · n] pool rows."""
        found = pool.rows(kv.store.physical(kind.pool, pages, microbatch))
        return torch.from_numpy(found.reshape(len(layers), -1)).to(device).unbind()

    written = np.empty((len(layers), count), np.int64)
    in_page = np.empty(count, np.int64)
    chunks: list[_PlannedChunk] = []
    decodes: list[_Single] = []
    for r in rows:
        table = r.held.tables[number]
        offset = table.layers.index(layers[0])
        pages = table.pages[offset : offset + len(layers)]
        positions = np.arange(r.position, r.position + r.count)
        written[:, r.first : r.first + r.count] = pages[:, positions // PAGE_TOKENS]
        in_page[r.first : r.first + r.count] = positions % PAGE_TOKENS
        if r.as_decodes:
            for row, position in enumerate(positions.tolist(), r.first):
                block, end = visible_blocks(position, kind.window)
                decodes.append(_Single(row, pages[:, block:end], block * PAGE_TOKENS, position))
            continue
        block = _first_visible(r.position, kind.window) // PAGE_TOKENS
        alone = r.position == 0
        last = (r.position + r.count - 1) // PAGE_TOKENS
        chunks.append(
            _PlannedChunk(
                slice(r.first, r.first + r.count),
                None if alone else place(pages[:, block : last + 1]),
                block * PAGE_TOKENS,
                r.position,
            )
        )
    kv.store.touched(kind.pool, written, in_page, microbatch)
    slots = pool.rows(kv.store.physical(kind.pool, written, microbatch)) * PAGE_TOKENS + in_page
    slots = np.ascontiguousarray(slots.swapaxes(1, 2)).reshape(len(layers), -1)
    directly = is_direct(pool)
    seen = None
    if directly and decodes:
        seen = SeenRows(
            pool,
            [kv.store.physical(kind.pool, d.pages, microbatch) for d in decodes],
            [_first_visible(d.position, kind.window) - d.first for d in decodes],
            [d.position + 1 - d.first for d in decodes],
        )
    return _ClassPlan(
        pool,
        kind.window,
        {layer: i for i, layer in enumerate(layers)},
        torch.from_numpy(slots).to(device).unbind(),
        directly,
        [d.row for d in decodes],
        seen,
        lambda: _groups(pool, kind.window, decodes, count, len(layers), place, dtype),
        chunks,
    )


def _groups(
    pool: PagePool,
    window: int,
    decodes: Sequence[_Single],
    count: int,
    layers: int,
    place: Callable[[Pages], tuple[Tensor, ...]],
    dtype: torch.dtype,
) -> list[_PlannedGroup]:
    """The rows by how many pages they see, rounded."""
    device = pool.keys.device
    sizes: dict[int, list[_Single]] = {}
    for d in decodes:
        sizes.setdefault(rounded_blocks(d.pages.shape[1]), []).append(d)
    groups = []
    for blocks, entries in sorted(sizes.items()):
        gather = np.zeros((layers, len(entries), blocks), np.int64)
        for i, d in enumerate(entries):
            gather[:, i, : d.pages.shape[1]] = d.pages
        at = np.array([[d.position - d.first] for d in entries])
        key = np.arange(blocks * PAGE_TOKENS)[None]
        closed = key > at
        if window:
            closed |= key <= at - window
        mask = torch.zeros(closed.shape, dtype=torch.promote_types(dtype, torch.float32))
        mask.masked_fill_(torch.from_numpy(closed), float("-inf"))
        mask = mask[:, None].repeat_interleave(pool.shape.kv_heads, 0).to(device)
        whole = len(entries) == count
        picked = None if whole else torch.tensor([d.row for d in entries], device=device)
        groups.append(_PlannedGroup(picked, place(gather), mask, len(entries)))
    return groups


def visible_blocks(position: int, window: int) -> tuple[int, int]:
    """The blocks [first, end) of pages that the row at `position` sees; a window of 0 is none."""
    return _first_visible(position, window) // PAGE_TOKENS, position // PAGE_TOKENS + 1


def _first_visible(position: int, window: int) -> int:
    return max(0, position - window + 1) if window else 0
