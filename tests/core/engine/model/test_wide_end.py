"""Products of a bfloat16 matrix are as exact as float32 makes them, whichever way they go."""

from __future__ import annotations

import pytest
import torch

from core.engine.kernels.layouts import HalfPanels
from core.engine.kernels.prepack import PackedLinear
from core.engine.model.wide_end import WideHead, by_pieces
from core.engine.native.native import NoKernels, kernels

DEPTH, WIDTH = 300, 700


@pytest.fixture(params=["blocks", "pieces", "panels", "float32"])
def made(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    """What comes out, and the exact product."""
    seeded = torch.Generator().manual_seed(3)
    plain = torch.nn.Linear(DEPTH, WIDTH, dtype=torch.bfloat16)
    with torch.no_grad():
        plain.weight.copy_(torch.randn(WIDTH, DEPTH, generator=seeded))
    x = torch.randn(5, DEPTH, generator=seeded) * 10 ** torch.randn(5, 1, generator=seeded)
    exact = x.double() @ plain.weight.detach().double().t()
    if request.param == "pieces":
        # Here products of bfloat16 are rounded to it; the pieces are multiplied as float32.
        return by_pieces(x, plain.weight.float(), None, torch.float32), exact
    head = WideHead(plain)
    if request.param == "float32":
        head.weight = torch.nn.Parameter(head.weight.float(), requires_grad=False)
    if request.param == "panels":
        try:
            kernels()
        except NoKernels as error:
            pytest.skip(f"no C kernels: {error}")
        return PackedLinear(HalfPanels(), head.weight, None)(x), exact
    assert head.bias is not None
    return head(x) - head.bias, exact


def test_a_logit_is_float32s(made: tuple[torch.Tensor, torch.Tensor]) -> None:
    got, exact = made
    assert got.dtype == torch.float32
    rows = exact.abs().amax(dim=1, keepdim=True)
    assert float(((got - exact).abs() / rows).max()) < 2e-6
