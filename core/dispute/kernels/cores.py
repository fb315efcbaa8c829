"""How is work shared among the cores that this process may use?

By threads: C of ours and numpy let other threads run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Part = TypeVar("Part")


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_all_cores(work: Callable[[Part], object], parts: Iterable[Part]) -> None:
    """Do the work on each part, in no order. `work` must not come back here. Raises its errors."""
    parts = list(parts)
    if len(parts) < 2 or cores() < 2:
        for part in parts:
            work(part)
    else:
        for _ in _threads().map(work, parts):
            pass


def slices(count: int, most: int) -> list[slice]:
    """[0, count) in runs of at most `most`."""
    return [slice(at, min(at + most, count)) for at in range(0, count, most)]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="traces")
