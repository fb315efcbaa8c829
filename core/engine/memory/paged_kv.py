"""Which pages hold a request's keys and values?

Every request has a table of pages per attention class, one row for each layer that it runs. Pages
behind a sliding window are freed as the request grows; full pages may be shared between requests
and are copied before a request writes into them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from core.engine.memory.layout import KvLayout
from core.engine.memory.pages import PAGE_TOKENS, PageAllocator, Pages
from core.engine.memory.pool import HotStore
from core.protocol.errors import UsageError

_FIRST_COLUMNS = 16


class KvShort(RuntimeError):
    """There are too few pages for a step; nothing was changed. Wait or refuse."""


@dataclass
class PageTable:
    """Pages of a request in one class: `pages[i, b]` has tokens [16·b, 16·b + 16) of layer i."""

    layers: tuple[int, ...]  # in the shard's numbers
    pages: Pages
    first: int = 0  # blocks before it are freed
    blocks: int = 0  # blocks in [first, blocks) are held

    def held(self) -> Pages:
        """All page numbers held now, layer by layer."""
        return self.pages[:, self.first : self.blocks].reshape(-1)

    def extend(self, blocks: int, pages: Pages) -> None:
        """Hold blocks [self.blocks, blocks) too."""
        while blocks > self.pages.shape[1]:
            self.pages = np.concatenate([self.pages, np.zeros_like(self.pages)], 1)
        self.pages[:, self.blocks : blocks] = pages.reshape(len(self.layers), -1)
        self.blocks = blocks


@dataclass
class Held:
    """One request: layers [start, end) of the shard, its tokens, its tables by class."""

    start: int
    end: int
    microbatch: int = 0
    length: int = 0
    tables: dict[int, PageTable] = field(default_factory=dict)


class PagedKv:
    """Every request's pages on one shard. Called by the compute thread alone.

    Promises: a page has one writer; `free` gives back all that a request holds; a call that raises
    KvShort has changed nothing that a caller could see.
    """

    def __init__(
        self, layout: KvLayout, allocators: Sequence[PageAllocator], store: HotStore
    ) -> None:
        """One allocator and one pool of the store for each page shape of the layout."""
        self.classes, self.allocators, self.store = layout.classes, allocators, store
        self.requests: dict[Hashable, Held] = {}
        #: Asked when a microbatch's pages run short; True when it holds some less for it.
        self.on_short: Callable[[int], bool] = lambda microbatch: False
        self._blank: list[tuple[int, Pages, int]] = []
        self._copies: list[tuple[int, Pages, Pages, int]] = []

    def allocator(self, number: int) -> PageAllocator:
        """Where the pages of class `number` come from."""
        return self.allocators[self.classes[number].pool]

    def open(self, request: Hashable, start: int, end: int, microbatch: int = 0) -> Held:
        """Begin to remember a request over layers [start, end) of the shard, without a page."""
        if request in self.requests:
            raise UsageError(f"request {request} is already open")
        held = Held(start, end, microbatch)
        for number, kind in enumerate(self.classes):
            layers = tuple(layer for layer in kind.layers if start <= layer < end)
            if layers:
                held.tables[number] = PageTable(
                    layers, np.zeros((len(layers), _FIRST_COLUMNS), np.int64)
                )
        self.requests[request] = held
        return held

    def free(self, request: Hashable) -> int:
        """Forget a request now; returns how many pages it held. Unknown requests hold none."""
        held = self.requests.pop(request, None)
        return 0 if held is None else self._give_all(held)

    def has_room(self, growth: Sequence[tuple[Held, int]]) -> bool:
        """Whether all these requests could grow to these lengths at once, with evictions."""
        wanted: dict[tuple[int, int], int] = {}
        for held, tokens in growth:
            blocks = -(-tokens // PAGE_TOKENS)
            for number, table in held.tables.items():
                key = self.classes[number].pool, held.microbatch
                count = len(table.layers) * max(0, blocks - table.blocks)
                wanted[key] = wanted.get(key, 0) + count
        for held, number, shared in self._shared_tails(growth):
            wanted[self.classes[number].pool, held.microbatch] += len(shared)
        for (number, microbatch), count in wanted.items():
            while count > self.allocators[number].room(microbatch):
                if not self.on_short(microbatch):
                    return False
        return True

    def grow(self, growth: Sequence[tuple[Held, int]]) -> None:
        """Give each request pages for its new length. KvShort. Then call `prepare_pages`."""
        if not self.has_room(growth):
            raise KvShort("too few pages for the step")
        self._copies.clear()
        self._blank.clear()
        for held, number, shared in list(self._shared_tails(growth)):
            self._own_tail(held, number, shared)
        for held, tokens in growth:
            blocks = -(-tokens // PAGE_TOKENS)
            for number, table in held.tables.items():
                if blocks > table.blocks:
                    count = len(table.layers) * (blocks - table.blocks)
                    table.extend(blocks, self._take(number, count, held.microbatch))
                    if tokens % PAGE_TOKENS:
                        self._blank.append(
                            (self.classes[number].pool, table.pages[:, blocks - 1], held.microbatch)
                        )

    def prepare_pages(self) -> None:
        """Copy what `grow` has unshared and clear what it gave out half used: it may hold NaN."""
        for pool, source, target, microbatch in self._copies:
            self.store.write(pool, target, microbatch, self.store.read(pool, source, microbatch))
        blank: dict[tuple[int, int], list[Pages]] = {}
        for pool, pages, microbatch in self._blank:
            blank.setdefault((pool, microbatch), []).append(pages)
        for (pool, microbatch), many in blank.items():
            self.store.clear(pool, np.concatenate(many), microbatch)
        self._copies.clear()
        self._blank.clear()

    def grown(self, held: Held, tokens: int) -> None:
        """A request has `tokens` tokens now: what lies behind its windows is freed."""
        held.length = tokens
        for number, table in held.tables.items():
            first = min(self.classes[number].first_block(tokens), table.blocks)
            if first > table.first:
                pages = table.pages[:, table.first : first].reshape(-1)
                self.allocator(number).give_back(pages, held.microbatch)
                table.first = first

    def truncate(self, held: Held, tokens: int) -> None:
        """Forget positions from `tokens` on. UsageError where a window let go what is needed."""
        if not 0 <= tokens <= held.length:
            raise ValueError(f"cannot cut {held.length} positions to {tokens}")
        for number, table in held.tables.items():
            if self.classes[number].first_block(tokens, 0) < table.first:
                raise UsageError(
                    f"cannot cut a request back to {tokens} positions",
                    why=f"a sliding window has forgotten the first {table.first * PAGE_TOKENS}",
                    next_step="feed the request's tokens again from position 0",
                )
        for number, table in held.tables.items():
            blocks = max(-(-tokens // PAGE_TOKENS), table.first)
            if blocks < table.blocks:
                pages = table.pages[:, blocks : table.blocks].reshape(-1)
                self.allocator(number).give_back(pages, held.microbatch)
                table.blocks = blocks
        held.length = tokens

    def try_adopt(self, held: Held, pages: dict[int, Pages], tokens: int) -> bool:
        """Let a request grow to `tokens` with others' full pages [layers, blocks] of each class.

        False if it cannot. It holds whole pages only, and as many as make these the ones that
        follow.
        """
        if held.length % PAGE_TOKENS or tokens % PAGE_TOKENS:
            return False
        first, last = held.length // PAGE_TOKENS, tokens // PAGE_TOKENS
        for number, table in held.tables.items():
            if table.blocks != first or pages[number].shape != (len(table.layers), last - first):
                return False
        for number, table in held.tables.items():
            self.allocator(number).share(pages[number].reshape(-1))
            table.extend(last, pages[number])
        self.grown(held, tokens)
        return True

    def _take(self, number: int, count: int, microbatch: int) -> Pages:
        pages = self.allocator(number).try_take(count, microbatch)
        assert pages is not None, "has_room() said that there is room"
        return pages

    def _give_all(self, held: Held) -> int:
        given = 0
        for number, table in held.tables.items():
            pages = table.held()
            self.allocator(number).give_back(pages, held.microbatch)
            given += len(pages)
        return given

    def _shared_tails(
        self, growth: Sequence[tuple[Held, int]]
    ) -> Iterator[tuple[Held, int, Pages]]:
        """Requests that grow in a block that they share with another one, the class, and which of
        its layers.
        """
        growing = [h for h, tokens in growth if tokens > h.length and h.length % PAGE_TOKENS]
        for number in range(len(self.classes)):
            allocator = self.allocator(number)
            inside = [held for held in growing if number in held.tables]
            if not inside:
                continue
            tails = [h.tables[number].pages[:, h.length // PAGE_TOKENS] for h in inside]
            pages = np.concatenate(tails)
            hot = pages < allocator.resident
            shared = hot & (allocator.holders[np.where(hot, pages, 0)] > 1) & (pages > 0)
            if shared.any():
                ends = np.cumsum([len(tail) for tail in tails])
                for held, layers in zip(inside, np.split(shared, ends[:-1]), strict=True):
                    if layers.any():
                        yield held, number, np.flatnonzero(layers)

    def _own_tail(self, held: Held, number: int, shared: Pages) -> None:
        table, block = held.tables[number], held.length // PAGE_TOKENS
        # The last of several that write is left alone with the page.
        shared = shared[self.allocator(number).holders[table.pages[shared, block]] > 1]
        if not len(shared):
            return
        source = table.pages[shared, block].copy()
        target = self._take(number, len(shared), held.microbatch)
        self._copies.append((self.classes[number].pool, source, target, held.microbatch))
        table.pages[shared, block] = target
        self.allocator(number).give_back(source, held.microbatch)
