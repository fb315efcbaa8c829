"""Do agents written with other people's libraries finish their task, unmodified?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.environments import PROGRAMS, run
from tests.client.gateway.world import World


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(Path(tmp_path_factory.mktemp("agents"))).start()
    yield world
    world.stop()


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_agent_finishes_its_task(shared: World, program: str) -> None:
    if not PROGRAMS[program].python.is_file():
        pytest.skip("its environment is not there: make agents")
    said = run(program, shared.base_url, shared.new_key(), "toy")
    assert said.splitlines()[-1:] == ["done"], said
