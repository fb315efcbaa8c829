"""Is a token that the escrow could not keep its word with refused before anything is deployed?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.chain.artifacts import artifact, predict_address
from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.networks.token import LEAST_MOVED_UNITS, REBASING, examine_token, selector
from core.protocol.errors import CheckFailed, ConfigError
from core.protocol.network_file import TokenFacts
from tests.conftest import CHAIN_ID, Anvil

pytestmark = pytest.mark.chain
CUT_TOKEN = json.loads(Path(__file__).with_name("CutToken.json").read_text())
USD = 10**6
HOLDER = 4


@pytest.fixture
async def chain(anvil: Anvil, signers: list[Signer]) -> AsyncIterator[RpcChain]:
    """With a plain token that a holder has some of."""
    made = RpcChain(anvil.rpc_url, CHAIN_ID, {})
    await made.deploy(signers[0], "TestUSD", signers[0].address)
    await made.transact(signers[0], "TestUSD", "mint", signers[HOLDER].address, USD)
    yield made
    await made.close()


async def test_a_plain_token_is_taken_and_nothing_moves(
    chain: RpcChain, signers: list[Signer]
) -> None:
    at, holder = chain.addresses["TestUSD"], signers[HOLDER].address
    report = await examine_token(chain, at, holder)
    assert report.facts == TokenFacts(at, "usd", 6)
    assert report.warnings == ()
    assert await chain.read("TestUSD", "balanceOf", holder) == USD
    assert await chain.raw("eth_getCode", holder, "latest") == b""


async def test_a_token_that_keeps_a_part_is_refused(chain: RpcChain, signers: list[Signer]) -> None:
    at = chain.addresses["TestUSD"]
    await chain.rpc("anvil_setCode", at, CUT_TOKEN["deployedBytecode"])
    with pytest.raises(CheckFailed, match="keeps a part") as error:
        await examine_token(chain, at, signers[HOLDER].address)
    assert f"{USD} left" in error.value.why.replace("base units ", "")
    assert f"{USD - 2 * (USD // 200)} arrived" in error.value.why


async def test_without_enough_to_show_a_fee_nothing_is_said(
    chain: RpcChain, signers: list[Signer]
) -> None:
    """One in ten thousand of less than that is nothing."""
    poor = "0x" + "61" * 20
    await chain.transact(signers[0], "TestUSD", "mint", poor, 2 * LEAST_MOVED_UNITS - 1)
    with pytest.raises(ConfigError, match="no transfer"):
        await examine_token(chain, chain.addresses["TestUSD"], poor)
    await chain.transact(signers[0], "TestUSD", "mint", poor, 1)
    await examine_token(chain, chain.addresses["TestUSD"], poor)


async def test_a_token_whose_transfers_revert_is_refused(
    chain: RpcChain, signers: list[Signer]
) -> None:
    """Its code answers everything with a balance of a million, and moves nothing."""
    at = chain.addresses["TestUSD"]
    push = lambda word: b"\x7f" + word.to_bytes(32) + b"\x5f\x52\x60\x20\x5f\xf3"  # noqa: E731
    await chain.rpc("anvil_setCode", at, "0x" + push(USD).hex())
    with pytest.raises(CheckFailed, match="no ERC-20"):
        await examine_token(chain, at, signers[HOLDER].address)


@pytest.mark.parametrize("function", REBASING)
async def test_a_token_that_rebases_is_refused(
    chain: RpcChain, signers: list[Signer], function: str
) -> None:
    at = chain.addresses["TestUSD"]
    code = artifact("TestUSD")["deployedBytecode"] + "63" + selector(function).hex()
    await chain.rpc("anvil_setCode", at, code)
    with pytest.raises(CheckFailed, match="without a transfer") as error:
        await examine_token(chain, at, signers[HOLDER].address)
    assert function in error.value.why


async def test_a_proxy_is_told_and_what_is_behind_it_is_looked_at(
    chain: RpcChain, signers: list[Signer]
) -> None:
    at, behind = chain.addresses["TestUSD"], predict_address(signers[0].address, 10**6)
    slot = "0x360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc"
    await chain.rpc("anvil_setStorageAt", at, slot, "0x" + behind[2:].rjust(64, "0"))
    report = await examine_token(chain, at, signers[HOLDER].address)
    assert behind in report.warnings[0]
    code = "0x63" + selector("rebase(uint256)").hex()
    await chain.rpc("anvil_setCode", behind, code)
    with pytest.raises(CheckFailed, match="without a transfer"):
        await examine_token(chain, at, signers[HOLDER].address)
    await chain.rpc("anvil_setCode", behind, "0x63" + selector("basisPointsRate()").hex())
    report = await examine_token(chain, at, signers[HOLDER].address)
    assert "basisPointsRate()" in report.warnings[1]


async def test_an_address_without_a_token_is_refused(
    chain: RpcChain, signers: list[Signer]
) -> None:
    with pytest.raises(CheckFailed, match="no token"):
        await examine_token(chain, "0x" + "62" * 20, signers[HOLDER].address)
    await chain.deploy(signers[0], "Referee")
    with pytest.raises(CheckFailed, match="no ERC-20"):
        await examine_token(chain, chain.addresses["Referee"], signers[HOLDER].address)


async def test_a_node_without_state_overrides_is_told(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a node calls the holder as it is, which has no code."""
    raw = chain.raw

    async def plain(method: str, *params: object) -> bytes:
        return await raw(method, *(params[:2] if method == "eth_call" else params))

    monkeypatch.setattr(chain, "raw", plain)
    with pytest.raises(ConfigError, match="no transfer") as error:
        await examine_token(chain, chain.addresses["TestUSD"], signers[HOLDER].address)
    assert "state overrides" in error.value.why
