"""How is the trace of one request through one shard evaluated, section by section?"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.dispute.kernels.cores import on_all_cores, slices
from core.dispute.play.model import TraceModel
from core.dispute.play.operators import Floats, Plain
from core.dispute.play.shakes import shake
from core.dispute.play.values import TraceValues
from core.dispute.referee import LeafKind
from core.dispute.trace.layout import TABLES_PART, Place, TraceLayout
from core.dispute.trace.program import NONE, Form, Op

Array = Callable[[int, int], Floats]
#: What one core makes at a time: rows of attention, rows of a weight, or so many values.
_SEEING_ROWS = _WEIGHT_ROWS = 128
_VALUES = 1 << 16


@dataclass(frozen=True)
class Boundaries:
    """What a stage signed: ids [N] or rows [N, D] that entered, rows [N, D] that left.

    The first of these is of position `first_out`: a last stage signs no rows of a prompt but its
    last one's.
    """

    inputs: np.ndarray[Any, Any]
    outputs: np.ndarray[Any, Any] | None = None
    first_out: int = 0

    def served(self, layout: TraceLayout) -> Floats:
        """Rows [w, D] that left in the layout's window."""
        assert self.outputs is not None, "a deviation needs served rows"
        first, end = layout.window_from - self.first_out, layout.positions - self.first_out
        return np.asarray(self.outputs[first:end], np.float64)


