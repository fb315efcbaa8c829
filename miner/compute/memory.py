"""How much memory is promised to requests, so that none of them runs out of it?

A request is promised the most pages that it can come to hold, and waits until they are there. The
engine's own free lists stay the only truth about which pages are held; promises are never more than
they have. Where pages are swapped, requests are in groups with pages of their own, and a request is
promised all of its pages in one of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core.batching.kv_ledger import KvLedger
from core.engine.memory.pages import PAGE_TOKENS
from core.protocol.types import LayerRange


class Paged(Protocol):
    """The part of an engine that knows about pages."""

    @property
    def groups(self) -> int: ...

    @property
    def pages_of_group(self) -> list[int]: ...

    @property
    def used_pages(self) -> list[int]: ...

    def pages_for(
        self, tokens: int, layers: LayerRange | None = None, chunk_tokens: int = 1
    ) -> list[int]: ...


@dataclass
class Promises:
    """A ledger for each pool in each group of requests: the `Admission` of a stage's lineup."""

    engine: Paged
    chunk_tokens: int
    _wanted: dict[Hashable, tuple[list[int], int | None]] = field(default_factory=dict)
    _group_of: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pages = self.engine.pages_of_group
        self._groups = [[KvLedger(count) for count in pages] for _ in range(self.engine.groups)]

    def expect(
        self,
        request: Hashable,
        tokens: int,
        layers: LayerRange | None = None,
        group_before: int | None = None,
    ) -> bool:
        """Expect a request of these layers (all), near its `group_before`; False if too large."""
        if not self._would_fit(tokens, layers):
            return False
        self._wanted[request] = self._pages_for(tokens, layers), group_before
        return True

    def try_admit(self, request: Hashable) -> bool:
        """Promise the expected pages, of every pool or none."""
        pages, group_before = self._wanted[request]
        for group in self._in_order(group_before):
            ledgers = self._groups[group]
            if all(n <= ledger.free_pages for n, ledger in zip(pages, ledgers, strict=True)):
                for n, ledger in zip(pages, ledgers, strict=True):
                    ledger.try_book(request, n)
                self._group_of[request] = group
                del self._wanted[request]
                return True
        return False

    def group_of(self, request: Hashable) -> int:
        """The group in which an admitted request has its pages. Raises KeyError for any other."""
        return self._group_of[request]

    def release(self, request: Hashable) -> None:
        """The request is over, promised or only expected."""
        self._wanted.pop(request, None)
        group = self._group_of.pop(request, None)
        if group is not None:
            for ledger in self._groups[group]:
                ledger.release(request)

    def longest(self, tokens: int) -> int:
        """The most positions, up to `tokens`, that one request alone may have."""
        low, high = 0, tokens
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._would_fit(middle) else (low, middle - 1)
        return low

    @property
    def capacity_tokens(self) -> int:
        """Positions of all requests that fit, when none of them is longer than a window."""
        return self.engine.groups * self._tokens(self.engine.pages_of_group)

    @property
    def free_tokens(self) -> int:
        """Positions that are promised to no request."""
        return sum(
            self._tokens([ledger.free_pages for ledger in ledgers]) for ledgers in self._groups
        )

    @property
    def used_tokens(self) -> int:
        """Positions that are held."""
        return self._tokens(self.engine.used_pages)

    def _would_fit(self, tokens: int, layers: LayerRange | None = None) -> bool:
        wanted = self._pages_for(tokens, layers)
        return all(n <= have for n, have in zip(wanted, self.engine.pages_of_group, strict=True))

    def _in_order(self, group_before: int | None) -> list[int]:
        """Groups to try: that of `group_before`, then the fullest: steps of few cost as much."""
        count = len(self._groups)
        first = None if group_before is None else group_before % count
        return sorted(range(count), key=lambda g: (g != first, -self._groups[g][0].requests, g))

    def _pages_for(self, tokens: int, layers: LayerRange | None = None) -> list[int]:
        return self.engine.pages_for(tokens, layers, chunk_tokens=self.chunk_tokens)

    def _tokens(self, pages: Sequence[int]) -> int:
        per_block = self.engine.pages_for(1)
        return min(have // n for have, n in zip(pages, per_block, strict=True) if n) * PAGE_TOKENS
