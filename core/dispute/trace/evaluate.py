"""What are the values of a trace? Every operator of a program in plain Python floats, for small shapes and for tests.

`core/engine/trace.py` makes the same values with matrix products. Both satisfy every leaf's predicate; their bits differ.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from core.dispute.referee import Format, Kind, exact_value
from core.dispute.referee.attention import is_visible
from core.dispute.referee.formats import LAYOUTS
from core.dispute.trace.derive import Derivation, Leaf
from core.dispute.trace.held import HeldTrace, referee_leaf, tail, weights_of
from core.dispute.trace.layout import Layout, Place
from core.dispute.trace.sources import Sources

_CODES = {Format.FP16: "e", Format.FP32: "f", Format.F64: "d"}
#: Called after each value: what stands in the trace instead of it.
Tamper = Callable[[Place, float], float]


def numbers(data: bytes, fmt: Format) -> list[float]:
    """The numbers in these bytes."""
    width = LAYOUTS[fmt].width_bytes
    if fmt == Format.BF16:
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        fmt, width = Format.FP32, 4
    return list(struct.unpack(f"<{len(data) // width}{_CODES[fmt]}", data))


class Evaluator:
    """Evaluates a layout's program over sources, place by place in the order of the trace."""

    def __init__(self, derivation: Derivation, layout: Layout, sources: Sources) -> None:
        self._derivation = derivation
        self._layout = layout
        self._sources = sources

    def evaluate(self, tamper: Tamper | None = None) -> HeldTrace:
        """The trace; values that `tamper` changes are carried on, so that later leaves hold."""
        values: dict[tuple[int, int], list[float]] = {}
        trace = HeldTrace(self._layout, values)
        for section in range(len(self._layout.section_types)):
            for op, described in enumerate(self._layout.section(section).ops):
                shape = self._layout.shape(described.form)
                line = values.setdefault((section, op), [])
                for row in range(shape.rows):
                    for segment in range(shape.segments):
                        for index in range(shape.length):
                            place = Place(section, op, row, segment, index)
                            found = self.value(trace, place)
                            line.append(found if tamper is None else tamper(place, found))
        return trace

    def value(self, trace: HeldTrace, place: Place) -> float:
        """The value at a place, from the operands in `trace`."""
        op = self._layout.op(place.section, place.op)
        if op.kind == Kind.STABILISER:
            keys = range(self._layout.positions)
            return max(trace[Place(place.section, op.a, place.row, place.item, j)] for j in keys)
        trial = self._derivation.trial(place)
        if not trial.parts:
            return self._compute(trace, trial.whole)
        return self._total(trace, trial.whole, self.partial_sums(trace, place))

    def _total(self, trace: HeldTrace, leaf: Leaf, stated: bytes) -> float:
        return math.fsum([*numbers(stated, Format.F64), *self._model(leaf)])

    def partial_sums(self, trace: HeldTrace, place: Place) -> bytes:
        """The parts that an accuser states for the value at `place`."""
        trial = self._derivation.trial(place)
        parts = [
            self._compute(trace, self._derivation.part(place, part)) for part in range(trial.parts)
        ]
        return struct.pack(f"<{len(parts)}d", *parts)

    def _model(self, leaf: Leaf) -> list[float]:
        if leaf.weights is None:
            return []
        return numbers(tail(leaf, self._sources, 0), leaf.weights.format)

    def _compute(self, trace: HeldTrace, leaf: Leaf) -> float:
        x = numbers(operands_of_runs(trace, leaf), Format.F64)
        w = self._model_of(leaf)
        if leaf.kind == Kind.INPUT or leaf.kind == Kind.WHITEN_DIFFERENCE:
            assert leaf.row is not None
            row_format = self._layout.program.row_format
            width = LAYOUTS[row_format].width_bytes
            raw = self._sources.row(leaf.row.boundary, leaf.row.row, leaf.row.column * width, width)
            (served,) = numbers(raw, row_format)
            return served if leaf.kind == Kind.INPUT else (served - x[0]) / w[0]
        return compute(leaf.kind, leaf.params, x, w)

    def _model_of(self, leaf: Leaf) -> list[float]:
        weights = weights_of(leaf, self._sources)
        return [] if weights is None else numbers(self._sources.weights(weights), weights.format)


class CanonicalEvaluator(Evaluator):
    """Evaluates the canonical trace: the one in which every value is the nearest float64 (`core.dispute.referee.exact`).

    Raises ArithmeticError for operands on which no number is right; no stage's rows and weights lead there unless they are malformed.
    """

    def _total(self, trace: HeldTrace, leaf: Leaf, stated: bytes) -> float:
        return self._exact(trace, leaf, stated)

    def _compute(self, trace: HeldTrace, leaf: Leaf) -> float:
        return self._exact(trace, leaf, b"")

    def _exact(self, trace: HeldTrace, leaf: Leaf, stated: bytes) -> float:
        found = exact_value(referee_leaf(trace, leaf, self._sources, bytes(8), stated))
        if found is None:
            raise ArithmeticError(f"{leaf.kind.name} of these operands is no number")
        (value,) = struct.unpack("<d", found)
        return float(value)


def operands_of_runs(trace: HeldTrace, leaf: Leaf) -> bytes:
    return b"".join(trace.run(run) for run in leaf.runs)


def compute(kind: Kind, params: Sequence[int], x: Sequence[float], w: Sequence[float]) -> float:
    """One operator's value from its operands in float64."""
    n = len(x) // 2
    match kind:
        case Kind.COPY:
            return x[0]
        case Kind.EMBED:
            return _constant(params[1]) * w[0]
        case Kind.LINEAR:
            return math.fsum(a * b for a, b in zip(x, w, strict=True))
        case Kind.SUM:
            return math.fsum(x)
        case Kind.SQUARES:
            return math.fsum(a * a for a in x)
        case Kind.NORM_SCALE:
            return 1.0 / math.sqrt(x[0] / params[0] + _constant(params[1]))
        case Kind.NORM:
            return x[0] * x[1] * (w[0] + params[1])
        case Kind.ROPE:
            first, second = x[0] * w[0], x[1] * w[1]
            return first - second if params[1] else first + second
        case Kind.SCORE:
            if not is_visible(params[2], params[3], params[4]):
                return -math.inf
            return _constant(params[1]) * math.fsum(
                a * b for a, b in zip(x[:n], x[n:], strict=True)
            )
        case Kind.EXP:
            return math.exp(x[1] - x[0])
        case Kind.PROBABILITY:
            return x[0] / x[1]
        case Kind.MIX:
            return math.fsum(a * b for a, b in zip(x[:n], x[n:], strict=True))
        case Kind.SILU:
            return x[0] * _logistic(x[0])
        case Kind.GELU_TANH:
            inner = 2 * math.sqrt(2 / math.pi) * (x[0] + 0.044715 * x[0] ** 3)
            return x[0] * _logistic(inner)
        case Kind.PRODUCT:
            return x[0] * x[1]
        case Kind.ADD:
            return x[0] + x[1]
        case Kind.SCALE:
            return _constant(params[0]) * x[0]
        case Kind.SOFTCAP:
            cap = _constant(params[0])
            return x[0] if math.isinf(x[0]) else cap * math.tanh(x[0] / cap)
        case Kind.WHITEN_REFERENCE:
            return x[0] / w[0]
        case _:
            raise ValueError(f"{kind.name} makes no value")


def _constant(bits: int) -> float:
    (found,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    return float(found)


def _logistic(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    e = math.exp(x)
    return e / (1 + e)
