"""Buffers of one pass serve the next one, also after loading has fixed which blocks have pages of
their own.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import torch

from core.engine.memory.heap import REUSED_BYTES, in_large_pages, own_pages

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


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without large pages"
)
def test_whole_large_pages_are_asked_for_and_no_others() -> None:
    large = 2 * 2**20
    memory = torch.empty(REUSED_BYTES + 4 * large, dtype=torch.uint8)  # has pages of its own
    first = -(-(memory.data_ptr() + large) // large) * large
    in_large_pages(first + 4096, large - 4096)
    assert not {first, first + large} & _asked(first, 3)
    in_large_pages(first - 4096, 2 * large + 8192)
    assert _asked(first - large, 4) == {first, first + large}


def _asked(first: int, count: int) -> set[int]:
    """Of so many large pages those that the system was asked to have as such."""
    found, span = set(), (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split(maxsplit=1)[0]
        if "-" in name and not name.endswith(":"):
            start, end = name.split("-")
            span = int(start, 16), int(end, 16)
        elif name == "VmFlags:" and "hg" in line.split():
            large = 2 * 2**20
            found |= {
                at for at in range(first, first + count * large, large) if span[0] <= at < span[1]
            }
    return found
