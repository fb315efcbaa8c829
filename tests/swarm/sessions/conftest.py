"""A devnet whose requester asks over sessions: two stages, and a replica of the second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devnet.network import MinerProfile
from tests.swarm.conftest import devnet_of
from tests.swarm.world import World

SLOW_MS = 2.0
PAIR = {
    "miner-1": MinerProfile("1GiB", SLOW_MS, layers=(0, 4)),
    "miner-2": MinerProfile("1GiB", SLOW_MS, layers=(4, 8)),
    "miner-3": MinerProfile("1GiB", SLOW_MS, layers=(4, 8)),
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def talkative(
    tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path
) -> AsyncIterator[World]:
    async with devnet_of(tmp_path_factory.mktemp("sessions"), tiny_cache, PAIR) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="package")
async def world(talkative: World) -> World:
    """The devnet with whatever an earlier test killed running again."""
    await talkative.all_serve()
    return talkative
