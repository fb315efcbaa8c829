"""How much memory is promised to requests, so that none of them runs out of it?

A request is promised the most pages that it can come to hold, and waits in the lobby until they are there. The engine's
own free lists stay the only truth about which pages are held; promises are never more than they have.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core.batching.kv_ledger import KvLedger
from core.engine.pages import PAGE_TOKENS
from core.protocol.types import LayerRange


class Paged(Protocol):
    """The part of an engine that knows about pages."""

    @property
    def pages(self) -> list[int]: ...

    @property
    def used_pages(self) -> list[int]: ...

    def pages_for(
        self, tokens: int, layers: LayerRange | None = None, chunk_tokens: int = 1
    ) -> list[int]: ...


@dataclass
class Promises:
    """One ledger for each of an engine's pools. The `Admission` of a stage's lineup."""

    engine: Paged
    chunk_tokens: int
    _wanted: dict[Hashable, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ledgers = [KvLedger(pages) for pages in self.engine.pages]

    def expect(self, request: Hashable, tokens: int, layers: LayerRange | None = None) -> bool:
        """A request of at most so many tokens over these layers (all) is coming; False if it will never fit."""
        if not self._would_fit(tokens, layers):
            return False
        self._wanted[request] = self._pages_for(tokens, layers)
        return True

    def try_admit(self, request: Hashable) -> bool:
        """Promise the expected pages, of every pool or none."""
        booked = []
        for ledger, pages in zip(self._ledgers, self._wanted[request], strict=True):
            if not ledger.try_book(request, pages):
                for done in booked:
                    done.release(request)
                return False
            booked.append(ledger)
        del self._wanted[request]
        return True

    def release(self, request: Hashable) -> None:
        """The request is over, promised or only expected."""
        if self._wanted.pop(request, None) is None:
            for ledger in self._ledgers:
                if ledger.holds(request):
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
        return self._tokens([ledger.pages for ledger in self._ledgers])

    @property
    def free_tokens(self) -> int:
        """Positions that nobody has been promised."""
        return self._tokens([ledger.free_pages for ledger in self._ledgers])

    @property
    def used_tokens(self) -> int:
        """Positions that are held."""
        return self._tokens(self.engine.used_pages)

    def _would_fit(self, tokens: int, layers: LayerRange | None = None) -> bool:
        wanted = self._pages_for(tokens, layers)
        return all(n <= ledger.pages for n, ledger in zip(wanted, self._ledgers, strict=True))

    def _pages_for(self, tokens: int, layers: LayerRange | None = None) -> list[int]:
        return self.engine.pages_for(tokens, layers, chunk_tokens=self.chunk_tokens)

    def _tokens(self, pages: Sequence[int]) -> int:
        per_block = self.engine.pages_for(1)
        return min(have // n for have, n in zip(pages, per_block, strict=True) if n) * PAGE_TOKENS
