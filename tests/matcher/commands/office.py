"""An owner's home: its wallets, its parameters file and the program `matcher` in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.keys.signer import Signer
from matcher import cli
from tests.conftest import CHAIN_ID
from tests.town.wallets import make_home

DEPLOYER, OWNER, GUARDIAN, FEES = 0, 1, 2, 3
WALLETS = {"deployer": DEPLOYER, "owner": OWNER, "guardian": GUARDIAN}


def parameters_file(signers: list[Signer], **changed: Any) -> dict[str, Any]:
    return {
        "name": "riverside",
        "chain_id": CHAIN_ID,
        "preset": "devnet",
        "owner": signers[OWNER].address.lower(),
        "guardian": signers[GUARDIAN].address,
        "fee_recipient": signers[FEES].address,
        **changed,
    }


class Office:
    """A home with wallets, and the program `matcher` in this process."""

    def __init__(
        self, home: Path, rpc_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
    ) -> None:
        self.home, self.rpc_url, self._capsys = home, rpc_url, capsys
        monkeypatch.setenv("HEADRACE_HOME", str(home))
        make_home(home, WALLETS)

    def run(self, *words: str, wallet: str = "deployer") -> tuple[int, dict[str, Any]]:
        """Exit code, and the result or the error."""
        options = ("--rpc-url", self.rpc_url, "--wallet", wallet, "--json", "--yes")
        code = cli.main([*words, *options])
        document = json.loads(self._capsys.readouterr().out.splitlines()[-1])
        return code, document.get("result", document.get("error"))

    def write(self, content: dict[str, Any]) -> str:
        path = self.home / "network.json"
        path.write_text(json.dumps(content))
        return str(path)
