"""A town per test, taken down at its end, and the tiny model that its miners cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devnet.models.tiny_models import write_tiny_model
from tests.client.sessions.conftest import village
from tests.town.town import Town

__all__ = ["village"]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=6)


@pytest.fixture
async def town(tmp_path: Path, model_dir: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path, model_dir)
    yield town
    await town.close()
