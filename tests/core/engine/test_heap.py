"""Buffers of one pass serve the next one, also after loading has fixed which blocks have pages of their own."""

from __future__ import annotations

import resource
import sys

import pytest
import torch

from core.engine.heap import keep_freed_memory, own_pages

_PAGES = 2048  # of 4 KiB, in 8 MiB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_buffers_are_not_faulted_in_anew() -> None:
    def passes() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.ones(2**20, dtype=torch.float64)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with own_pages():
        pass
    keep_freed_memory()
    passes()
    assert passes() < 4 * _PAGES, "of 20 times that many"
