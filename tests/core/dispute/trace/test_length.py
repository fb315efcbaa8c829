"""How long a request may be, for its trace to be built in a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.dispute.trace.layout import MAX_POSITIONS, TraceLayout
from core.dispute.trace.length import TraceWork, judged_parts, longest_request, pleaded_work
from core.protocol.types import LayerRange
from tests.twins.game import toy

PROGRAM = toy.Toy.make(toy.LLAMA).program
LAYERS = LayerRange(0, 2)


@pytest.mark.parametrize("positions", [1, 2, 7, 30, 255, 256, 257, 4000])
def test_the_longest_request_is_the_one_whose_trace_still_fits(positions: int) -> None:
    program = replace(PROGRAM, context=4096)
    work = pleaded_work(program, LAYERS, positions)
    assert longest_request(program, [LAYERS], lambda w: w.chunks <= work.chunks) == positions
    assert longest_request(program, [LAYERS], lambda w: w.chunks < work.chunks) == positions - 1
    assert longest_request(program, [LAYERS], lambda w: w.products <= work.products) == positions
    assert longest_request(program, [LAYERS], lambda w: w.products < work.products) == positions - 1
    shorter = TraceLayout(program, 0, 2, positions, positions - 1)
    assert work.chunks > shorter.chunks, "without a plea, or with a narrower window"


@pytest.mark.parametrize("positions", [1, 5])
def test_products_are_those_of_weights_and_of_what_rows_see(positions: int) -> None:
    p = PROGRAM
    attention, mlp = p.hidden * (2 * p.query + 2 * p.keys), 3 * p.hidden * p.inner
    seen = positions * (positions + 1) // 2
    a_layer = positions * (attention + mlp) + 2 * seen * p.heads * p.head_dim
    assert pleaded_work(p, LAYERS, positions).products == 2 * 2 * a_layer


def test_the_deepest_part_and_the_context_bound_it() -> None:
    chunks = pleaded_work(PROGRAM, LAYERS, 9).chunks
    parts = [LayerRange(0, 1), LAYERS]

    def fits(work: TraceWork) -> bool:
        return work.chunks <= chunks

    assert longest_request(PROGRAM, parts, fits) == 9 < longest_request(PROGRAM, parts[:1], fits)
    assert longest_request(replace(PROGRAM, context=5), parts, fits) == 5
    endless = replace(PROGRAM, context=2**30)
    assert longest_request(endless, parts, lambda _: True) == MAX_POSITIONS


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
