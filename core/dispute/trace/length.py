"""How many positions may a request have, for its traces to be no more work than fits?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from core.dispute.referee import LeafKind
from core.dispute.trace.layout import MAX_POSITIONS, MAX_WINDOW_ROWS, TraceLayout
from core.dispute.trace.program import Program
from core.protocol.types import LayerRange


@dataclass(frozen=True)
class TraceWork:
    """What a trace has: chunks, and products of its dot products."""

    chunks: int
    products: int


def judged_parts(program: Program, layers: LayerRange) -> list[LayerRange]:
    """What a stage of these layers can be accused of: each span, and all where it is shallow
    enough for one of the program's tolerances.
    """
    parts = layers.spans(program.span_layers)
    depth = max((entry.max_depth for entry in program.tolerances), default=0)
    return parts if len(layers) > depth or layers in parts else [*parts, layers]


def longest_request(
    program: Program, parts: Iterable[LayerRange], fits: Callable[[TraceWork], bool]
) -> int:
    """Positions of the longest request whose pleaded trace through each part fits; 0 where none
    does. What has more of either must not fit where less does not.
    """
    parts = list(parts)
    least, most = 0, min(MAX_POSITIONS, program.context)
    while least < most:
        middle = (least + most + 1) // 2
        if all(fits(pleaded_work(program, part, middle)) for part in parts):
            least = middle
        else:
            most = middle - 1
    return least


def pleaded_work(program: Program, layers: LayerRange, positions: int) -> TraceWork:
    """The longest trace of so many positions: of a plea, with the widest window."""
    window_from = max(0, positions - MAX_WINDOW_ROWS)
    layout = TraceLayout(program, layers.start, layers.end, positions, window_from, plea=0)
    products = sum(
        _products(layout, section, number)
        for section in range(len(layout.section_types))
        for number in range(len(layout.section(section).ops))
    )
    return TraceWork(layout.chunks, products)


def _products(layout: TraceLayout, section: int, number: int) -> int:
    """Of one operator; an attention's only where a row sees what comes before it."""
    op, program = layout.op(section, number), layout.program
    if op.kind == LeafKind.LINEAR:
        shape = layout.shape(op.form)
        depth = layout.length(layout.operand_form(section, op.a))
        return shape.rows * shape.segments * shape.length * depth
    if op.kind in (LeafKind.SCORE, LeafKind.MIX):
        return layout.positions * (layout.positions + 1) // 2 * program.query
    return 0
