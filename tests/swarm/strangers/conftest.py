"""A devnet whose parties share no disk, each with what it fetched by itself, in bfloat16."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from devnet.network import MinerProfile
from tests.swarm.conftest import devnet_of
from tests.swarm.world import World

#: Three hosts, the second of which rounds its layer 4. Honest noise of bfloat16 hides rounding to
#: int8: what it hides is as exact as honest work.
APART = {
    "miner-1": MinerProfile("1GiB", layers=(0, 3)),
    "miner-2": MinerProfile("1GiB", layers=(3, 6), lie_layer=4, lie_bits=3),
    "miner-3": MinerProfile("1GiB", layers=(6, 8)),
}
NEWCOMER = "miner-4"


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("strangers")
    apart = devnet_of(
        folder, tiny_cache, APART, are_caches_apart=True, numerics="bfloat16", later=(NEWCOMER,)
    )
    async with apart as world:
        yield world
