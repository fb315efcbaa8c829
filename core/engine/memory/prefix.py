"""Which chunks of earlier prompts can a new prompt go on with?

Prompts are cut at the same places everywhere, and a chunk's link stands for all that went in up to
its end: token ids, or the activations of the stage before. A request that brings the same gets the
pages that were computed then, and the rows that left; both are what would be computed again, to the
bit. The index is a holder of the pages like any request, oldest use first out when pages run short.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from torch import Tensor

from core.engine.memory.paged_kv import Held, PagedKv
from core.engine.memory.pages import PAGE_TOKENS, Pages

Name = tuple[int, int, int, bytes]
"""Microbatch, layers [start, end) of the shard, link."""


def first_link(scope: bytes) -> bytes:
    """What a chain begins with; requests of another `scope` never share."""
    return sha256(b"prefix" + scope).digest()


def next_link(link: bytes, data: bytes | memoryview) -> bytes:
    """The link of a chunk that brings these bytes after those of `link`."""
    made = sha256(link)
    made.update(data)
    return made.digest()


@dataclass(frozen=True)
class _KeptChunk:
    pages: dict[int, Pages]  # of each class, [layers, blocks]
    blocks: int
    rows: Tensor  # what left, on the host


class PrefixIndex:
    """Chunks of resident pages, since only those can be shared, by the requests that may have them.

    Where requests are in microbatches each has its own: a page counts against the microbatch that
    has computed it, any request holds it, and would otherwise be missing where it was promised.
    """

    def __init__(self, kv: PagedKv, *, max_blocks: int, max_row_bytes: int) -> None:
        """`max_blocks` bounds the blocks of 16 tokens, `max_row_bytes` the rows beside them."""
        self._kv, self._max_blocks, self._max_row_bytes = kv, max_blocks, max_row_bytes
        self._chunks: OrderedDict[Name, _KeptChunk] = OrderedDict()
        self.blocks = self.row_bytes = 0
        kv.on_short = self.evict_one

    def __len__(self) -> int:
        return len(self._chunks)

    def adopt(self, held: Held, links: Sequence[bytes], tokens: int) -> Tensor | None:
        """Let a request of whole chunks grow to `tokens` with the chunk that the last link names.

        Returns the rows that left then, or None, and nothing changed, where nobody has kept it.
        `links` are all since the request's beginning.
        """
        chunk = self._chunks.get(_name(held, links[-1]))
        if chunk is None or held.length + chunk.blocks * PAGE_TOKENS != tokens:
            return None
        if not self._kv.try_adopt(held, chunk.pages, tokens):
            return None
        self._touch(held, links)
        return chunk.rows

    def keep(self, held: Held, links: Sequence[bytes], tokens: int, rows: Tensor) -> None:
        """Keep the chunk that a request of whole chunks fills as it grows to `tokens`, with the
        rows [n, D] that leave. Called before what is behind windows goes. What is too large, or
        swapped, is not kept.
        """
        name = _name(held, links[-1])
        first, last = held.length // PAGE_TOKENS, tokens // PAGE_TOKENS
        if name in self._chunks:
            self._touch(held, links)
            return
        if held.length % PAGE_TOKENS or tokens % PAGE_TOKENS:
            return
        if last - first > self._max_blocks or rows.nbytes > self._max_row_bytes:
            return
        tables = held.tables.items()
        if any(not table.first <= first < last <= table.blocks for _, table in tables):
            return
        pages = {number: table.pages[:, first:last].copy() for number, table in tables}
        if any((found >= self._kv.allocator(n).resident).any() for n, found in pages.items()):
            return
        if not self._make_room(held, links, last - first, rows.nbytes):
            return
        for number, found in pages.items():
            self._kv.allocator(number).keep(found.reshape(-1))
        self._chunks[name] = _KeptChunk(pages, last - first, rows.to("cpu", copy=True))
        self.blocks += last - first
        self.row_bytes += rows.nbytes
        self._touch(held, links)

    def evict_one(self, microbatch: int) -> bool:
        """Let go of a microbatch's chunk that was used longest ago; False without any."""
        name = next((name for name in self._chunks if name[0] == microbatch), None)
        if name is None:
            return False
        self._evict(name)
        return True

    def _make_room(self, held: Held, links: Sequence[bytes], blocks: int, row_bytes: int) -> bool:
        """Whether it fits once others, but none that it stands on, have gone."""
        self._touch(held, links)
        own = {_name(held, link) for link in links}
        while (
            self.blocks + blocks > self._max_blocks
            or self.row_bytes + row_bytes > self._max_row_bytes
        ):
            oldest = next(iter(self._chunks))
            if oldest in own:
                return False
            self._evict(oldest)
        return True

    def _evict(self, name: Name) -> None:
        chunk = self._chunks.pop(name)
        self.blocks -= chunk.blocks
        self.row_bytes -= chunk.rows.nbytes
        for number, found in chunk.pages.items():
            self._kv.allocator(number).let_go(found.reshape(-1), name[0])

    def _touch(self, held: Held, links: Sequence[bytes]) -> None:
        """A chunk outlives those that stand on it: without it they are of no use."""
        for link in reversed(links):
            name = _name(held, link)
            if name in self._chunks:
                self._chunks.move_to_end(name)


def _name(held: Held, link: bytes) -> Name:
    return held.microbatch, held.start, held.end, link
