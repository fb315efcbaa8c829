"""A devnet in which programs die: three stages, and a replica of the one in the middle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devnet.network import MinerProfile
from tests.swarm.conftest import devnet_of
from tests.swarm.world import World

#: Slow enough that a test can act in the middle of a job.
SLOW_MS = 3.0
REPLICATED = {
    "miner-1": MinerProfile("1GiB", SLOW_MS, layers=(0, 3)),
    "miner-2": MinerProfile("1GiB", SLOW_MS, layers=(3, 6)),
    "miner-3": MinerProfile("1GiB", SLOW_MS, layers=(6, 8)),
    "miner-4": MinerProfile("1GiB", SLOW_MS, layers=(3, 6)),
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def lossy(tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("losses")
    async with devnet_of(folder, tiny_cache, REPLICATED, later=["matcher-2"]) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="package")
async def world(lossy: World) -> World:
    """The devnet with whatever an earlier test killed running again."""
    await lossy.all_serve()
    return lossy
