"""A devnet of three miners, none of which (nor any two) holds the whole model, with a gateway before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.swarm.conftest import UNEQUAL, devnet_of
from tests.swarm.world import World


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory, tiny_cache: Path) -> AsyncIterator[World]:
    async with devnet_of(tmp_path_factory.mktemp("front"), tiny_cache, UNEQUAL) as world:
        await world.net.start_gateway()
        yield world
