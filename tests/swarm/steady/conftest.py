"""A devnet in which nothing dies: three unequal miners, whose layers the matcher chose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devnet.network import MinerProfile
from tests.swarm.conftest import devnet_of
from tests.swarm.world import World

#: Room for four, three and two of the eight layers: no two of them suffice.
UNEQUAL = {
    "miner-1": MinerProfile("14MiB"),
    "miner-2": MinerProfile("11MiB"),
    "miner-3": MinerProfile("7MiB"),
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path) -> AsyncIterator[World]:
    async with devnet_of(tmp_path_factory.mktemp("steady"), tiny_cache, UNEQUAL) as world:
        yield world
