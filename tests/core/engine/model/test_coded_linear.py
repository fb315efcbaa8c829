"""A weight that stays packed multiplies as the unpacked one does, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.engine.kernels.layouts import Panels
from core.engine.model.coded_linear import CodedLinear
from core.engine.native.native import NoKernels, compile_kernels, kernels, open_kernels
from core.engine.weights.packed import E2M1, E4M3, CodedRows, CodeKind

try:
    kernels()
except NoKernels as error:
    pytest.skip(f"no C kernels: {error}", allow_module_level=True)

#: What is compiled for a module's tests is compiled once.
pytestmark = pytest.mark.xdist_group("coded")
RNG = np.random.default_rng(0)
#: (out, in, inputs of a group): panels that are not full, a ragged last group, one group in all.
SHAPES = [(45, 96, 32), (160, 1100, 128), (33, 100, 100), (7, 130, 128)]


@pytest.fixture(scope="module", params=["native", "narrow", "wide"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As this processor has it, and as ones with shorter and longer vectors would."""
    if request.param == "native":
        return kernels()
    vectors = {
        "narrow": ["-DVECTOR_BYTES=16", "-DMOST_ROWS=8"],
        "wide": ["-DVECTOR_BYTES=64", "-DMOST_ROWS=12"],
    }
    folder = tmp_path_factory.mktemp("coded")
    return open_kernels(compile_kernels(folder, *vectors[request.param]))


def coded(kind: CodeKind, out: int, inputs: int, group: int, order: str = "") -> CodedRows:
    codes = RNG.integers(0, 2**kind.bits, (out, inputs)).astype(np.uint8)
    codes[np.isnan(kind.numbers[codes])] = 1
    codes[0, : min(inputs, 2**kind.bits)] = np.arange(min(inputs, 2**kind.bits))
    codes[np.isnan(kind.numbers[codes])] = 1
    scales = RNG.normal(size=(out, -(-inputs // group))).astype(np.float32)
    zeros = RNG.integers(0, 2**kind.bits, scales.shape).astype(np.float32)
    has_zeros = kind.mantissa is None
    group_of = RNG.permutation(np.arange(inputs) // group) if order else None
    return CodedRows(codes, scales, zeros if has_zeros else None, group, group_of)


def linear(kind: CodeKind, rows: CodedRows, library: Any = None, **options: Any) -> CodedLinear:
    zeros = None if rows.zeros is None else rows.zeros.astype(np.uint8)
    return CodedLinear(
        rows.codes,
        rows.scales,
        zeros,
        bits=kind.bits,
        group_inputs=rows.group_inputs,
        group_of=rows.group_of,
        mantissa=-1 if kind.mantissa is None else kind.mantissa,
        unit=kind.unit,
        library=library,
        **options,
    )


@pytest.mark.parametrize("order", ["", "of its own"])
@pytest.mark.parametrize("kind", [E4M3, E2M1, CodeKind(8), CodeKind(4)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_unpacked_weight(
    shape: tuple[int, int, int], kind: CodeKind, order: str, library: Any
) -> None:
    rows = coded(kind, *shape, order)
    weight = torch.from_numpy(rows.values(kind))
    panels = Panels(library=library)
    bias = torch.nn.Parameter(torch.randn(shape[0]))
    for dtype in (torch.float32, torch.bfloat16):
        held = panels.lay(weight.to(dtype).float())
        module = linear(kind, rows, library, dtype=dtype, bias=bias)
        module.prove(rows.values(kind))
        for count in (1, 2, 13, 50):
            x = torch.randn(count, shape[1]).to(dtype)
            expected = panels.multiply(x.float(), held, bias, shape[0]).to(dtype)
            assert torch.equal(module(x), expected)
            assert torch.equal(module(x[None].expand(2, -1, -1))[1], expected)


def test_a_product_that_is_wrong_is_not_used() -> None:
    rows = coded(E4M3, *SHAPES[0])
    module = linear(E4M3, rows)
    with pytest.raises(NoKernels, match="is off by"):
        module.prove(rows.values(E4M3) * 1.01)


def test_what_no_kernel_multiplies_is_refused() -> None:
    rows = coded(E2M1, *SHAPES[0])
    with pytest.raises(NoKernels, match="float64"):
        linear(E2M1, rows, dtype=torch.float64)
    rows.scales[0, 0] = 2.0**127
    with pytest.raises(NoKernels, match="too large"):
        linear(E2M1, rows)