class Builder:
    """Evaluates a layout's operators over a model's tensors."""

    def __init__(
        self,
        layout: TraceLayout,
        model: TraceModel,
        boundaries: Boundaries,
        arithmetic: Plain,
    ) -> None:
        self._at, self._p = layout, layout.program
        self._model, self._rows = model, boundaries
        self._do = arithmetic

    def build(
        self,
        values: TraceValues,
        progress: Callable[[int], None] = lambda _: None,
        first: int = 0,
    ) -> None:
        """Fill `values` from section `first` on; `progress` hears of each section done."""
        for section in range(first, len(self._at.section_types)):
            for op, described in enumerate(self._at.section(section).ops):
                if described.form != Form.VERDICT:
                    self.evaluate(section, op, values.array, values.array(section, op))
            progress(section)

    def evaluate(self, section: int, number: int, array: Array, out: Floats) -> None:
        """What operator `number` makes of its operands, into `out` [rows, segments, length]."""
        op = self._at.op(section, number)
        self._evaluate(section, op, array, out)
        seed = self._at.plea
        if seed is not None and self._at.is_shaken(section, number):
            shake(out, seed, self._p.plea.own_bits, Place(section, number))

    def _evaluate(self, section: int, op: Op, array: Array, out: Floats) -> None:
        do = self._do
        match op.kind:
            case LeafKind.INPUT:
                # A row may hold −0, and a trace holds +0 only.
                out[:, 0] = self._rows.inputs[: self._at.positions] + np.float64(0.0)
            case LeafKind.EMBED:
                table = self._tensor(section, op.tensor)
                ids = np.asarray(self._rows.inputs[: self._at.positions], dtype=np.int64)
                out[:, 0] = do.scale(table[ids].astype(np.float64), self._number(op))
            case LeafKind.LINEAR:
                self._linear(section, op, array, out)
            case LeafKind.SQUARES:
                x = self._grouped(section, op, self._positions(section, op.a, array))
                self._by_rows(do.squares, out, x)
            case LeafKind.SUM:
                self._by_rows(do.total, out, array(section, op.a))
            case LeafKind.NORM_SCALE:
                n = self._at.group(section, self._at.op(section, op.a))
                epsilon = self._number(op)
                self._by_rows(lambda q: do.norm_scale(q, n, epsilon), out, array(section, op.a))
            case LeafKind.NORM:
                self._norm(section, op, array, out)
            case LeafKind.ROPE:
                self._rope(section, op, array, out)
            case LeafKind.COPY:
                out[0] = array(section, op.a)[:, 0].T
            case LeafKind.SCORE:
                self._score(section, op, array, out)
            case LeafKind.STABILISER:
                self._by_rows(lambda s: s.max(axis=2), out, array(section, op.a))
            case LeafKind.EXP:
                m, s = array(section, op.a), array(section, op.b)
                self._by_heads(lambda i, head: do.exp(s[i, head], m[i, 0, head, None]), out)
            case LeafKind.PROBABILITY:
                e, z = array(section, op.a), array(section, op.b)
                self._by_heads(lambda i, head: do.probability(e[i, head], z[i, 0, head, None]), out)
            case LeafKind.MIX:
                self._mix(section, op, array, out)
            case LeafKind.SILU:
                self._by_rows(do.silu, out, array(section, op.a))
            case LeafKind.GELU_TANH:
                self._by_rows(do.gelu_tanh, out, array(section, op.a))
            case LeafKind.PRODUCT | LeafKind.ADD:
                a, b = self._of(section, op.a, array), self._of(section, op.b, array)
                self._by_rows(do.add if op.kind == LeafKind.ADD else do.product, out, a, b)
            case LeafKind.SCALE:
                factor = self._number(op)
                self._by_rows(lambda x: do.scale(x, factor), out, array(section, op.a))
            case LeafKind.SOFTCAP:
                cap = self._number(op)
                self._by_rows(lambda x: do.softcap(x, cap), out, array(section, op.a))
            case LeafKind.WHITEN_REFERENCE:
                out[:, 0] = do.whiten(self._window(section, op.a, array), self._sigma)
            case LeafKind.WHITEN_DIFFERENCE:
                served, s = self._rows.served(self._at), self._window(section, op.a, array)
                out[:, 0] = do.whiten_served(served, s, self._sigma)
            case LeafKind.WHITEN_CHANGE:
                shaken = self._window(section, op.a, array)
                s = self._window(section, op.b, array)
                out[:, 0] = do.whiten_change(shaken, s, self._sigma)
            case _:
                raise ValueError(f"{op.kind.name} makes no value")

    # --- operands ---

    def _of(self, section: int, source: int, array: Array) -> Floats:
        return array(*self._at.source(section, source))

    def _window(self, section: int, source: int, array: Array) -> Floats:
        return self._of(section, source, array)[self._at.window_from :, 0]

    def _positions(self, section: int, source: int, array: Array) -> Floats:
        """The operand's numbers, a row for each position."""
        return self._of(section, source, array)[:, 0]

    def _grouped(self, section: int, op: Op, x: Floats) -> Floats:
        n = self._at.group(section, op)
        return x.reshape(len(x), -1, n) if self._at.length(op.form) > 1 else x

    def _tensor(self, section: int, number: int) -> Any:
        return self._model.tensor(self._at.part(section), number)

    @property
    def _sigma(self) -> Floats:
        return self._model.sigma(self._at)

    def _number(self, op: Op) -> float:
        (found,) = struct.unpack(">d", self._p.constants[op.constant].to_bytes(8, "big"))
        return float(found)

    # --- operators of several operands ---

    def _linear(self, section: int, op: Op, array: Array, out: Floats) -> None:
        x, weight = self._positions(section, op.a, array), self._tensor(section, op.tensor)
        bias = None if op.bias == NONE else self._tensor(section, op.bias)[0]

        def some(at: slice) -> None:
            out[:, 0, at] = self._do.linear(x, weight[at], None if bias is None else bias[at])

        self._share(some, self._slices(len(weight), _WEIGHT_ROWS))

    def _norm(self, section: int, op: Op, array: Array, out: Floats) -> None:
        x = self._positions(section, op.a, array)
        gain = self._tensor(section, op.tensor)[0].astype(np.float64)
        scalars = array(section, op.b).reshape(len(x), -1)  # [N, 1] or [N, heads]
        parts = x.reshape(len(x), scalars.shape[1], len(gain))
        self._by_rows(
            lambda x, r: self._do.norm(x, r, gain, op.flag), out, parts, scalars[:, :, None]
        )

    def _rope(self, section: int, op: Op, array: Array, out: Floats) -> None:
        x, half = array(section, op.a)[:, 0], self._p.head_dim // 2
        table = self._model.tensor(TABLES_PART, op.tensor)[: len(x)].astype(np.float64)

        def some(x: Floats, table: Floats) -> Floats:
            c, s = table[:, None, 0::2], table[:, None, 1::2]
            heads = x.reshape(len(x), -1, 2, half)
            first, second = heads[:, :, 0], heads[:, :, 1]
            turned = np.empty(heads.shape)
            turned[:, :, 0] = self._do.rotate(first, second, c, s, True)
            turned[:, :, 1] = self._do.rotate(second, first, c, s, False)
            return turned

        self._by_rows(some, out, x, table)

    def _score(self, section: int, op: Op, array: Array, out: Floats) -> None:
        q, k = array(section, op.a)[:, 0], array(section, op.b)[:, 0]
        window = 0 if op.bias == NONE else self._p.constants[op.bias]
        factor = self._number(op)

        def some(rows: slice, head: int) -> Floats:
            first = max(0, rows.start - window + 1) if window else 0
            seen = slice(first, rows.stop)
            found = np.full((rows.stop - rows.start, len(k)), -np.inf)
            scores = self._do.score(q[rows, self._of_head(head)], k[seen, self._keys(head)], factor)
            back = np.arange(rows.start, rows.stop)[:, None] - np.arange(first, rows.stop)
            visible = (back >= 0) & (back < window) if window else back >= 0
            np.copyto(found[:, seen], scores, where=visible)
            return found

        self._by_heads(some, out)

    def _mix(self, section: int, op: Op, array: Array, out: Floats) -> None:
        p, turned = array(section, op.a), array(section, op.b)[0]

        def some(rows: slice, head: int) -> Floats:
            return self._do.mix(p[rows, head], turned[self._keys(head)])

        self._by_heads(some, out.reshape(len(out), self._p.heads, -1))

    # --- heads ---

    def _of_head(self, head: int) -> slice:
        """Where a head's numbers stand in a position's."""
        return slice(head * self._p.head_dim, (head + 1) * self._p.head_dim)

    def _keys(self, head: int) -> slice:
        """Where those of the keys and values stand that a head sees."""
        return self._of_head(head // (self._p.heads // self._p.key_heads))

    def _by_heads(self, make: Callable[[slice, int], Floats], out: Floats) -> None:
        """`make` of some rows of a head, for all of `out` [rows, heads, …], on all cores."""

        def some(part: tuple[slice, int]) -> None:
            out[part] = make(*part)

        rows = slices(len(out), _SEEING_ROWS)
        self._share(some, [(i, head) for head in range(self._p.heads) for i in rows])

    # --- cores ---

    def _by_rows(self, make: Callable[..., Floats], out: Floats, *operands: Floats) -> None:
        """`make` of some rows of each operand, for all of `out`, on all cores."""
        rows = len(operands[0])
        lines = out.reshape(rows, -1)

        def some(at: slice) -> None:
            lines[at] = make(*(x[at] for x in operands)).reshape(-1, lines.shape[1])

        self._share(some, self._slices(rows, _VALUES * rows // max(1, operands[0].size)))

    def _slices(self, count: int, most: int) -> list[slice]:
        """[0, count) in runs of about `most` for one core at a time; whole where none is shared."""
        return slices(count, max(1, most if self._do.is_shared else count))

    def _share(self, work: Callable[[Any], None], parts: list[Any]) -> None:
        if self._do.is_shared:
            on_all_cores(work, parts)
        else:
            for part in parts:
                work(part)


def run_section(
    builder: Builder, layout: TraceLayout, section: int, entering: Floats
) -> Mapping[int, Floats]:
    """What one section makes of its input [N, D], held in memory: operator number → values."""
    made: dict[int, Floats] = {}

    def array(where: int, op: int) -> Floats:
        return made[op] if where == section else entering[:, None]

    for number, op in enumerate(layout.section(section).ops):
        if op.form != Form.VERDICT:
            out = np.zeros(tuple(layout.shape(op.form)))
            builder.evaluate(section, number, array, out)
            made[number] = out
    return made
