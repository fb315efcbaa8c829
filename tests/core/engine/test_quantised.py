"""Are quantised numerics distinct by name, as small as they say, and auditable?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.engine.weights.formats import FORMATS, format_of
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import describe_model
from core.protocol.errors import ModelUnsupported, UsageError
from core.protocol.types import LayerRange

LAYERS = 4
INTEGERS = [name for name, form in FORMATS.items() if form.bits]
X = torch.randn(9, 64, generator=torch.Generator().manual_seed(3))


def run(
    folder: Path, numerics: str, *, start: int = 1, end: int = 3, **options: bool
) -> torch.Tensor:
    shard = load_shard(folder, LayerRange(start, end), numerics=numerics, **options)
    return shard.forward(X, shard.new_cache())


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("numerics", FORMATS)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_shard_weighs_what_the_description_says(
    architecture: str, numerics: str, tiny: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS)
    shape = describe_model(folder, numerics)
    assert shape.numerics == numerics
    for start, end in ((0, LAYERS), (0, 1), (1, 3), (3, LAYERS)):
        shard = load_shard(folder, LayerRange(start, end), numerics=numerics)
        assert shard.numerics == numerics
        assert shard.bytes == shape.shard_bytes(start, end)
        cache = shard.new_cache()
        shard.forward(torch.arange(5) if start == 0 else X, cache)
        assert cache._stores[0]._keys.element_size() == shape.item_bytes
    assert shape.layer_bytes < describe_model(folder).layer_bytes or not FORMATS[numerics].bits


@pytest.mark.parametrize("numerics", INTEGERS)
def test_quantised_answers_are_their_own_and_not_far_off(numerics: str, tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    exact, got = run(folder, "float64"), run(folder, numerics)
    coarse = 0.25 if FORMATS[numerics].bits == 4 else 0.03
    assert 1e-4 < distance(got, exact) < coarse
    others = [run(folder, other) for other in FORMATS if other != numerics]
    assert not any(torch.equal(got, other.to(got.dtype)) for other in others)


@pytest.mark.parametrize("numerics", INTEGERS)
def test_the_reference_holds_exactly_the_machines_weights(numerics: str, tiny: Callable) -> None:
    folder = tiny("qwen2", layers=LAYERS)
    served, reference = run(folder, numerics), run(folder, numerics, reference=True)
    assert reference.dtype == torch.float64
    rounding = 1e-6 if FORMATS[numerics].compute == "float32" else 0.02
    assert distance(served, reference) < rounding
    assert distance(run(folder, "float64"), reference) > 10 * distance(served, reference) or (
        FORMATS[numerics].compute == "bfloat16"
    )


@pytest.mark.parametrize("numerics", INTEGERS)
def test_cutting_a_quantised_model_keeps_its_bits(numerics: str, tiny: Callable) -> None:
    folder = tiny("qwen3", layers=LAYERS)
    whole = run(folder, numerics, start=0 + 1, end=LAYERS)
    first = load_shard(folder, LayerRange(1, 2), numerics=numerics)
    second = load_shard(folder, LayerRange(2, LAYERS), numerics=numerics)
    caches = first.new_cache(), second.new_cache()
    got = [second.forward(first.forward(x, caches[0]), caches[1]) for x in X.split(9)]
    assert torch.equal(torch.cat(got), whole)


def test_the_same_file_gives_the_same_integers(tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    for numerics in INTEGERS:
        assert torch.equal(run(folder, numerics), run(folder, numerics))


@pytest.mark.parametrize("numerics", INTEGERS)
def test_what_cannot_be_held_in_integers_is_refused(numerics: str, tiny: Callable) -> None:
    with pytest.raises(ModelUnsupported, match=r"Conv1D|no linear module"):
        load_shard(tiny("gpt2", layers=LAYERS), LayerRange(0, 2), numerics=numerics)


def test_a_group_that_does_not_divide_is_refused(tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS, hidden=72)
    assert load_shard(folder, LayerRange(0, 2), numerics="int8-weight-only").bytes
    with pytest.raises(ModelUnsupported, match="no multiple of 32"):
        load_shard(folder, LayerRange(0, 2), numerics="int4-weight-only")


def test_unknown_numerics_are_refused_with_the_known_ones(tiny: Callable) -> None:
    with pytest.raises(UsageError, match="int4-weight-only"):
        format_of("int3")
    with pytest.raises(UsageError, match="float16"):
        load_shard(tiny("llama", layers=LAYERS), LayerRange(0, 1), dtype=torch.float16)
