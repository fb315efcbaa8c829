"""A matcher per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.town.matcher import Net


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    found = Net(tmp_path)
    yield found
    for store in found.stores:
        store.close()
