"""Are the stages that we send to still there?

Each has a stream of its own for this: on the one that carries activations a question would wait
behind rows for which a busy stage has no room yet. A stream that ends may have met with an accident
on the way, so another one is tried before a stage counts as lost; a dead machine refuses it at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from core.protocol.errors import AuthenticationFailed, HeadraceError, PeerUnreachable
from core.runtime.clock import Clock
from core.runtime.network.channel import Channel, Peers
from core.runtime.network.pulse import CONNECT_S, Accidents, Beat, until_lost

Place = tuple[str, str]
"""(operator, endpoint)."""


class Neighbours:
    """Watches stages for as long as a request needs them."""

    def __init__(self, peers: Peers, beat: Beat, clock: Clock) -> None:
        """`peers` is ours alone."""
        self.on_lost: Callable[[str, HeadraceError], None] = lambda operator, error: None
        self._peers, self._beat, self._clock = peers, beat, clock
        self._watches: dict[Place, asyncio.Task[None]] = {}

    def watch(self, operator: str, endpoint: str) -> None:
        """From now on `on_lost` hears if this stage falls silent."""
        place = (operator, endpoint)
        if place not in self._watches:
            self._watches[place] = asyncio.create_task(self._watch(place), name=f"watch {operator}")

    def keep_only(self, needed: Collection[Place]) -> None:
        """Watch no other stage any more."""
        for place in self._watches.keys() - set(needed):
            self._watches.pop(place).cancel()

    async def close(self) -> None:
        """End every watch and its stream."""
        watches = list(self._watches.values())
        self.keep_only(())
        await asyncio.gather(*watches, return_exceptions=True)
        await self._peers.close()

    async def _watch(self, place: Place) -> None:
        operator, endpoint = place
        lost, stream = await self._until_lost(operator, endpoint)
        if self._watches.get(place) is asyncio.current_task():
            del self._watches[place]
        self.on_lost(operator, lost)
        if stream is not None:  # the next watch of this stage opens another one
            await stream.close()

    async def _until_lost(
        self, operator: str, endpoint: str
    ) -> tuple[HeadraceError, Channel | None]:
        accidents = Accidents(self._clock)
        while True:
            try:
                stream = await self._peers.get(operator, endpoint, timeout_s=CONNECT_S)
            except (PeerUnreachable, AuthenticationFailed) as error:
                return error, None
            accidents.begin()
            lost = await until_lost(stream, self._beat, self._clock)
            if stream.is_open or not accidents.is_one():
                return lost, stream
