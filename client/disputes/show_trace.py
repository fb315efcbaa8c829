"""How does an accuser show the accused its trace off chain, so that no descent is paid on chain?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from core.dispute.play.players import Accuser
from core.dispute.trace import chunks
from core.protocol import wire
from core.protocol.errors import CheckFailed
from core.runtime.network.channel import Channel

CALL_S = 60.0  # the accused may have to make its own trace first
MAX_ROUNDS = 8


class Showing:
    """Goes down the trace with the accused's program, which says where its own differs."""

    def __init__(self, connect: Callable[[], Awaitable[Channel]]) -> None:
        self._connect = connect

    async def show(self, player: Accuser, dispute: str) -> int:
        """Until the accused has seen the chunk in which it differs; how many openings that took.

        Raises HeadraceError where it cannot be reached or looks at nothing.
        """
        channel, tree = await self._connect(), player.trace.tree
        level, index = tree.height, 0
        for shown in range(1, MAX_ROUNDS + 1):
            data = b"".join(tree.below(level, index))
            if not level:
                data = player.trace.values.chunk_bytes(index, index + 1)
            frame = await channel.call(wire.ShowNode(dispute, level, index), data, timeout_s=CALL_S)
            if not isinstance(frame.message, wire.Differs):
                raise CheckFailed("the accused looks at nothing", str(frame.message)[:200])
            if not level:
                return shown
            step = min(chunks.STEP_LEVELS, level)
            level, index = level - step, (index << step) + frame.message.child
            if index >= chunks.width(tree.count, level):
                raise CheckFailed("the accused names a hash that there is not", str(frame.message))
        raise CheckFailed("the accused looks at too much", f"{MAX_ROUNDS} openings")
