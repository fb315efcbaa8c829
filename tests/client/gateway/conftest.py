"""A gateway over the toy for each test that asks for one, and the official client of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.client.gateway.world import World
from tests.client.sessions.conftest import model_dir, village

__all__ = ["client", "make_world", "model_dir", "village", "world"]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds with settings of their own; all are stopped at the end."""
    made: list[World] = []

    def make(**options: Any) -> World:
        made.append(World(tmp_path / f"world-{len(made)}", **options).start())
        return made[-1]

    yield make
    for world in made:
        world.stop()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def client(world: World) -> Iterator[openai.OpenAI]:
    """The official client with a key that has no limits."""
    with openai.OpenAI(base_url=world.base_url, api_key=world.new_key(), timeout=30) as client:
        yield client
