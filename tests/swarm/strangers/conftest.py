"""A devnet whose parties share no disk: each has only what it fetched by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devnet.network import MinerProfile
from tests.swarm.conftest import devnet_of
from tests.swarm.world import World

#: Three hosts, the second of which changes what its layer 4 says.
APART = {
    "miner-1": MinerProfile("1GiB", layers=(0, 3)),
    "miner-2": MinerProfile("1GiB", layers=(3, 6), lie_layer=4),
    "miner-3": MinerProfile("1GiB", layers=(6, 8)),
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("strangers")
    async with devnet_of(folder, tiny_cache, APART, are_caches_apart=True) as world:
        yield world
