"""A model whose weights break its T is refused before anything of it is on the chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.protocol.errors import ModelUnsupported
from devnet.deploy import register_model
from devnet.models.tiny_models import write_tiny_model
from tests.core.dispute.registration.crafted import write_crafted_model


class Told:
    """A chain that has nothing yet, and keeps what is sent to it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    async def read(self, contract: str, function: str, *args: object) -> Any:
        return False

    async def transact(self, signer: object, contract: str, function: str, *args: object) -> None:
        self.sent.append((contract, function))


async def register(chain: Told, signer: Signer, folder: Path) -> None:
    await register_model(cast(RpcChain, chain), signer, folder)


async def test_a_model_is_stored_and_registered(tmp_path: Path, signers: list[Signer]) -> None:
    chain = Told()
    await register(chain, signers[0], write_tiny_model(tmp_path / "tiny", layers=2))
    assert chain.sent == [("ProgramStore", "store"), ("ModelRegistry", "register")]


async def test_weights_that_break_the_default_tolerance_send_nothing(
    tmp_path: Path, signers: list[Signer]
) -> None:
    chain = Told()
    with pytest.raises(ModelUnsupported, match="honest work on natural rows"):
        await register(chain, signers[0], write_crafted_model(tmp_path / "crafted"))
    assert chain.sent == []
