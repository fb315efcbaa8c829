"""A deployed chain and the miner's command line, as a person has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from core.chain.rpc import RpcChain
from core.keys.keystore import Keystore
from core.keys.passwords import write_secret_file
from core.protocol.network_file import USD, Parameters
from devnet.deploy import deploy, register_model
from miner import cli
from tests.accounts import devnet_accounts

T = TypeVar("T")
OWNER = 4  # of Anvil's accounts


class Town:
    """Contracts on a fresh node, one owner's wallet and home. Commands run in this process."""

    def __init__(self, rpc_url: str, home: Path, parameters: Parameters) -> None:
        self.rpc_url, self.home, self.parameters = rpc_url, home, parameters
        self.deployer, self.owner = devnet_accounts()[0], devnet_accounts()[OWNER]
        self.addresses: dict[str, str] = {}
        self.model_id = ""

    def with_chain(self, work: Callable[[RpcChain], Awaitable[T]]) -> T:
        """Run one piece of work against the chain."""

        async def run() -> T:
            chain = RpcChain(self.rpc_url, 31337, self.addresses)
            try:
                return await work(chain)
            finally:
                await chain.close()

        return asyncio.run(run())

    def build(self, owner_usd: int, model: Path | None = None, numerics: str = "float32") -> None:
        """Deploy, fund the owner, register the model, write the owner's wallet and settings."""

        async def work(chain: RpcChain) -> None:
            self.addresses = await deploy(
                chain, self.deployer, self.deployer.address, self.parameters
            )
            await chain.transact(
                self.deployer, "TestUSD", "mint", self.owner.address, owner_usd * USD
            )
            if model is not None:
                self.model_id = await register_model(chain, self.deployer, model, numerics=numerics)

        self.with_chain(work)
        for folder in ("config", "networks", "keys"):
            (self.home / folder).mkdir(parents=True)
        write_secret_file(self.home / "password", b"devnet\n")
        Keystore(self.home / "keys", light=True).import_phrase(
            "alice",
            "test test test test test test test test test test test junk",
            "devnet",
            chain_id=31337,
            index=OWNER,
        )
        network = {
            "name": "devnet",
            "chain_id": 31337,
            "rpc_url": self.rpc_url,
            "contracts": self.addresses,
            "models": {str(model): self.model_id} if model else {},
        }
        (self.home / "networks" / "devnet.json").write_text(json.dumps(network))
        lines = [
            "[wallet]",
            'name = "alice"',
            f'keystore_dir = "{self.home / "keys"}"',
            f'password_file = "{self.home / "password"}"',
            "[miner]",
            f'model = "{model or "none"}"',
            'memory_limit = "200MiB"',
            'drain_timeout = "2s"',
            "[engine]",
            "threads = 1",
        ]
        (self.home / "config" / "config.toml").write_text("\n".join(lines) + "\n")

    def read(self, contract: str, function: str, *args: Any) -> Any:
        return self.with_chain(lambda chain: chain.read(contract, function, *args))

    def warp(self, seconds: int) -> None:
        """Move the chain's clock."""

        async def work(chain: RpcChain) -> None:
            await chain.rpc("evm_increaseTime", seconds)
            await chain.rpc("evm_mine")

        self.with_chain(work)

    def miner(self, *arguments: str) -> int:
        """`miner ARGUMENTS`; its exit code."""
        return cli.main(list(arguments))
