"""How does freed memory go back to the system after loading, and to the next step while serving?

glibc raises the size from which a block has pages of its own whenever such a block is freed.
Buffers of a few MiB then come from the heap, parameters land between them, and the gaps stay held.
A fixed size prevents that. Serving wants the opposite: a page that is given anew is zeroed first.
What each came to: `docs/engine.md`, "Where constants come from".
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LARGE_PAGE_BYTES = 2 * 2**20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LOADING_BYTES = 2**20
_SERVING_BYTES = 32 * 2**20  # glibc's own upper end
#: The largest buffer that one step hands to the next. Larger ones have pages of their own, which
#: are zeroed each time.
REUSED_BYTES = _SERVING_BYTES - 2**20


@contextmanager
def own_pages() -> Iterator[None]:
    """Blocks from 1 MiB have pages of their own until the end.

    From then on none of up to `REUSED_BYTES`, and up to 64 MiB of what is freed stays with the
    process, as glibc's own rule would have it had nobody fixed a size. Does nothing without glibc.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _LOADING_BYTES)
    try:
        yield
    finally:
        _call("mallopt", _M_MMAP_THRESHOLD, _SERVING_BYTES)
        _call("mallopt", _M_TRIM_THRESHOLD, 2 * _SERVING_BYTES)


def in_large_pages(address: int, size_bytes: int) -> None:
    """Ask for pages of 2 MiB where these bytes fill whole ones: what is read from first to last
    waits less often for where it lies. For memory that was never written to. Does nothing
    where the system has none.
    """
    start, end = -(-address // _LARGE_PAGE_BYTES), (address + size_bytes) // _LARGE_PAGE_BYTES
    if start < end and hasattr(mmap, "MADV_HUGEPAGE"):
        first, count = start * _LARGE_PAGE_BYTES, (end - start) * _LARGE_PAGE_BYTES
        _call("madvise", ctypes.c_void_p(first), ctypes.c_size_t(count), mmap.MADV_HUGEPAGE)


def return_freed_memory() -> None:
    """Give the system back what the allocator keeps between what is in use."""
    _call("malloc_trim", 0)


def _call(name: str, *values: Any) -> None:
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # another C library
        return
    function(*values)
