"""A devnet with a jury: three miners and three staked jurors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devnet.network import MinerProfile
from tests.swarm.conftest import devnet_of
from tests.swarm.world import World

THREE = {
    "miner-1": MinerProfile("1GiB", layers=(0, 3)),
    "miner-2": MinerProfile("1GiB", layers=(3, 6)),
    "miner-3": MinerProfile("1GiB", layers=(6, 8)),
}
JURORS = ("juror-1", "juror-2", "juror-3")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path) -> AsyncIterator[World]:
    async with devnet_of(tmp_path_factory.mktemp("disputes"), tiny_cache, THREE) as world:
        await asyncio.gather(*(world.net.start_juror(juror, "100usd") for juror in JURORS))
        yield world
