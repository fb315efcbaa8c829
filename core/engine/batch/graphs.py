"""How does a step of single rows run on a graphics processor without launching every operator anew?

Some thirty small kernels a layer take longer to launch than to run when a step has few rows. A step
in which every row attends alone is therefore captured once (a CUDA graph) for each shape: rows, and
pages that a row sees, rounded up to powers of two. Afterwards only numbers are copied: the rows,
where they stand, and which pages they see; one launch runs the rest. Rows that fill up a shape
repeat the last one, and write what it writes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.engine.batch.plan import PlannedRows, visible_blocks
from core.engine.memory.paged_kv import PagedKv
from core.engine.memory.pages import PAGE_TOKENS
from core.engine.model.attention import decode_rows
from core.engine.model.blocks import ModelShard
from core.engine.model.gates import LayerGates
from core.engine.model.library_pass import run_library

#: More rows at once are worth their launches.
MOST_ROWS = 256
#: Shapes that are kept, the last used; each holds the memory of one step.
MOST_GRAPHS = 32
#: A shape is captured when it is asked for so often: capturing takes longer than some steps do.
ASKED = 3
#: Largest difference between a captured step and the same one launched, in units of its largest
#: number.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}

Replay = Callable[[], None]
Made = tuple[Tensor, ...]
"""Activations [rows, D], at the model's end their logits [rows, V] beside them; and what entered
tapped layers [rows, D].
"""
Capture = Callable[[Callable[[], Made]], tuple[Made, Replay]]
"""Runs a function once, and can run it again on the same memory: where its results lie, and how."""


def cuda_capture() -> Capture:
    """Captures functions as CUDA graphs that share their memory: they run one after the other, and
    results are copied at once. It raises RuntimeError for a function that looks at numbers on its
    way.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], Made]) -> tuple[Made, Replay]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, without being captured.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            out = run()
        return out, graph.replay

    return capture


@dataclass(frozen=True)
class _Shape:
    rows: int
    blocks: tuple[int, ...]  # of each attention class


