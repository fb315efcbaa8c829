"""How long a request may be, for its trace to be built in a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.dispute.trace.layout import MAX_POSITIONS, TraceLayout
from core.dispute.trace.length import judged_parts, longest_request, pleaded_chunks
from core.protocol.types import LayerRange
from tests.twins.game import toy

PROGRAM = toy.Toy.make(toy.LLAMA).program
LAYERS = LayerRange(0, 2)


@pytest.mark.parametrize("positions", [1, 2, 7, 30, 255, 256, 257, 4000])
def test_the_longest_request_is_the_one_whose_trace_still_fits(positions: int) -> None:
    program = replace(PROGRAM, context=4096)
    chunks = pleaded_chunks(program, LAYERS, positions)
    assert longest_request(program, [LAYERS], chunks) == positions
    assert longest_request(program, [LAYERS], chunks - 1) == positions - 1
    shorter = TraceLayout(program, 0, 2, positions, positions - 1)
    assert chunks > shorter.chunks, "without a plea, or with a narrower window"


def test_the_deepest_part_and_the_context_bound_it() -> None:
    chunks = pleaded_chunks(PROGRAM, LAYERS, 9)
    parts = [LayerRange(0, 1), LAYERS]
    assert (
        longest_request(PROGRAM, parts, chunks) == 9 < longest_request(PROGRAM, parts[:1], chunks)
    )
    assert longest_request(replace(PROGRAM, context=5), parts, chunks) == 5
    endless = replace(PROGRAM, context=2**30)
    assert longest_request(endless, parts, 2**100) == MAX_POSITIONS


def test_a_stage_is_judged_by_its_spans_and_whole_where_it_is_shallow() -> None:
    spans = [LayerRange(0, 2), LayerRange(2, 4), LayerRange(4, 5)]
    (tolerance,) = PROGRAM.tolerances[:1]
    for deepest, whole in ((4, []), (5, [LayerRange(0, 5)])):
        program = replace(
            PROGRAM, span_layers=2, tolerances=(replace(tolerance, max_depth=deepest),)
        )
        assert judged_parts(program, LayerRange(0, 5)) == spans + whole
    assert judged_parts(replace(PROGRAM, span_layers=2), LAYERS) == [LAYERS], "it is one span"
    assert judged_parts(replace(PROGRAM, tolerances=(), span_layers=0), LAYERS) == [LAYERS]
