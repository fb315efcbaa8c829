"""Is a game read as of one block, also from a node that is making the next?"""

from __future__ import annotations

from typing import Any, cast

from core.chain.chain import Chain, ChainCall, ChainEvent
from core.dispute.game.dispute import Phase
from core.dispute.game.game_log import GAME, Opened, read_game
from core.dispute.trace.layout import Place

ID = "0x" + "ab" * 32
OPENED = Opened(ID, "0x", 1, 0, "0x", "0x", "0x", "0x", "0x", "0x", 0, 5)
PLACE = {"section": 3, "op": 4, "row": 0, "segment": 0, "index": 0}


class NodeMakingABlock:
    """Block 7 points at a place.

    It is the newest one after so many calls; until then states of block 6 are already those it
    leaves.
    """

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.blocks_read: list[int] = []

    def _head(self) -> int:
        self.left -= 1
        return 6 if self.left >= 0 else 7

    async def block_number(self) -> int:
        return self._head()

    async def read(self, contract: str, function: str, dispute: str, block: int) -> dict[str, Any]:
        assert (contract, function, dispute) == (GAME, "gameOf", ID)
        self.blocks_read.append(block)
        is_pointed = block == 7 or self._head() == 6
        phase = Phase.PROVING if is_pointed else Phase.PICKING
        nothing = dict.fromkeys(("status", "endsAt", "level", "index", "child", "part"), 0)
        return {"phase": phase, **nothing}

    async def events(
        self, first: int, last: int, *, contract: str | None = None
    ) -> list[ChainEvent]:
        self._head()
        args = {"id": ID, "place": PLACE}
        found = ChainEvent(GAME, "PointedAt", args, 7, "0x", "0x", 0)
        return [found] if last >= 7 else []

    async def call_of(self, tx_hash: str) -> ChainCall | None:
        return None


async def test_a_move_that_is_being_mined_is_seen_as_a_whole_or_not_at_all() -> None:
    """However many of the calls before the second look at its state come while it is."""
    for calls in range(4):
        node = NodeMakingABlock(calls)
        seen = await read_game(cast(Chain, node), OPENED)
        is_pointed = seen.place is not None
        assert (seen.phase == Phase.PROVING) == is_pointed, calls
        if is_pointed:
            assert (seen.place, seen.moves) == (Place(3, 4), ("PointedAt",))


async def test_a_game_that_nobody_moves_needs_one_look() -> None:
    node = NodeMakingABlock(0)
    assert (await read_game(cast(Chain, node), OPENED)).place == Place(3, 4)
    assert node.blocks_read == [7, 7]
