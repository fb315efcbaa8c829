"""What a model weighs, judged by its specification on chain."""

from __future__ import annotations

import pytest

from core.engine.weights.formats import FORMATS
from core.protocol.errors import ModelUnsupported
from core.protocol.signing import name_hash
from matcher.fleet.shapes import shape_of
from tests.town.fleet import SPEC, make_spec

PARAMETERS = 576 * (2 * 576 + 2 * 3 * 64 + 3 * 1536)


def test_a_layer_of_the_default_model_weighs_its_matrices() -> None:
    shape = shape_of(SPEC)
    assert shape.layer_bytes == PARAMETERS * 4
    assert shape.embedding_bytes == shape.head_bytes == 49152 * 576 * 4
    assert (shape.layers, shape.hidden, shape.tied) == (30, 576, False)
    assert shape.kv_bytes_per_token_per_layer == 2 * 3 * 64 * 4


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float64", 8)])
def test_bytes_follow_the_dtype_and_boundaries_stay_float32(dtype: str, size: int) -> None:
    shape = shape_of(make_spec(dtype=name_hash(dtype)))
    assert shape.layer_bytes == PARAMETERS * size
    assert shape.activation_bytes_per_token == 576 * 4


def test_wide_heads_and_ungated_layers_are_counted() -> None:
    wide = shape_of(make_spec(architecture=name_hash("gemma3_text")))
    assert wide.layer_bytes == 4 * 576 * (2 * 9 * 256 + 2 * 3 * 256 + 3 * 1536)
    plain = shape_of(make_spec(architecture=name_hash("gpt2")))
    assert plain.layer_bytes == 4 * 576 * (2 * 576 + 2 * 3 * 64 + 2 * 1536)


@pytest.mark.parametrize(
    ("numerics", "per_value", "per_output", "other"),
    [
        ("int8-weight-only", 1, 5, 4),
        ("int8-weight-only-bfloat16", 1, 5, 2),
        ("int4-weight-only", 5 / 8, 0, 2),
    ],
)
def test_quantised_layers_shrink_and_tables_do_not(
    numerics: str, per_value: float, per_output: int, other: int
) -> None:
    shape = shape_of(make_spec(dtype=name_hash(numerics)))
    outputs = 576 + 2 * 3 * 64 + 576 + 2 * 1536 + 576
    assert shape.layer_bytes == PARAMETERS * per_value + outputs * per_output
    assert shape.embedding_bytes == 49152 * 576 * other
    assert shape.kv_bytes_per_token_per_layer == 2 * 3 * 64 * other


def test_numerics_weigh_here_what_the_engine_says_they_weigh() -> None:
    for name, form in FORMATS.items():
        shape = shape_of(make_spec(dtype=name_hash(name)))
        matrices = [
            (576, 576),
            (576, 576),
            (192, 576),
            (192, 576),
            (1536, 576),
            (1536, 576),
            (576, 1536),
        ]
        assert shape.layer_bytes == sum(form.matrix_bytes(*matrix) for matrix in matrices)


def test_an_unknown_dtype_cannot_be_planned() -> None:
    with pytest.raises(ModelUnsupported):
        shape_of(make_spec(dtype=name_hash("int3")))
