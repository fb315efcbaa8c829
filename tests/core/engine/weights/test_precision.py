"""Is a device that rounds float32 factors found before it serves?"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.engine.weights.precision import require_precision
from core.protocol.errors import UsageError

CPU = torch.device("cpu")


def rounded(x: Tensor) -> Tensor:
    """To the eleven bits of a TensorFloat-32 factor."""
    return ((x.contiguous().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def test_float32_products_pass() -> None:
    require_precision(CPU)


def test_rounded_factors_are_refused() -> None:
    with pytest.raises(UsageError, match="rounds float32 before it multiplies"):
        require_precision(CPU, lambda x, w: rounded(x) @ rounded(w))


def test_a_product_that_is_not_finite_is_refused() -> None:
    with pytest.raises(UsageError, match="off by nan"):
        require_precision(CPU, lambda x, w: (x @ w) * torch.nan)
