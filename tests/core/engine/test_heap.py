"""Buffers of one pass serve the next one, also after loading has fixed which blocks have pages of their own."""

from __future__ import annotations

import resource
import sys

import pytest
import torch

from core.engine.heap import REUSED_BYTES, own_pages

_PAGE_BYTES = 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_buffers_are_not_faulted_in_anew() -> None:
    def passes() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.ones(REUSED_BYTES, dtype=torch.uint8)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with own_pages():
        pass
    passes()
    assert passes() < 4 * REUSED_BYTES // _PAGE_BYTES, "of 20 times that many"
