"""Contracts on a fresh node, and an owner with a wallet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core.protocol.network_file import Parameters
from tests.conftest import Anvil
from tests.miner.programs import Town


@pytest.fixture
def town(own_anvil: Callable[..., Anvil], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    for name in ("HEADRACE_PASSWORD_FILE", "ETH_PASSWORD", "ETH_RPC_URL", "ETH_KEYSTORE"):
        monkeypatch.delenv(name, raising=False)
    town = Town(own_anvil().rpc_url, home, Parameters())
    town.build(owner_usd=600)
    return town
