"""In which order does a processor like a weight to lie, and what multiplies by it then?

Ours is tried first: it reads every weight once and gives a row the same bits in any company, alone too. oneDNN's serves
other number formats and machines without a compiler; its operators are not a stable interface of torch.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from core.engine.native import NoKernels, kernels

_ALIGNMENT = 16  # float32 numbers: a line of the cache
#: Rows that oneDNN's order is chosen for; a hint of one row chooses another kernel for it, with other bits.
_ROWS_HINT = 16


class Layout(Protocol):
    """One way of laying weights out. What it cannot do it says with RuntimeError or AttributeError when tried."""

    name: str

    def lay(self, weight: Tensor) -> Tensor:
        """[out, in] in this layout's order."""
        ...

    def multiply(self, x: Tensor, laid: Tensor, bias: Tensor | None, columns: int) -> Tensor:
        """[…, in] by a laid weight, plus the bias → […, columns]."""
        ...


class Panels:
    """`products.c`: panels of as many columns as two vectors hold. float32 alone."""

    name = "panels"

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        """Raises NoKernels where they cannot be had."""
        self._library = library or kernels()
        self._multiply = self._library.multiply
        self._width: int = self._library.panel_width()

    def lay(self, weight: Tensor) -> Tensor:
        if weight.dtype != torch.float32:
            raise NoKernels(f"there are no panels of {weight.dtype}")
        out, depth = weight.shape
        panels = -(-out // self._width)
        laid = _aligned(panels * depth * self._width).view(panels, depth, self._width)
        whole = out // self._width
        split = whole * self._width
        laid[:whole] = weight[:split].view(whole, self._width, depth).transpose(1, 2)
        if whole < panels:
            laid[whole].zero_()[:, : out - split] = weight[split:].t()
        return laid

    def multiply(self, x: Tensor, laid: Tensor, bias: Tensor | None, columns: int) -> Tensor:
        depth = laid.shape[1]
        if x.dtype != torch.float32 or x.shape[-1] != depth:
            raise RuntimeError(f"{x.dtype} of {x.shape[-1]} against float32 of {depth}")
        rows = x.reshape(-1, depth)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = torch.empty(*x.shape[:-1], columns)
        self._multiply(
            rows.data_ptr(),
            rows.stride(0),
            laid.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            rows.shape[0],
            depth,
            columns,
            torch.get_num_threads(),
        )
        return out


class OneDnn:
    """oneDNN's blocks: a row's bits depend on no other row from two rows on."""

    name = "oneDNN"

    def lay(self, weight: Tensor) -> Tensor:
        laid: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        return laid

    def multiply(self, x: Tensor, laid: Tensor, bias: Tensor | None, columns: int) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], "")
        return out


def layouts_of(dtype: torch.dtype) -> tuple[list[Layout], str]:
    """What may be tried for weights of this dtype, the best first, and why one is missing ("" if none is)."""
    found: list[Layout] = []
    missing = ""
    if dtype == torch.float32:
        try:
            found.append(Panels())
        except NoKernels as error:
            missing = str(error)
    if torch.backends.mkldnn.is_available():
        found.append(OneDnn())
    else:
        missing = missing or "this torch has no oneDNN"
    return found, missing


def _aligned(count: int) -> Tensor:
    raw = torch.empty(count + _ALIGNMENT)
    skip = -(raw.data_ptr() // 4) % _ALIGNMENT
    return raw[skip : skip + count]
