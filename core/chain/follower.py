"""Which events happened since the last look, across reorganisations and restarted nodes?

The follower remembers the hashes of the last `window` blocks it processed. When the chain no longer
has one of them, it reports how far to roll back and delivers the new chain's events; when the whole
window is gone (another chain behind the same URL, or a node that lost its state) it says so, and
the owner starts over.
"""

from __future__ import annotations

import msgspec

from core.chain.chain import Chain, ChainEvent


class ChainPosition(msgspec.Struct, frozen=True):
    """Numbers and hashes of blocks, oldest first. Store it with what their events changed."""

    blocks: tuple[tuple[int, str], ...] = ()

    @property
    def last(self) -> int | None:
        return self.blocks[-1][0] if self.blocks else None


class EventBatch(msgspec.Struct, frozen=True):
    """Undo everything above `rolled_back_to` (None: nothing), then apply the events in order."""

    events: list[ChainEvent]
    position: ChainPosition
    rolled_back_to: int | None = None
    chain_replaced: bool = False


class EventFollower:
    """Polls; owns no task, so the owner's loop decides when."""

    def __init__(
        self,
        chain: Chain,
        *,
        start_block: int,
        position: ChainPosition | None = None,
        window: int = 64,
        max_blocks: int = 2000,
    ) -> None:
        self._chain = chain
        self._start = start_block
        self._position = position or ChainPosition()
        self._window, self._max_blocks = window, max_blocks

    async def poll(self) -> EventBatch:
        """Events since the last poll, of `max_blocks` blocks at most.

        Raises ChainUnreachable and changes nothing. Nothing new is reported when the chain changes
        while it is read; the next poll sees it whole.
        """
        ancestor, rolled_back, replaced = await self._common_ancestor()
        head = await self._chain.block_number()
        first = self._start if ancestor.last is None else ancestor.last + 1
        last = min(head, first + self._max_blocks - 1)
        position = await self._extend(ancestor, first, last)
        events = await self._chain.events(first, last) if first <= last else []
        if position is None or not await self._still_holds(ancestor, position):
            return EventBatch([], self._position)
        self._position = position
        undone_to = self._start - 1 if ancestor.last is None else ancestor.last
        return EventBatch(
            events,
            position,
            rolled_back_to=undone_to if rolled_back else None,
            chain_replaced=replaced,
        )

    async def _common_ancestor(self) -> tuple[ChainPosition, bool, bool]:
        known = list(self._position.blocks)
        while known:
            number, expected = known[-1]
            if await self._chain.block_hash(number) == expected:
                break
            known.pop()
        rolled_back = len(known) < len(self._position.blocks)
        return ChainPosition(tuple(known)), rolled_back, rolled_back and not known

    async def _extend(self, ancestor: ChainPosition, first: int, last: int) -> ChainPosition | None:
        blocks = list(ancestor.blocks)
        for number in range(max(first, last - self._window + 1), last + 1):
            found = await self._chain.block_hash(number)
            if found is None:
                return None
            blocks.append((number, found))
        return ChainPosition(tuple(blocks[-self._window :]))

    async def _still_holds(self, *positions: ChainPosition) -> bool:
        """Whether the newest block of each is on the chain now, and with it every older one."""
        newest = {p.blocks[-1] for p in positions if p.blocks}
        return all([await self._chain.block_hash(n) == found for n, found in sorted(newest)])
