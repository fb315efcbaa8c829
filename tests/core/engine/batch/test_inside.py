"""Are the rows at the boundaries inside a stage those that a stage up to there would send?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from core.engine.batch.batch import BatchEngine
from core.engine.batch.compat import CompatEngine
from core.engine.batch.pieces import ALL, NONE, RequestPiece
from core.protocol.types import LayerRange
from tests.core.engine.batch.test_graphs import capture
from tests.core.engine.serving import ids_of, make_stages

LAYERS, SPAN = 5, 2
CLOSE = 2e-5
ENGINES = (BatchEngine, CompatEngine)


def step(engine: Any, pieces: list[RequestPiece], **options: Any) -> tuple[list[Any], list[Any]]:
    inside: list[list[Tensor]] = []
    return engine.step(pieces, inside=inside, **options), inside


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_rows_inside_are_those_of_shallower_stages(
    architecture: str, engine: type, tiny: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS)
    (stage,) = make_stages(folder, (0, LAYERS), engine=engine, span_layers=SPAN)
    shallow = {b: make_stages(folder, (0, b), engine=engine)[0] for b in (2, 4)}
    for each in (stage, *shallow.values()):
        for name in "ab":
            each.open(name)
    for first, count, logits in ((0, 20, NONE), (20, 1, ALL), (21, 7, ALL)):
        pieces = [RequestPiece(name, ids_of(7, 64)[first:][:count], first, logits) for name in "ab"]
        _, inside = step(stage, pieces)
        assert [len(rows) for rows in inside] == [2, 2]
        for number, other in enumerate(shallow.values()):
            for rows, wanted in zip(inside, other.step(pieces), strict=True):
                assert float((rows[number] - wanted).abs().max()) < CLOSE


@pytest.mark.parametrize("engine", ENGINES)
def test_boundaries_count_from_where_a_request_enters(engine: type, tiny: Callable) -> None:
    """Requests over other layers share a step, and each has boundaries of its own."""
    folder = tiny("llama", layers=LAYERS)
    (stage,) = make_stages(folder, (0, LAYERS), engine=engine, span_layers=SPAN)
    ranges = {"whole": (0, 5), "late": (1, 5), "early": (0, 3), "short": (3, 5)}
    rows = torch.randn(9, stage.shard.hidden, generator=torch.Generator().manual_seed(1))
    for name, span in ranges.items():
        stage.open(name, LayerRange(*span))
    entering = {name: rows if span[0] else ids_of(3, 9) for name, span in ranges.items()}
    pieces = [RequestPiece(name, entering[name], 0, ALL) for name in ranges]
    _, inside = step(stage, pieces)
    assert [len(each) for each in inside] == [2, 1, 1, 0]
    for (name, (start, _)), found in zip(ranges.items(), inside, strict=True):
        for number, part in enumerate(found):
            end = start + SPAN * (number + 1)
            (other,) = make_stages(folder, (0, LAYERS), engine=engine)
            other.open(name, LayerRange(start, end))
            (wanted,) = other.step([RequestPiece(name, entering[name], 0)])
            assert float((part - wanted).abs().max()) < CLOSE


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_has_the_same_bits_with_boundaries(engine: type, tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    stages = [
        make_stages(folder, (0, LAYERS), engine=engine, span_layers=span)[0] for span in (0, SPAN)
    ]
    for stage in stages:
        stage.open("r")
    for first, count in ((0, 20), (20, 1), (21, 1)):
        pieces = [RequestPiece("r", ids_of(7, 64)[first:][:count], first, ALL)]
        plain, cut = (stage.step(pieces)[0] for stage in stages)
        assert torch.equal(plain, cut)


def test_a_captured_step_gives_them_too(tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    engines = [
        make_stages(folder, (0, LAYERS), span_layers=SPAN, **options)[0]
        for options in ({}, {"capture": capture})
    ]
    for engine in engines:
        engine.open("r")
    for at in range(6):
        pieces = [RequestPiece("r", ids_of(at, 1), at, ALL)]
        (plain, wanted), (captured, found) = (step(engine, pieces) for engine in engines)
        assert float((plain[0] - captured[0]).abs().max()) < CLOSE
        for one, other in zip(wanted[0], found[0], strict=True):
            assert float((one - other).abs().max()) < CLOSE
    assert engines[1].graphs is not None and engines[1].graphs.replays


@pytest.mark.parametrize("layers", [(0, 4), (0, LAYERS)], ids=["passing", "last"])
def test_a_kept_chunk_has_its_rows_inside(layers: tuple[int, int], tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    (stage,) = make_stages(folder, layers, span_layers=SPAN)
    links, ids = (b"one",), ids_of(5, 32)
    stage.open("first")
    outs, ((*inner,),) = step(stage, [RequestPiece("first", ids, 0, NONE, links=links)])
    stage.open("second")
    kept = stage.adopt("second", links, 32)
    assert kept is not None
    parts = [*inner, *(outs if not stage.shard.is_last else [])]
    assert torch.equal(kept, torch.cat(parts, -1))
