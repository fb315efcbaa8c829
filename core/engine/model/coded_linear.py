"""How is a linear layer multiplied whose weight stays packed, as it was published?

Codes are unpacked to float32 where they are multiplied, a few thousand at a time (`products.c`), so
the product has the bits of the unpacked weight's. Rows of bfloat16 are multiplied as float32.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from core.engine.native.native import NoKernels, kernels

_CHECKED_ROWS = 2
_CHECKED_OUTPUTS = 64
_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class _Coded(ctypes.Structure):
    """`Coded` of products.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "zeros", "group_of")),
        *((name, ctypes.c_int64) for name in ("group_inputs", "groups", "bits", "mantissa")),
        ("unit", ctypes.c_float),
        ("is_half", ctypes.c_int32),
    ]


class CodedLinear(nn.Module):
    """Stands for a linear module of a weight [out, in] that is held as codes."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    group_of: Tensor | None

    def __init__(
        self,
        codes: npt.NDArray[np.uint8],
        scales: npt.NDArray[np.float32],
        zeros: npt.NDArray[np.uint8] | None,
        *,
        bits: int,
        group_inputs: int,
        group_of: npt.NDArray[np.int32] | None = None,
        mantissa: int = -1,
        unit: float = 1.0,
        bias: nn.Parameter | None = None,
        dtype: torch.dtype = torch.float32,
        library: ctypes.CDLL | None = None,
    ) -> None:
        """Codes [out, in], scales and zero points [out, groups]; products are in `dtype`.

        With `mantissa` ≥ 0 a code is a float with a sign, in units of its smallest number. Raises
        NoKernels where they cannot be multiplied here.
        """
        super().__init__()
        is_float = mantissa >= 0
        if bits not in (4, 8) or dtype not in _TOLERANCES or (is_float and zeros is not None):
            raise NoKernels(f"codes of {bits} bits are not multiplied in {dtype}")
        library = library or kernels()
        self._multiply, width = library.multiply_coded, library.panel_width()
        self.out_features, self.in_features = codes.shape
        self.bias, self._dtype = bias, dtype
        half_unit = 1.0
        if is_float:  # halves of the same digits, which processors unpack
            half_unit = 2.0 ** (-14 - mantissa)
            with np.errstate(over="ignore"):
                scales = scales * np.float32(unit / half_unit)
            if not np.isfinite(scales).all():
                raise NoKernels("a scale is too large")
        by_line = _by_panel(codes, width)
        if bits == 4:
            by_line = by_line[..., : width // 2] | by_line[..., width // 2 :] << 4
        self.register_buffer("codes", torch.from_numpy(np.ascontiguousarray(by_line)))
        self.register_buffer("scales", torch.from_numpy(_by_panel(scales, width)))
        laid_zeros = None if zeros is None else torch.from_numpy(_by_panel(zeros, width))
        self.register_buffer("zeros", laid_zeros)
        ordered = None if group_of is None else torch.from_numpy(group_of.astype(np.int32))
        self.register_buffer("group_of", ordered)
        self._described = _Coded(
            self.codes.data_ptr(),
            self.scales.data_ptr(),
            None if self.zeros is None else self.zeros.data_ptr(),
            None if self.group_of is None else self.group_of.data_ptr(),
            group_inputs,
            scales.shape[1],
            bits,
            mantissa,
            half_unit,
            dtype == torch.bfloat16,
        )

    def forward(self, x: Tensor) -> Tensor:
        """[…, in] → […, out], in the dtype of x."""
        rows = x.reshape(-1, self.in_features).float()
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        bias = None if self.bias is None else self.bias.float()
        out = torch.empty((*x.shape[:-1], self.out_features))
        self._multiply(
            rows.data_ptr(),
            rows.stride(0),
            ctypes.byref(self._described),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            len(rows),
            self.in_features,
            self.out_features,
            torch.get_num_threads(),
        )
        return out.to(x.dtype)

    def prove(self, first: npt.NDArray[np.float32]) -> None:
        """Raise NoKernels unless a product is that of the weight's first values [few, in]."""
        values = torch.from_numpy(first[:_CHECKED_OUTPUTS]).to(self._dtype).double()
        made = torch.Generator().manual_seed(0)
        x = torch.randn(_CHECKED_ROWS, self.in_features, generator=made).to(self._dtype)
        bias, self.bias = self.bias, None
        found = self(x)[:, : len(values)].double()
        self.bias = bias
        expected = x.double() @ values.t()
        size = expected.abs().max().clamp_min(1e-30)
        off = float((found - expected).abs().max() / size)
        if not off <= _TOLERANCES[self._dtype]:
            raise NoKernels(f"a product of codes is off by {off:.1e}")


def _by_panel(values: npt.NDArray, width: int) -> npt.NDArray:
    """[out, n] → [panels, n, width], filled up with zeros."""
    out, depth = values.shape
    panels = -(-out // width)
    laid = np.zeros((panels, depth, width), dtype=values.dtype)
    whole = out // width
    laid[:whole] = values[: whole * width].reshape(whole, width, depth).transpose(0, 2, 1)
    if whole < panels:
        laid[whole, :, : out - whole * width] = values[whole * width :].T
    return laid
