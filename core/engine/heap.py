"""How does memory that loading no longer needs go back to the system at once?

glibc raises the size from which a block has pages of its own whenever such a block is freed. Buffers of a few MiB then
come from the heap, parameters land between them, and what they leave is held though nobody uses it: a fifth of
a shard of 214 MiB in 8 of 10 loads, and never more than 2 MiB with a fixed size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LOADING_BYTES = 2**20
#: glibc's own upper end: what its rule would have come to. Steps reuse their buffers again.
_SERVING_BYTES = 32 * 2**20


@contextmanager
def own_pages() -> Iterator[None]:
    """Blocks from 1 MiB have pages of their own until the end. Does nothing without glibc."""
    _set_threshold(_LOADING_BYTES)
    try:
        yield
    finally:
        _set_threshold(_SERVING_BYTES)


@cache
def keep_freed_memory() -> None:
    """From now on up to 64 MiB of what is freed stays with the process: glibc's own rule, twice the size above, which fixing that size ends.

    A pass in float64 would else be given each of its buffers anew, 10,000 pages and an eighth of its time.
    """
    _call("mallopt", _M_TRIM_THRESHOLD, 2 * _SERVING_BYTES)


def return_freed_memory() -> None:
    """Give the system back what the allocator keeps between what is in use."""
    _call("malloc_trim", 0)


def _set_threshold(size_bytes: int) -> None:
    _call("mallopt", _M_MMAP_THRESHOLD, size_bytes)


def _call(name: str, *values: int) -> None:
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # another C library
        return
    function(*values)
