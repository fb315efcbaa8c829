"""A local chain: Anvil, as npm installed it."""

from __future__ import annotations

import shutil
from pathlib import Path

from core.protocol.chain import Chain
from core.protocol.errors import ConfigError, HeadraceError
from devnet.processes import Processes, Running

CHAIN_ID = 31337
#: Accounts of the public phrase that start with ETH; each devnet party is one of them.
ACCOUNTS = 12
PROJECT = Path(__file__).resolve().parent.parent


def find_anvil() -> Path:
    """The native binary: a wrapper script between us and it would survive its own killing. Raises ConfigError."""
    for found in sorted(PROJECT.glob("node_modules/@foundry-rs/anvil-*/bin/anvil")):
        return found
    on_path = shutil.which("anvil")
    if on_path:
        return Path(on_path)
    raise ConfigError("there is no anvil", "npm did not install it", next_step="make setup")


async def start_anvil(
    processes: Processes, port: int, *, state_file: Path | None = None, block_time_s: int = 1
) -> Running:
    """Start a chain: a block for every transaction and one every `block_time_s`, so that clocks move by themselves.

    With a `state_file` the chain is kept there, and continued if the file exists.
    """
    argv = [
        str(find_anvil()),
        "--host", "127.0.0.1",
        "--port", str(port),
        "--chain-id", str(CHAIN_ID),
        "--accounts", str(ACCOUNTS),
        "--block-time", str(block_time_s),
        "--mixed-mining",
        "--hardfork", "prague",
        "--silent",
    ]  # fmt: skip
    if state_file is not None:
        argv += ["--state", str(state_file), "--preserve-historical-states"]
    running = await processes.start("anvil", argv)
    chain = Chain(f"http://127.0.0.1:{port}", CHAIN_ID, {})

    async def answers() -> bool:
        try:
            await chain.check()
        except HeadraceError:
            return False
        return True

    try:
        await processes.wait_ready(running, answers, 30.0)
    finally:
        await chain.close()
    return running
