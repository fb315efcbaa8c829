"""A local chain: Anvil, as npm installed it."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import time
from pathlib import Path

from core.chain.rpc import RpcChain
from core.protocol.errors import ConfigError
from devnet.processes import Processes, RunningProgram

CHAIN_ID = 31337
#: Accounts of the public phrase that start with ETH; each devnet party is one of them.
ACCOUNTS = 12
#: Beyond the states it holds in memory (the newest six hundred and more) Anvil writes each block's
#: whole state to a file. Nothing here reads that far back, and it would fill the home of the user.
STATES_ON_DISK = 16
PROJECT = Path(__file__).resolve().parent.parent


def find_anvil() -> Path:
    """The native binary: a wrapper script would survive its own killing. Raises ConfigError."""
    for found in sorted(PROJECT.glob("node_modules/@foundry-rs/anvil-*/bin/anvil")):
        return found
    on_path = shutil.which("anvil")
    if on_path:
        return Path(on_path)
    raise ConfigError("there is no anvil", "npm did not install it", next_step="make setup")


def old_states_in(folder: Path) -> list[str]:
    """Options: old states go to this folder, as few as there can be."""
    return ["--cache-path", str(folder), "--max-persisted-states", str(STATES_ON_DISK)]


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


async def start_anvil(
    processes: Processes,
    port: int,
    *,
    states: Path,
    state_file: Path | None = None,
    block_time_s: int = 1,
) -> RunningProgram:
    """Start a chain: a block for every transaction and one every `block_time_s`, as a clock.

    Old states go to the folder `states`, as few as there can be. With a `state_file` the chain is
    kept there, and continued if the file exists.
    """
    _make_empty(states)
    argv = [str(find_anvil()), "--silent", "--mixed-mining", "--hardfork=prague"]
    argv += ["--host=127.0.0.1", f"--port={port}", f"--block-time={block_time_s}"]
    argv += [f"--chain-id={CHAIN_ID}", f"--accounts={ACCOUNTS}", *old_states_in(states)]
    if state_file is not None:
        argv += ["--state", str(state_file)]
    await processes.start("anvil", argv)
    return await _ready(processes, port, state_file)


async def start_anvil_again(
    processes: Processes, port: int, *, states: Path, state_file: Path
) -> RunningProgram:
    """Start the chain as it was started, from what `keep_state` wrote if it was killed."""
    _make_empty(states)
    await processes.start_again("anvil")
    return await _ready(processes, port, state_file)


async def keep_state(chain: RpcChain, state_file: Path) -> None:
    """Write the chain as it is to the file that it is started from, as if it were on a disk."""
    dumped = bytes.fromhex((await chain.rpc("anvil_dumpState")).removeprefix("0x"))
    await asyncio.to_thread(state_file.write_bytes, gzip.decompress(dumped))


async def _ready(processes: Processes, port: int, state_file: Path | None) -> RunningProgram:
    """Wait until the chain answers. Its clock does not go back behind the blocks that it has."""
    running = processes.get("anvil")
    chain = RpcChain(f"http://127.0.0.1:{port}", CHAIN_ID, {})

    async def answers() -> bool:
        await chain.check()
        return True

    try:
        await processes.wait_ready(running, answers, 30.0)
        behind_s = _time_of(state_file) - int(time.time())  # which its next block would have
        if behind_s > 0:
            await chain.rpc("evm_increaseTime", behind_s)
    finally:
        await chain.close()
    return running


def _time_of(state_file: Path | None) -> int:
    """The time of the last block of a kept chain; 0 where none is kept."""
    if state_file is None or not state_file.is_file():
        return 0
    return int(json.loads(state_file.read_text())["block"]["timestamp"], 16)
