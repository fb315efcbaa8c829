"""Three nodes, of which one lies, one lags and one refuses, and a real chain behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from eth_utils.crypto import keccak

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.protocol.errors import ChainUnreachable, ContractRefused
from tests.conftest import CHAIN_ID, Anvil, start_anvil
from tests.core.chain.nodes import Stranger, standing

pytestmark = pytest.mark.chain
USD = 10**6
RICH = "0x" + "f" * 63 + "1"


@pytest.fixture(scope="module")
def node() -> Iterator[Anvil]:
    anvil = start_anvil()
    yield anvil
    anvil.stop()


@pytest.fixture(scope="module")
def token(node: Anvil, signers: list[Signer]) -> str:
    async def run() -> str:
        chain = RpcChain(node.rpc_url, CHAIN_ID, {})
        try:
            return await chain.deploy(signers[0], "TestUSD", signers[0].address)
        finally:
            await chain.close()

    return asyncio.run(run())


def lies(method: str, params: list[Any]) -> Any:
    """Whatever may make somebody part with money."""
    told = {
        "eth_call": {"result": "0x" + f"{10**18:064x}"},
        "eth_getBalance": {"result": hex(10**30)},
        "eth_blockNumber": {"result": hex(10**9)},
        "eth_getTransactionCount": {"result": hex(10**6)},
        "eth_estimateGas": {"result": hex(2**40)},
        "eth_getLogs": {"result": []},
        "eth_getCode": {"result": "0x"},
        "eth_chainId": {"result": "0x1"},
    }
    if method == "eth_sendRawTransaction":  # takes it, and drops it
        return {"result": "0x" + keccak(bytes.fromhex(params[0][2:])).hex()}
    if method == "eth_getTransactionReceipt":
        return {
            "result": {
                **{"transactionHash": params[0], "blockHash": RICH, "blockNumber": "0x1"},
                **{"status": "0x1", "gasUsed": "0x5208", "contractAddress": None, "logs": []},
                **{"transactionIndex": "0x0", "cumulativeGasUsed": "0x0", "from": params[0][:42]},
            }
        }
    if method == "eth_getBlockByNumber":
        return {"error": {"code": -32000, "message": "no"}}
    return told.get(method)


def refuses(method: str, params: list[Any]) -> Any:
    return web.Response(status=403, text="no key")


def hangs_up(method: str, params: list[Any]) -> Any:
    return ConnectionError()


Strangers = Callable[[str], list[Stranger]]
TROUBLES: dict[str, Strangers] = {
    "one lies": lambda url: [Stranger(url, lies), Stranger(url), Stranger(url)],
    "one lags": lambda url: [Stranger(url), Stranger(url, lag=3), Stranger(url)],
    "one refuses": lambda url: [Stranger(url), Stranger(url), Stranger(url, refuses)],
    "one hangs up": lambda url: [Stranger(url, hangs_up), Stranger(url), Stranger(url)],
    "each of five": lambda url: [
        *(Stranger(url, lies), Stranger(url), Stranger(url, refuses)),
        *(Stranger(url), Stranger(url)),
    ],
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_money_is_moved_and_seen_as_most_nodes_say(
    trouble: str, node: Anvil, token: str, signers: list[Signer]
) -> None:
    strangers = TROUBLES[trouble](node.rpc_url)
    to = Signer(keccak(trouble.encode()), chain_id=CHAIN_ID).address
    async with standing(*strangers) as urls:
        chain = RpcChain(urls, CHAIN_ID, {"TestUSD": token})
        try:
            await chain.check()
            before = await chain.block_number()
            for number in range(1, 4):
                sent = await chain.transact(signers[0], "TestUSD", "mint", to, USD)
                assert await chain.read("TestUSD", "balanceOf", to) == number * USD
                assert sent.block_number == before + number
            with pytest.raises(ContractRefused) as refused:
                await chain.transact(signers[1], "TestUSD", "transfer", to, 10**30)
            assert refused.value.error == "ERC20InsufficientBalance"
            found = await chain.events(before + 1, await chain.block_number())
            assert [event.args["to"] for event in found] == [to] * 3
            assert await chain.balance_wei(to) == 0
            assert await chain.block_hash(before + 10**6) is None
        finally:
            await chain.close()


async def test_where_most_do_not_agree_nothing_is_believed(node: Anvil, token: str) -> None:
    """Two of three are away; two lie, each in its own way."""

    def lies_more(method: str, params: list[Any]) -> Any:
        return {"result": "0x" + f"{7:064x}"} if method == "eth_call" else None

    for strangers in (
        [Stranger(node.rpc_url), Stranger(node.rpc_url, refuses), Stranger(node.rpc_url, hangs_up)],
        [Stranger(node.rpc_url), Stranger(node.rpc_url, lies), Stranger(node.rpc_url, lies_more)],
    ):
        async with standing(*strangers) as urls:
            chain = RpcChain(urls, CHAIN_ID, {"TestUSD": token})
            try:
                with pytest.raises(ChainUnreachable) as unreachable:
                    await chain.read("TestUSD", "decimals")
                assert "of 3 endpoints" in unreachable.value.why
            finally:
                await chain.close()


async def test_a_node_that_is_asked_too_often_is_asked_later(node: Anvil, token: str) -> None:
    left = 3

    def later(method: str, params: list[Any]) -> Any:
        nonlocal left
        if method != "eth_call" or left == 0:
            return None
        left -= 1
        status = 429 if left % 2 else 503
        return web.Response(status=status, headers={"Retry-After": "0"})

    stranger = Stranger(node.rpc_url, later)
    async with standing(stranger) as url:
        chain = RpcChain(url, CHAIN_ID, {"TestUSD": token})
        try:
            assert await chain.read("TestUSD", "decimals") == 6
            assert (left, stranger.seen.count("eth_call")) == (0, 4)
            left = 99
            with pytest.raises(ChainUnreachable, match=r"429|503"):
                await chain.read("TestUSD", "decimals")
        finally:
            await chain.close()


async def test_a_node_that_gives_events_of_few_blocks_is_asked_for_few(
    node: Anvil, token: str, signers: list[Signer]
) -> None:
    asked: list[int] = []

    def few(method: str, params: list[Any]) -> Any:
        if method != "eth_getLogs":
            return None
        blocks = int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) + 1
        asked.append(blocks)
        if blocks <= 10:
            return None
        return {"error": {"code": -32005, "message": "block range is too wide: 10 at most"}}

    async with standing(Stranger(node.rpc_url, few)) as url:
        chain = RpcChain(url, CHAIN_ID, {"TestUSD": token})
        try:
            first = await chain.block_number() + 1
            to = Signer(b"\x77" * 32, chain_id=CHAIN_ID).address
            minted = [
                (await chain.transact(signers[0], "TestUSD", "mint", to, n)).block_number
                for n in range(1, 31)
            ]
            found = await chain.events(first, minted[-1])
            assert [event.block_number for event in found] == minted, "each once, in order"
            tries = asked.copy()
            asked.clear()
            assert await chain.events(first, minted[-1]) == found
            assert max(asked) <= 10 < max(tries), "what it refuses is not asked again"
        finally:
            await chain.close()
