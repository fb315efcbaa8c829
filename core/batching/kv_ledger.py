"""Whose KV pages are in use on this machine, and is there room for more?"""

from __future__ import annotations

from collections.abc import Hashable


class LedgerError(ValueError):
    """A request was booked twice, shrunk, or released without having been booked."""


class _Held:
    __slots__ = ("layers", "pages", "tokens")

    def __init__(self, tokens: int, layers: int, pages: int) -> None:
        self.tokens = tokens
        self.layers = layers
        self.pages = pages


class KvLedger:
    """Pages of `page_tokens` tokens of one layer, booked by request.

    Every move happens whole or not at all: `try_reserve` and `try_grow` return False and change
    nothing when the pages are short (counted in ``refusals``). A request of t tokens over n layers
    holds n × ceil(t / page_tokens) pages. ``peak_pages`` is the most ever held at once. Moves that
    no caller may make raise LedgerError.
    """

    __slots__ = ("_held", "page_tokens", "pages", "peak_pages", "refusals", "used_pages")

    def __init__(self, pages: int, page_tokens: int = 16) -> None:
        if pages < 0 or page_tokens < 1:
            raise LedgerError(f"a ledger of {pages} pages of {page_tokens} tokens")
        self.pages = pages
        self.page_tokens = page_tokens
        self.used_pages = 0
        self.peak_pages = 0
        self.refusals = 0
        self._held: dict[Hashable, _Held] = {}

    @classmethod
    def of_tokens(cls, tokens: int, layers: int, page_tokens: int = 16) -> KvLedger:
        """Room for `tokens` tokens on each of `layers` layers, rounded down to whole pages."""
        return cls(tokens // page_tokens * layers, page_tokens)

    @property
    def free_pages(self) -> int:
        return self.pages - self.used_pages

    @property
    def requests(self) -> int:
        """How many requests hold pages."""
        return len(self._held)

    def pages_for(self, tokens: int, layers: int = 1) -> int:
        """Pages that a request of `tokens` tokens on `layers` layers holds."""
        return layers * -(-tokens // self.page_tokens)

    def holds(self, request: Hashable) -> bool:
        """Whether anything is booked for a request."""
        return request in self._held

    def try_reserve(self, request: Hashable, tokens: int, layers: int = 1) -> bool:
        """Book a request's first tokens; False, and nothing booked, when the pages are short."""
        if request in self._held:
            raise LedgerError(f"request {request} already holds pages")
        if tokens < 0 or layers < 1:
            raise LedgerError(f"request {request}: {tokens} tokens on {layers} layers")
        pages = layers * -(-tokens // self.page_tokens)
        if not self._try_take(pages):
            return False
        self._held[request] = _Held(tokens, layers, pages)
        return True

    def try_book(self, request: Hashable, pages: int) -> bool:
        """Book `pages` for a request that will not grow; False, and none booked, when short."""
        if request in self._held:
            raise LedgerError(f"request {request} already holds pages")
        if pages < 0:
            raise LedgerError(f"request {request}: {pages} pages")
        if not self._try_take(pages):
            return False
        self._held[request] = _Held(pages * self.page_tokens, 1, pages)
        return True

    def try_grow(self, request: Hashable, tokens: int) -> bool:
        """Let a request hold `tokens` tokens in all; False, and nothing changed, when short."""
        held = self._held.get(request)
        if held is None:
            raise LedgerError(f"request {request} holds no pages to grow")
        if tokens < held.tokens:
            raise LedgerError(f"request {request} cannot shrink from {held.tokens} to {tokens}")
        pages = held.layers * -(-tokens // self.page_tokens)
        if pages != held.pages and not self._try_take(pages - held.pages):
            return False
        held.tokens = tokens
        held.pages = pages
        return True

    def release(self, request: Hashable) -> int:
        """Give back all pages of a request; returns how many."""
        held = self._held.pop(request, None)
        if held is None:
            raise LedgerError(f"request {request} holds no pages to release")
        self.used_pages -= held.pages
        return held.pages

    def _try_take(self, pages: int) -> bool:
        used = self.used_pages + pages
        if used > self.pages:
            self.refusals += 1
            return False
        self.used_pages = used
        if used > self.peak_pages:
            self.peak_pages = used
        return True
