"""Does the referee find fault with any element of an honest trace?

    python -m benchmarks.trust.elements [--sampled N]     judge N elements with the integer twin

Every value of a trace is compared with what numpy's float64 makes of the same operands, which is
off by some roundings of its terms at most; and elements drawn at random are judged, to the bit, by
the Python-integer twin of the contract.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.table import Row, table
from benchmarks.trust.town import Town, columns, honest, quick_columns, town
from core.dispute.play.build import Builder
from core.dispute.play.held import ShardTrace, boundaries_of, build_trace, sources_of
from core.dispute.play.operators import Plain
from core.dispute.play.program import model_program
from core.dispute.referee import LeafKind, Ruling
from core.dispute.trace.check import Checker
from core.dispute.trace.derive import Derivation
from core.dispute.trace.families import FP32_TOLERANCES
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.program import INPUT, Form
from core.protocol.types import LayerRange

STAGE, SAMPLED, WHOLE = 1, 20_000, 10**6
#: Layers and positions of the trace.
_LAYERS, _POSITIONS = 2, 40
QUICK = {"SAMPLED": 200, "_LAYERS": 1, "_POSITIONS": 12, "columns": quick_columns}
_U, _TRANSCENDENTAL = 2.0**-50, 2.0**-40
_CURVED = (LeafKind.EXP, LeafKind.SILU, LeafKind.GELU_TANH, LeafKind.SOFTCAP)


def rows(sampled: int = 0) -> list[Row]:
    """All values of one trace, and a sample judged in integers."""
    torch.set_num_threads(1)
    with town(*columns()[0]) as here:
        return list(_rows(here, sampled or SAMPLED))


def _rows(here: Town, sampled: int) -> Iterator[Row]:
    start = here.spans[STAGE].start
    program = model_program(here.folder, FP32_TOLERANCES)
    model = program.trace_model(here.folder)
    (prompt,) = here.prompts(1, _POSITIONS)
    x = honest(here.shards[0], 0)(torch.tensor(prompt))
    served = honest(here.load(LayerRange(start, start + _LAYERS)), 0)(x)
    inputs, outputs = (t.float().numpy().astype("<f4").tobytes() for t in (x, served))

    layout = TraceLayout(program.program, start, start + _LAYERS, _POSITIONS, 0)
    boundaries = boundaries_of(layout, inputs, outputs)
    trace = build_trace(layout, model, boundaries)
    plain = Builder(layout, model, boundaries, Plain(program.program.part_terms))
    judged, faults, used = _judge_all(trace, plain)
    yield Row(
        f"{here.name}: all elements of {_LAYERS} honest layers, against numpy's float64",
        "0 faults in 10^6",
        f"{faults} faults in {judged:,}; at most {100 * used:.1f} % of numpy's own error allowed",
        "–",
        "0",
        faults == 0 and judged >= WHOLE,
    )
    derivation = Derivation(layout, FP32_TOLERANCES[1].parts_per_trillion, None)
    span = start, start + _LAYERS
    checker = Checker(derivation, sources_of(program.program, span, model, inputs, outputs))
    places = _drawn(trace, sampled, random.Random(7))
    wrong = sum(checker.ruling(trace, place) != Ruling.HOLDS for place in places)
    yield Row(
        f"{here.name}: elements drawn at random, judged to the bit by the referee's integer twin",
        "0 faults",
        f"{wrong} faults in {len(places):,}",
        "–",
        "0",
        not wrong and len(places) == sampled,
    )


def _drawn(trace: ShardTrace, count: int, rng: random.Random) -> list[Place]:
    """Random elements, every operator as often as any other."""
    layout = trace.layout
    keys = [(s, o) for s, o in trace.values.keys if layout.op(s, o).form != Form.VERDICT]
    found = []
    for number in range(count):
        section, op = keys[number % len(keys)]
        shape = layout.shape(layout.op(section, op).form)
        row, segment, item = (rng.randrange(size) for size in shape)
        found.append(Place(section, op, row, segment, item))
    return found


# --- every value, as vectors ---


def _judge_all(trace: ShardTrace, plain: Builder) -> tuple[int, int, float]:
    """How many values were judged, how many are out of bounds, and the largest share of a bound."""
    judged = faults = 0
    used = 0.0
    layout, values = trace.layout, trace.values
    for section, number in values.keys:
        op = layout.op(section, number)
        if op.form == Form.VERDICT:
            continue
        stated = values.array(section, number)
        found = np.zeros(stated.shape)
        plain.evaluate(section, number, values.array, found)
        seen = np.isfinite(found)  # what a mask hides is −∞ by index
        if not np.array_equal(stated[~seen], found[~seen]):
            faults += int((stated[~seen] != found[~seen]).sum())
        off = np.abs(np.subtract(stated, found, where=seen, out=np.zeros(stated.shape)))
        bound = _bound(plain, trace, section, number, found)
        # Half a unit in the last place was lost when the trace's value was rounded.
        room = bound + np.abs(found, where=seen, out=np.zeros(stated.shape)) * 2.0**-53
        faults += int((off > room)[seen].sum())
        judged += stated.size
        share = np.divide(off, room, where=seen & (room > 0), out=np.zeros(stated.shape))
        used = max(used, float(share.max()))
    return judged, faults, used


def _bound(plain: Builder, trace: ShardTrace, section: int, number: int, found: Any) -> Any:
    """How far numpy may be off: sums by the sizes of their terms, the rest by the value's own."""
    layout, values = trace.layout, trace.values
    op, size = layout.op(section, number), np.where(np.isfinite(found), np.abs(found), 0.0)

    def of(source: int) -> Any:
        if source == INPUT:
            return values.array(section - 1, len(layout.section(section - 1).ops) - 1)
        return values.array(section, source)

    match op.kind:
        case LeafKind.LINEAR:
            weight = plain._tensor(section, op.tensor)
            terms = np.abs(of(op.a)[:, 0]) @ np.abs(weight.astype(np.float64)).T
            return (weight.shape[1] + 1) * _U * terms.reshape(found.shape)
        case LeafKind.SCORE | LeafKind.MIX | LeafKind.ROPE:
            sizes = _Sizes(plain)
            sizes.evaluate(
                section,
                number,
                lambda s, o: np.abs(values.array(s, o)),
                out := np.zeros(found.shape),
            )
            terms = {
                LeafKind.SCORE: layout.program.head_dim + 2,
                LeafKind.MIX: layout.positions,
                LeafKind.ROPE: 3,
            }
            return terms[op.kind] * _U * np.where(np.isfinite(out), out, 0.0)
        case LeafKind.SUM | LeafKind.SQUARES:
            return layout.program.hidden * _U * size
    if op.kind in _CURVED:
        return _TRANSCENDENTAL * (size + np.abs(of(op.a)) if op.kind != LeafKind.EXP else size)
    return 16 * _U * size


class _Sizes(Builder):
    """Evaluates sums over the sizes of their terms."""

    def __init__(self, other: Builder) -> None:
        super().__init__(other._at, other._model, other._rows, other._do)

    def _tensor(self, section: int, number: int) -> Any:
        return np.abs(super()._tensor(section, number))

    def _rope(self, section: int, op: Any, array: Any, out: Any) -> None:
        x, half = array(section, op.a)[:, 0], self._p.head_dim // 2
        heads = x.reshape(len(x), -1, 2, half)
        out[:, 0] = np.broadcast_to(heads.sum(axis=2, keepdims=True), heads.shape).reshape(x.shape)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(prog="python -m benchmarks.trust.elements")
    asked.add_argument("--sampled", type=int, default=SAMPLED, help="elements judged in integers")
    print(table(rows(asked.parse_args().sampled)))
