"""A tiny model once per process, and machines that are stopped when the test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from core.protocol.types import LayerRange
from devnet.models.tiny_models import write_tiny_model
from tests.town.chain import FakeChain
from tests.town.machines import Machine
from tests.town.orders import key


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=4)


@pytest.fixture
def chain() -> FakeChain:
    return FakeChain()


Start = Callable[..., Awaitable[list[Machine]]]
#: A stage of two layers signs the boundary between them.
SPAN_LAYERS = 1


@pytest.fixture
async def start(tmp_path: Path, model_dir: Path, chain: FakeChain) -> AsyncIterator[Start]:
    """`start((0, 2), (2, 4))` runs one machine per layer range, with operator keys 100, 101, …"""
    running: list[Machine] = []

    async def run(*cuts: tuple[int, int], **options: object) -> list[Machine]:
        for number, (a, b) in enumerate(cuts):
            machine = Machine(key(100 + number), tmp_path, model_dir, chain)
            machine.span_layers = SPAN_LAYERS
            await machine.start(LayerRange(a, b), **options)
            running.append(machine)
        return running

    yield run
    for machine in running:
        await machine.stop()
