"""In which order does a processor like a weight to lie, and what multiplies by it then?

Ours is tried first: it reads every weight once and gives a row the same bits beside any others,
alone too. oneDNN's serves other number formats and machines without a compiler; its operators are
not a stable interface of torch.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from core.engine.memory.heap import in_large_pages
from core.engine.native.native import NoKernels, kernels

_ALIGNMENT_BYTES = 64  # a line of the cache
#: Rows that oneDNN's order is chosen for; a hint of one row chooses another kernel for it, with
#: other bits.
_ROWS_HINT = 16


#: What products.c is compiled for.
PANELLED = (torch.float32, torch.float64)


class WeightLayout(Protocol):
    """One way of laying weights out. Raises RuntimeError or AttributeError for what it cannot."""

    name: str

    def lay(self, weight: Tensor) -> Tensor:
        """[out, in] in this layout's order."""
        ...

    def multiply(self, x: Tensor, laid: Tensor, bias: Tensor | None, columns: int) -> Tensor:
        """[…, in] by a laid weight, plus the bias → […, columns]."""
        ...


class Panels:
    """`products.c`: panels of as many columns as two vectors hold. Of one of `PANELLED`."""

    name = "panels"

    def __init__(
        self, dtype: torch.dtype = torch.float32, library: ctypes.CDLL | None = None
    ) -> None:
        """Raises NoKernels where they cannot be had."""
        if dtype not in PANELLED:
            raise NoKernels(f"there are no panels of {dtype}")
        library = library or kernels(8 * dtype.itemsize)
        self.dtype = self.held = dtype
        self._multiply = library.multiply
        self._width: int = library.panel_width()

    def lay(self, weight: Tensor) -> Tensor:
        """[out, in] → [panels, in, width]."""
        if weight.dtype != self.held:
            raise NoKernels(f"these are panels of {self.held}, not {weight.dtype}")
        out, depth = weight.shape
        panels = -(-out // self._width)
        size = panels * depth * self._width
        laid = aligned(size, weight.dtype).view(panels, depth, self._width)
        whole = out // self._width
        split = whole * self._width
        laid[:whole] = weight[:split].view(whole, self._width, depth).transpose(1, 2)
        if whole < panels:
            laid[whole].zero_()[:, : out - split] = weight[split:].t()
        return laid

    def multiply(
        self,
        x: Tensor,
        laid: Tensor,
        bias: Tensor | None,
        columns: int,
        space: Tensor | None = None,
    ) -> Tensor:
        """[…, in] → […, columns], in `space` [m] of consecutive numbers where they suffice."""
        depth = laid.shape[1]
        if x.dtype != self.dtype or x.shape[-1] != depth:
            raise RuntimeError(f"{x.dtype} of {x.shape[-1]} against {self.dtype} of {depth}")
        rows = x.reshape(-1, depth)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        shape, size = (*x.shape[:-1], columns), len(rows) * columns
        if space is not None and size <= len(space):
            out = space[:size].view(shape)
        else:
            out = torch.empty(shape, dtype=x.dtype)
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


class HalfPanels(Panels):
    """The same of weights in bfloat16 that are multiplied as float32: rows of float32."""

    name = "half panels"

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        """Raises NoKernels where they cannot be had."""
        library = library or kernels()
        super().__init__(torch.float32, library)
        self.held, self._multiply = torch.bfloat16, library.multiply_half


class OneDnn:
    """oneDNN's blocks: a row's bits depend on no other row from two rows on."""

    name = "oneDNN"

    def lay(self, weight: Tensor) -> Tensor:
        """[out, in] in oneDNN's own order."""
        laid: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        return laid

    def multiply(self, x: Tensor, laid: Tensor, bias: Tensor | None, columns: int) -> Tensor:
        """[…, in] → […, columns]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], "")
        return out


def layouts_of(
    dtype: torch.dtype, multiplied: torch.dtype | None = None
) -> tuple[list[WeightLayout], str]:
    """What may be tried for weights of this dtype, the best first; why one is missing, or "".

    `multiplied` is what rows are in and products are computed in, `dtype` where it is None.
    """
    found: list[WeightLayout] = []
    missing = ""
    is_wide = multiplied not in (None, dtype)
    if dtype in PANELLED or is_wide:
        try:
            found.append(HalfPanels() if is_wide else Panels(dtype))
        except NoKernels as error:
            missing = str(error)
    if dtype == torch.float64 or is_wide:  # oneDNN has none of it
        return found, missing
    if torch.backends.mkldnn.is_available():
        found.append(OneDnn())
    else:
        missing = missing or "this torch has no oneDNN"
    return found, missing


def aligned(count: int, dtype: torch.dtype) -> Tensor:
    """`count` unwritten numbers, from where a line of the cache begins."""
    line = _ALIGNMENT_BYTES // dtype.itemsize
    raw = torch.empty(count + line, dtype=dtype)
    in_large_pages(raw.data_ptr(), raw.nbytes)
    skip = -(raw.data_ptr() // dtype.itemsize) % line
    return raw[skip : skip + count]
