"""Pages for a whole module, and a browser for them; `driving.py` says how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import driving
from tests.client.dashboard.world import PagesWorld, filled_world

HERE = Path(__file__).parent

Drive = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def drive() -> Drive:
    """Run one of the scripts here, by its name, with what it is asked; what it told."""
    if why := driving.missing():
        pytest.skip(why)
    return lambda script, **asked: driving.drive(HERE / f"{script}.mjs", **asked)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesWorld]:
    """A gateway with something to see on every page."""
    with filled_world(tmp_path_factory.mktemp("pages")) as world:
        yield world
