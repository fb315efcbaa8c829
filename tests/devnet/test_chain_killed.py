"""Does a killed chain come back with its blocks, and with its clock where that was?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.chain.rpc import RpcChain
from devnet import lifecycle
from devnet.anvil import CHAIN_ID, start_anvil
from devnet.layout import DevnetFolders
from devnet.ports import free_ports
from devnet.processes import Processes

DAY_S = 86_400


@pytest.fixture
async def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RpcChain]:
    """A devnet of a chain alone."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    layout, (port,) = DevnetFolders.default(), free_ports(1)
    layout.root.mkdir(parents=True)
    network = {
        "name": "devnet",
        "chain_id": CHAIN_ID,
        "rpc_url": f"http://127.0.0.1:{port}",
        "deploy_block": 0,
        "contracts": {"TaskRegistry": "0x" + "11" * 20},
        "models": {"tiny": "0x" + "12" * 32},
    }
    layout.network_file.write_text(json.dumps(network))
    processes = Processes(layout.processes_file, layout.logs)
    await start_anvil(
        processes, port, states=layout.chain_states, state_file=layout.chain_state_file
    )
    chain = RpcChain(network["rpc_url"], CHAIN_ID, {})
    yield chain
    await chain.close()
    await Processes.load(layout.processes_file, layout.logs).stop_all()


@pytest.mark.chain
async def test_a_killed_chain_comes_back_with_its_blocks_and_its_clock(chain: RpcChain) -> None:
    one, other = (await chain.rpc("eth_accounts"))[:2]
    paid = {"from": one, "to": other, "value": hex(5)}
    tx = await chain.rpc("eth_sendTransaction", paid)
    await chain.rpc("evm_increaseTime", DAY_S)
    await chain.rpc("evm_mine")
    held, now_s = await chain.rpc("eth_getBalance", other, "latest"), await chain.now()
    block = await chain.block_number()
    await lifecycle.kill_program("anvil")
    rows = {row.program: row.state for row in await lifecycle.describe()}
    assert rows == {"anvil": "dead"}
    await lifecycle.start_again("anvil")
    assert await chain.block_number() >= block
    assert await chain.rpc("eth_getBalance", other, "latest") == held
    assert (await chain.rpc("eth_getTransactionReceipt", tx))["status"] == "0x1"
    await chain.rpc("evm_mine")
    assert await chain.now() >= now_s
