"""Which full pages of earlier prompts can a new prompt start with?

Who knows the tokens makes one key for each full page of a prompt, chained so that a key stands for everything before it
too; stages that see only activations use the same keys. The index is a holder of the pages like any request, oldest
use first out when pages run short.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from core.engine.paged_kv import Held, PagedKv
from core.engine.pages import PAGE_TOKENS, Pages


def page_keys(tokens: Sequence[int], scope: bytes = b"") -> list[bytes]:
    """One key for each full page of 16 tokens; `scope` keeps apart who must not share (model, owner of a prompt)."""
    keys, link = [], sha256(b"prefix" + scope).digest()
    for start in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        page = np.asarray(tokens[start : start + PAGE_TOKENS], "<i8").tobytes()
        link = sha256(link + page).digest()
        keys.append(link)
    return keys


class PrefixIndex:
    """Full pages by key and layer range. Only resident pages are kept, since only those can be shared."""

    def __init__(self, kv: PagedKv, *, max_blocks: int) -> None:
        self._kv, self._max_blocks = kv, max_blocks
        self._blocks: OrderedDict[tuple[int, int, bytes], dict[int, Pages]] = OrderedDict()
        self.hit_tokens = self.asked_tokens = 0
        kv.on_short = self.evict_one

    def __len__(self) -> int:
        return len(self._blocks)

    def usable(self, keys: Sequence[bytes], start: int, end: int) -> int:
        """Tokens of a prompt that requests over layers [start, end) could begin with."""
        count = 0
        for key in keys:
            if (start, end, key) not in self._blocks:
                break
            count += 1
        return count * PAGE_TOKENS

    def adopt(self, held: Held, keys: Sequence[bytes], tokens: int) -> None:
        """Begin a fresh request with the first `tokens` tokens, which `usable` has promised."""
        names = [(held.start, held.end, key) for key in keys[: tokens // PAGE_TOKENS]]
        self._kv.adopt(held, [self._blocks[name] for name in names])
        for name in reversed(names):  # a page outlives the pages that stand on it
            self._blocks.move_to_end(name)
        self.hit_tokens += tokens
        self.asked_tokens += len(keys) * PAGE_TOKENS

    def offer(self, held: Held, keys: Sequence[bytes], tokens: int) -> None:
        """Keep the pages that a request fills as it grows to `tokens`; called before what is behind windows goes."""
        first = held.length // PAGE_TOKENS
        for block in range(first, min(tokens // PAGE_TOKENS, len(keys), self._max_blocks)):
            name = held.start, held.end, keys[block]
            if name in self._blocks:
                continue
            if any(not table.first <= block < table.blocks for table in held.tables.values()):
                return
            pages = {n: table.pages[:, block].copy() for n, table in held.tables.items()}
            resident = all(
                (found < self._kv.allocator(n).resident).all() for n, found in pages.items()
            )
            if not resident:
                return
            while len(self._blocks) >= self._max_blocks:
                self.evict_one()
            for number, found in pages.items():
                self._kv.allocator(number).share(found)
            self._blocks[name] = pages

    def evict_one(self) -> bool:
        """Let go of the page used longest ago; False when there is none."""
        if not self._blocks:
            return False
        _, pages = self._blocks.popitem(last=False)
        for number, found in pages.items():
            self._kv.allocator(number).give_back(found)
        return True
