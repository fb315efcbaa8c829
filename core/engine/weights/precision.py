"""Does a device multiply as exactly as the formats promise?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from core.protocol.errors import UsageError

_INPUTS = 512
#: Of the largest product: float32 sums are within 1e-6, TensorFloat-32 rounds to 5e-4.
_LARGEST = 1e-5


def require_precision(
    device: torch.device, multiply: Callable[[Tensor, Tensor], Tensor] = torch.mm
) -> None:
    """Have products on a device summed in float32, and raise UsageError where it rounds float32
    factors before it multiplies them: its machine would lose its stake by honest work.
    """
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    numbers = torch.Generator().manual_seed(0)
    x, w = (torch.randn(side, _INPUTS, generator=numbers, dtype=torch.float64) for side in (16, 64))
    exact = x @ w.t()
    made = multiply(x.float().to(device), w.float().to(device).t()).cpu().double()
    off = float((made - exact).abs().max() / exact.abs().max())
    if not off <= _LARGEST:
        raise UsageError(
            f"{device} rounds float32 before it multiplies",
            why=f"a product is off by {off:.1e}, and {_LARGEST:.0e} is the most; TensorFloat-32 is "
            "on, and audits would find this machine's work at fault",
            next_step="unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE and NVIDIA_TF32_OVERRIDE, which some "
            "container images set",
        )
