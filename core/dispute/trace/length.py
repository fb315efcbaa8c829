"""How many positions may a request have, for its traces to be of so many chunks at most?"""

from __future__ import annotations

from collections.abc import Iterable

from core.dispute.trace.layout import MAX_POSITIONS, MAX_WINDOW_ROWS, TraceLayout
from core.dispute.trace.program import Program
from core.protocol.types import LayerRange


def judged_parts(program: Program, layers: LayerRange) -> list[LayerRange]:
    """What a stage of these layers can be accused of: each span, and all where it is shallow
    enough for one of the program's tolerances.
    """
    parts = layers.spans(program.span_layers)
    depth = max((entry.max_depth for entry in program.tolerances), default=0)
    return parts if len(layers) > depth or layers in parts else [*parts, layers]


def longest_request(program: Program, parts: Iterable[LayerRange], chunks: int) -> int:
    """Positions of the longest request whose pleaded trace through each part has at most so many
    chunks; 0 where one position has more.
    """
    parts = list(parts)
    least, most = 0, min(MAX_POSITIONS, program.context)
    while least < most:
        middle = (least + most + 1) // 2
        if max(pleaded_chunks(program, part, middle) for part in parts) <= chunks:
            least = middle
        else:
            most = middle - 1
    return least


def pleaded_chunks(program: Program, layers: LayerRange, positions: int) -> int:
    """Chunks of the longest trace of so many positions: of a plea, with the widest window."""
    window_from = max(0, positions - MAX_WINDOW_ROWS)
    return TraceLayout(program, layers.start, layers.end, positions, window_from, plea=0).chunks
