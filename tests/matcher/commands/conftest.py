"""What the tests of owners' commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Anvil
from tests.matcher.commands.office import Office


@pytest.fixture
def office(
    tmp_path: Path,
    own_anvil: Callable[..., Anvil],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Office:
    return Office(tmp_path / "home", own_anvil().rpc_url, capsys, monkeypatch)
