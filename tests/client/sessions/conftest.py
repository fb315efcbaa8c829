"""A village per test, and the tiny model of its miners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client.context import Context
from devnet.models.tiny_models import write_tiny_model
from tests.town.files import files_in
from tests.town.village import Village


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=6)


@pytest.fixture
async def village(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Village]:
    monkeypatch.setattr(Context, "files_of", files_in(model_dir))
    village = Village(tmp_path, model_dir)
    yield village
    await village.close()
