"""What does a page of keys and values hold, and how many pages do a shard's layers need?"""

from __future__ import annotations

from dataclasses import dataclass

from core.engine.memory.pages import PAGE_TOKENS

#: Positions behind a window that are kept so that a request can be cut back and go on.
SLACK_TOKENS = 32


@dataclass(frozen=True)
class PageShape:
    """What a page holds: 16 tokens of one layer. Layers of one shape share a pool.

    `part` says on which of a shard's devices it lies.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    part: int = 0

    def page_bytes(self, item_bytes: int) -> int:
        return PAGE_TOKENS * self.kv_heads * (self.key_dim + self.value_dim) * item_bytes


@dataclass(frozen=True)
class KvClass:
    """Layers of a shard, by its numbers, that look back equally far and share a pool."""

    window: int  # 0 is full attention
    pool: int
    layers: tuple[int, ...]

    def first_block(self, tokens: int, slack_tokens: int = SLACK_TOKENS) -> int:
        """The first block that a request of `tokens` needs, also when cut back by the slack."""
        if not self.window:
            return 0
        return max(0, tokens - slack_tokens - self.window + 1) // PAGE_TOKENS

    def blocks_for(self, tokens: int, chunk_tokens: int = 1) -> int:
        """The most pages per layer for a request that grows to `tokens` by `chunk_tokens`."""
        blocks = -(-tokens // PAGE_TOKENS)
        if not self.window:
            return blocks
        held = self.window + SLACK_TOKENS + chunk_tokens - 1
        return min(blocks, (held + PAGE_TOKENS - 2) // PAGE_TOKENS + 1)


@dataclass(frozen=True)
class KvLayout:
    shapes: tuple[PageShape, ...]  # one for each pool
    classes: tuple[KvClass, ...]

    def pages_for(self, tokens: int, start: int, end: int, chunk_tokens: int = 1) -> list[int]:
        """Pages of each pool that a request over layers [start, end) holds at most."""
        wanted = [0] * len(self.shapes)
        for kind in self.classes:
            layers = sum(start <= layer < end for layer in kind.layers)
            wanted[kind.pool] += layers * kind.blocks_for(tokens, chunk_tokens)
        return wanted
