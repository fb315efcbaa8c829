"""How are pages copied while another thread computes?

Past the caches by our own C where that is possible, else by the library. What is copied is not read
before a step has gone by, which reads more than caches hold; what a step computes on stays there.
"""

from __future__ import annotations

from torch import Tensor

from core.engine.native.native import NoKernels, kernels

_LEAST_BYTES = 128 * 2**10
"""Smaller copies are no faster past the caches."""


def move(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)` of tensors [...] of one shape, with the interpreter free meanwhile."""
    if _lie_alike(target, source):
        try:
            kernels().stream(target.data_ptr(), source.data_ptr(), source.nbytes)
            return
        except NoKernels:
            pass
    target.copy_(source)


def _lie_alike(target: Tensor, source: Tensor) -> bool:
    """Are both equally many bytes in a row, that mean the same and lie in different places of main
    memory? An address says nothing of this: whatever is not sure here is left to the library, which
    converts, spreads or refuses.
    """
    if target.shape != source.shape or target.dtype != source.dtype:
        return False
    if target.device.type != "cpu" or source.device.type != "cpu":
        return False
    if source.nbytes < _LEAST_BYTES or not (target.is_contiguous() and source.is_contiguous()):
        return False
    to, from_ = target.data_ptr(), source.data_ptr()
    return abs(to - from_) >= source.nbytes