class _Step:
    """The memory of what changes between steps of a shape, and the step captured over it."""

    def __init__(
        self,
        shard: ModelShard,
        gates: LayerGates,
        kv: PagedKv,
        shape: _Shape,
        taps: Sequence[int] = (),
    ) -> None:
        device, rows = shard.device, shape.rows
        self._taps = taps
        self._shard, self._gates, self._kv, self._shape = shard, gates, kv, shape
        self._pools = [kv.store.pools[kind.pool] for kind in kv.classes]
        self._class_of = {
            layer: (number, index)
            for number, kind in enumerate(kv.classes)
            for index, layer in enumerate(kind.layers)
        }
        ids = shard.is_first
        self.x = (
            torch.zeros(rows, dtype=torch.int64, device=device)
            if ids
            else torch.zeros(rows, shard.hidden, dtype=shard.dtype, device=device)
        )
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)
        #: Of each class: the pages that a row sees [layers, rows, blocks], and which of their
        #: tokens is its own.
        self.pages = [
            torch.zeros(len(kind.layers), rows, blocks, dtype=torch.int64, device=device)
            for kind, blocks in zip(kv.classes, shape.blocks, strict=True)
        ]
        self.own = [torch.zeros(rows, dtype=torch.int64, device=device) for _ in kv.classes]
        self._masks: list[Tensor] = []

    def fill(self, x: Tensor, positions: Tensor, planned: Sequence[PlannedRows]) -> None:
        """Copy a step's numbers here; rows beyond it repeat its last."""
        rows, count = self._shape.rows, len(positions)
        at = torch.arange(rows).clamp_(max=count - 1)
        self.x.copy_(x[at.to(x.device)])
        self.positions.copy_(positions[at])
        for number, kind in enumerate(self._kv.classes):
            pages = np.zeros(tuple(self.pages[number].shape), np.int64)
            own = np.zeros(rows, np.int64)
            for r in planned:
                table = r.held.tables[number].pages
                for row in range(r.count):
                    position = r.position + row
                    first, end = visible_blocks(position, kind.window)
                    pages[:, r.first + row, : end - first] = table[:, first:end]
                    own[r.first + row] = position - first * PAGE_TOKENS
            pages[:, count:] = pages[:, count - 1 : count]
            own[count:] = own[count - 1]
            self.pages[number].copy_(torch.from_numpy(pages))
            self.own[number].copy_(torch.from_numpy(own))

    def run(self) -> Made:
        """The step over what lies here. Looks at no number."""
        self._masks = [self._mask(number) for number in range(len(self.pages))]
        shard, tapped = self._shard, list[Tensor]()
        made = run_library(
            shard,
            self._gates,
            self,
            self.x,
            self.positions,
            (0, len(self._gates.layers)),
            0 if shard.is_last else None,
            self._taps,
            tapped,
        )
        return *((made,) if isinstance(made, Tensor) else tuple(made)), *tapped

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """The library's call for the layer now running."""
        number, index = self._class_of[self._gates.layer]
        pool, pages, own = self._pools[number], self.pages[number][index], self.own[number]
        heads = torch.arange(pool.shape.kv_heads, device=own.device)
        here = pages.gather(1, (own // PAGE_TOKENS)[:, None])  # [rows, 1]
        slots = (here * pool.shape.kv_heads + heads) * PAGE_TOKENS + (own % PAGE_TOKENS)[:, None]
        pool.write(slots.reshape(-1), key[0].transpose(0, 1), value[0].transpose(0, 1))
        rows = pages[:, None] * pool.shape.kv_heads + heads[:, None]  # [rows, K, blocks]
        keys, values = pool.gather(rows.reshape(-1), len(pages))
        return decode_rows(query[0].transpose(0, 1), keys, values, self._masks[number], options)[
            None
        ]

    def _mask(self, number: int) -> Tensor:
        """[rows · K, 1, tokens]: 0 where a row may look, −inf where it may not."""
        own, window = self.own[number][:, None], self._kv.classes[number].window
        heads = self._pools[number].shape.kv_heads
        key = torch.arange(self._shape.blocks[number] * PAGE_TOKENS, device=own.device)[None]
        closed = key > own
        if window:
            closed = closed | (key <= own - window)
        dtype = torch.promote_types(self._shard.dtype, torch.float32)
        mask = torch.zeros(closed.shape, dtype=dtype, device=own.device)
        return mask.masked_fill(closed, float("-inf"))[:, None].repeat_interleave(heads, 0)


class DecodeGraphs:
    """The captured steps of one shard. Called from the compute thread alone."""

    def __init__(
        self,
        shard: ModelShard,
        gates: LayerGates,
        kv: PagedKv,
        capture: Capture,
        taps: Sequence[int] = (),
    ) -> None:
        """What enters the layers `taps` is given beside what leaves."""
        self._shard, self._gates, self._kv, self._capture = shard, gates, kv, capture
        self._taps = taps
        self._asked: Counter[_Shape] = Counter()
        self._steps: OrderedDict[_Shape, tuple[_Step, Made, Replay]] = OrderedDict()
        #: Why no step is captured any more; "" while some may be.
        self.refusal = ""
        self.replays = 0

    def __len__(self) -> int:
        return len(self._steps)

    def try_step(self, planned: Sequence[PlannedRows], x: Tensor, positions: Tensor) -> Made | None:
        """Rows x at `positions` [T] through all layers, as `_Step.run`, [T, ·] each.

        None where the step has to be launched. All rows attend alone, and their pages are there.
        `x` is on the shard's device, `positions` on the host.
        """
        if self.refusal or len(positions) > MOST_ROWS:
            return None
        shape = self._shape_of(planned, len(positions))
        found = self._steps.get(shape)
        if found is None:
            self._asked[shape] += 1
            if self._asked[shape] < ASKED:
                return None
            found = self._try_capture(shape, planned, x, positions)
            if found is None:
                return None
        self._steps.move_to_end(shape)
        step, made, replay = found
        step.fill(x, positions, planned)
        replay()
        self.replays += 1
        return tuple(part[: len(positions)].clone() for part in made)

    def _shape_of(self, planned: Sequence[PlannedRows], count: int) -> _Shape:
        blocks = [1] * len(self._kv.classes)
        for number, kind in enumerate(self._kv.classes):
            for r in planned:
                for position in range(r.position, r.position + r.count):
                    first, end = visible_blocks(position, kind.window)
                    blocks[number] = max(blocks[number], end - first)
        return _Shape(_rounded(count), tuple(_rounded(n) for n in blocks))

    def _try_capture(
        self, shape: _Shape, planned: Sequence[PlannedRows], x: Tensor, positions: Tensor
    ) -> tuple[_Step, Made, Replay] | None:
        """Capture a shape on this step, and compare it with the step as it is launched."""
        step = _Step(self._shard, self._gates, self._kv, shape, self._taps)
        step.fill(x, positions, planned)
        try:
            launched = [part.clone() for part in step.run()]
            made, replay = self._capture(step.run)
            replay()
        except RuntimeError as error:
            self._refuse(f"a step cannot be captured: {str(error).splitlines()[0]}")
            return None
        for captured, one in zip(made, launched, strict=True):
            size = float(one.abs().max())
            off = float((captured - one).abs().max())
            if not off <= _TOLERANCES.get(self._shard.dtype, 0.05) * max(size, 1e-30):
                self._refuse(f"a captured step is off by {off:.1e} of {size:.1e}")
                return None
        self._steps[shape] = step, made, replay
        if len(self._steps) > MOST_GRAPHS:
            self._steps.popitem(last=False)
        return self._steps[shape]

    def _refuse(self, why: str) -> None:
        self.refusal = why
        self._steps.clear()


def _rounded(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
