"""Decode steps as they come to a later stage: of each microbatch the first one leads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from core.batching.step import RequestStep


def microbatches(*sizes: int) -> Iterator[RequestStep]:
    """One step of each request, numbered from 0 on."""
    numbers = count()
    for size in sizes:
        for place in range(size):
            request = next(numbers)
            yield RequestStep(request, 5, 6, job=request % 3, leads=place == 0)
