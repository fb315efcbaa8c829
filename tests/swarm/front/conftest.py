"""A devnet of three miners, no two of which serve the whole model, with a gateway before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devnet.network import MinerProfile
from tests.conftest import take_free_port
from tests.swarm.conftest import devnet_of
from tests.swarm.world import World

#: With room for several sessions: in a full one, the next waits until a promise lapses.
ROOMY = {
    "miner-1": MinerProfile("1GiB", layers=(0, 4)),
    "miner-2": MinerProfile("1GiB", layers=(4, 7)),
    "miner-3": MinerProfile("1GiB", layers=(7, 8)),
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path) -> AsyncIterator[World]:
    async with devnet_of(tmp_path_factory.mktemp("front"), tiny_cache, ROOMY) as world:
        world.net.gateway_metrics_port = take_free_port()
        await world.net.start_gateway()
        yield world
