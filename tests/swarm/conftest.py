"""The model that all devnets here serve, and how one of them is built and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from core.dispute.registration.search import SearchEffort
from devnet.accounts import PARTIES
from devnet.layout import DevnetFolders
from devnet.models.tiny_models import write_tiny_model
from devnet.network import Devnet, MinerProfile
from tests.swarm.world import CONTEXT_TOKENS, LAYERS, MODEL, World

#: Three miners with room for four, three and two of the eight layers: no two of them suffice.
UNEQUAL = {
    "miner-1": MinerProfile("14MiB"),
    "miner-2": MinerProfile("11MiB"),
    "miner-3": MinerProfile("7MiB"),
}


def fill_cache(cache: Path) -> Path:
    """Put the tiny model into a cache folder."""
    write_tiny_model(
        cache / "models" / MODEL, "llama", layers=LAYERS, hidden=256, context=CONTEXT_TOKENS
    )
    return cache


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the tiny model in it."""
    return fill_cache(tmp_path_factory.mktemp("cache"))


@asynccontextmanager
async def devnet_of(
    folder: Path,
    cache: Path,
    profiles: Mapping[str, MinerProfile],
    *,
    are_caches_apart: bool = False,
    numerics: str = "float32",
    later: Sequence[str] = (),
) -> AsyncIterator[World]:
    """A running devnet with these miners; afterwards nothing of it runs. `later` may join it."""
    (folder / "work").mkdir()
    net = Devnet(
        DevnetFolders(folder / "devnet"),
        model=MODEL,
        cache=cache,
        are_caches_apart=are_caches_apart,
        numerics=numerics,
        effort=SearchEffort(steps=1, ground=0, most_rows=1),
        parties=tuple(dict.fromkeys([*PARTIES, *profiles, *later])),
        min_machines=len(profiles),
    )
    world = World(net, dict(profiles), folder / "work")
    try:
        await world.start()
        yield world
    finally:
        await world.close()
