"""How is the trace of one request through one shard evaluated, section by section?"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.dispute.play.model import TraceModel
from core.dispute.play.operators import Floats, Plain
from core.dispute.play.shakes import shakes
from core.dispute.play.values import TraceValues
from core.dispute.referee import LeafKind
from core.dispute.trace.layout import TABLES_PART, Place, TraceLayout
from core.dispute.trace.program import NONE, Form, Op

Array = Callable[[int, int], Floats]


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
            place, own_bits = Place(section, number), self._p.plea.own_bits
            for row, factors in enumerate(shakes(seed, own_bits, place, out.shape)):
                out[row] *= factors

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
                bias = None if op.bias == NONE else self._tensor(section, op.bias)[0]
                x = self._positions(section, op.a, array)
                _put(out, do.linear(x, self._tensor(section, op.tensor), bias))
            case LeafKind.SQUARES:
                x = self._positions(section, op.a, array)
                _put(out, do.squares(self._grouped(section, op, x)))
            case LeafKind.SUM:
                found = do.total(array(section, op.a))
                _put(out, found)
            case LeafKind.NORM_SCALE:
                n = self._at.group(section, self._at.op(section, op.a))
                _put(out, do.norm_scale(array(section, op.a), n, self._number(op)))
            case LeafKind.NORM:
                self._norm(section, op, array, out)
            case LeafKind.ROPE:
                self._rope(section, op, array, out)
            case LeafKind.COPY:
                out[0] = array(section, op.a)[:, 0].T
            case LeafKind.SCORE:
                self._score(section, op, array, out)
            case LeafKind.STABILISER:
                out[:, 0] = array(section, op.a).max(axis=2)
            case LeafKind.EXP:
                m, s = array(section, op.a), array(section, op.b)
                for head in range(self._p.heads):
                    out[:, head] = do.exp(s[:, head], m[:, 0, head, None])
            case LeafKind.PROBABILITY:
                e, z = array(section, op.a), array(section, op.b)
                for head in range(self._p.heads):
                    out[:, head] = do.probability(e[:, head], z[:, 0, head, None])
            case LeafKind.MIX:
                self._mix(section, op, array, out)
            case LeafKind.SILU:
                out[:] = do.silu(array(section, op.a))
            case LeafKind.GELU_TANH:
                out[:] = do.gelu_tanh(array(section, op.a))
            case LeafKind.PRODUCT:
                out[:] = do.product(self._of(section, op.a, array), self._of(section, op.b, array))
            case LeafKind.ADD:
                out[:] = do.add(self._of(section, op.a, array), self._of(section, op.b, array))
            case LeafKind.SCALE:
                out[:] = do.scale(array(section, op.a), self._number(op))
            case LeafKind.SOFTCAP:
                x = array(section, op.a)
                for segment in range(x.shape[1]):
                    out[:, segment] = do.softcap(x[:, segment], self._number(op))
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

    # --- operators over heads ---

    def _norm(self, section: int, op: Op, array: Array, out: Floats) -> None:
        x = self._positions(section, op.a, array)
        r = array(section, op.b)
        gain = self._tensor(section, op.tensor)[0].astype(np.float64)
        scalars = r.reshape(len(x), -1)  # [N, 1] or [N, heads]
        parts = x.reshape(len(x), scalars.shape[1], len(gain))
        found = self._do.norm(parts, scalars[:, :, None], gain, op.flag)
        _put(out, found.reshape(x.shape))

    def _rope(self, section: int, op: Op, array: Array, out: Floats) -> None:
        x, half = array(section, op.a)[:, 0], self._p.head_dim // 2
        table = self._model.tensor(TABLES_PART, op.tensor)[: len(x)].astype(np.float64)
        c, s = table[:, None, 0::2], table[:, None, 1::2]
        heads = x.reshape(len(x), -1, 2, half)
        first, second = heads[:, :, 0], heads[:, :, 1]
        turned = np.empty(heads.shape)
        turned[:, :, 0] = self._do.rotate(first, second, c, s, True)
        turned[:, :, 1] = self._do.rotate(second, first, c, s, False)
        out[:, 0] = turned.reshape(x.shape)

    def _score(self, section: int, op: Op, array: Array, out: Floats) -> None:
        d, share = self._p.head_dim, self._p.heads // self._p.key_heads
        q, k = array(section, op.a)[:, 0], array(section, op.b)[:, 0]
        window = 0 if op.bias == NONE else self._p.constants[op.bias]
        back = np.arange(len(q))[:, None] - np.arange(len(q))[None, :]
        hidden = (back < 0) | ((back >= window) if window else False)
        for head in range(self._p.heads):
            keys = k[:, head // share * d : (head // share + 1) * d]
            found = self._do.score(q[:, head * d : (head + 1) * d], keys, self._number(op))
            found[hidden] = -np.inf
            out[:, head] = found

    def _mix(self, section: int, op: Op, array: Array, out: Floats) -> None:
        d, share = self._p.head_dim, self._p.heads // self._p.key_heads
        p, turned = array(section, op.a), array(section, op.b)[0]
        for head in range(self._p.heads):
            v = turned[head // share * d : (head // share + 1) * d]
            out[:, 0, head * d : (head + 1) * d] = self._do.mix(p[:, head], v)


def _put(out: Floats, found: Floats) -> None:
    out[:] = np.asarray(found).reshape(out.shape)


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
