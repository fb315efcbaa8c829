"""Machines that may send files are those of the model that the swarm shows now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from core.protocol import types as t
from core.protocol.errors import ChainUnreachable, PeerUnreachable
from core.runtime.network.channel import StreamIdentity
from miner.daemon.swarm_places import SwarmPlaces
from tests.miner.daemon.test_announce import ME, Board
from tests.town.orders import DOMAIN


class Believing(Board):
    """A swarm whose peer believes those that were admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.admitted: set[str] = set()

    async def admit(self, operators: Iterable[str]) -> None:
        if self.breaks:
            raise self.breaks
        self.admitted = set(operators)

    async def lookup(self, *topics: str) -> dict[str, bytes]:
        found = await super().lookup(*topics)
        return {key: data for key, data in found.items() if key in self.admitted}


class Stakes:
    """The operators that have stake, once the chain is asked."""

    def __init__(self, *operators: str) -> None:
        self.operators: frozenset[str] = frozenset()
        self.known = frozenset(operator.lower() for operator in operators)
        self.is_silent = False

    async def poll(self) -> frozenset[str]:
        if self.is_silent:
            raise ChainUnreachable("the chain is silent")
        self.operators = self.known
        return self.operators


async def found_in(board: Any, stakes: Any) -> list[str]:
    places = SwarmPlaces(board, stakes, StreamIdentity(ME, DOMAIN))
    found = await asyncio.to_thread(places.find, t.ZERO_HASH, t.LayerRange(0, 4))
    return [place.uri for place in found]


async def test_machines_with_stake_are_found_before_anybody_has_read_the_stakes() -> None:
    board = Believing()
    holder, loads, poor = board.put(2), board.put(3, layers=None), board.put(4)
    board.put(1)  # this machine itself
    gone, other = board.put(5, state="LEFT"), board.put(6, model_id="0x" + "ab" * 32)
    stakes = Stakes(ME.address, holder, loads, gone, other)
    assert await found_in(board, stakes) == [f"miner {holder}", f"miner {loads}"]
    assert poor.lower() not in board.admitted


async def test_a_silent_swarm_or_chain_knows_nobody_and_raises_nothing() -> None:
    board, stakes = Believing(), Stakes(key := Board().put(2))
    board.put(2)
    stakes.is_silent = True
    assert await found_in(board, stakes) == []
    stakes.is_silent = False
    board.breaks = PeerUnreachable("the swarm", "our own peer has ended")
    assert await found_in(board, stakes) == []
    board.breaks = None
    board.admitted = {key.lower()}  # as the daemon's own loop does once its peer is back
    assert await found_in(board, stakes) == [f"miner {key}"]
