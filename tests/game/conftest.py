"""A chain and a model for games on real shards, and fresh contracts for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from core.keys.signer import Signer
from devnet.models.tiny_models import write_tiny_model
from tests.conftest import start_anvil
from tests.game.world import World


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    anvil = start_anvil("--block-time", "1", "--mixed-mining")
    yield anvil.rpc_url
    anvil.stop()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=4)


@pytest.fixture
async def world(node: str, signers: list[Signer], model_dir: Path) -> AsyncIterator[World]:
    made = await World.make(node, signers, model_dir)
    yield made
    await made.chain.close()
