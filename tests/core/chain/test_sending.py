"""What becomes of a transaction where gas becomes dearer, and where its program is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from eth_utils.address import to_checksum_address

from core.chain import sending as sender
from core.chain.chain import PreparedTransaction
from core.chain.fees import MOST_GAS, first_bid
from core.chain.outbox import TransactionOutbox
from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.protocol.errors import ChainUnreachable, ContractRefused, HeadraceError
from tests.conftest import CHAIN_ID, Anvil, start_anvil

pytestmark = pytest.mark.chain
GWEI = 10**9
TO = to_checksum_address("0x" + "5e" * 20)


@pytest.fixture
def node() -> Iterator[Anvil]:
    """A chain that makes a block when it is told to."""
    anvil = start_anvil("--no-mining", "--order", "fees")
    yield anvil
    anvil.stop()


@pytest.fixture
async def chain(node: Anvil) -> AsyncIterator[RpcChain]:
    connected = RpcChain(node.rpc_url, CHAIN_ID, {})
    yield connected
    await connected.close()


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "OUTBID_EVERY_S", 0.0)


async def mine(chain: RpcChain, base_fee: int | None = None) -> None:
    if base_fee is not None:
        await chain.rpc("anvil_setNextBlockBaseFeePerGas", hex(base_fee))
    await chain.rpc("evm_mine")


async def waiting(chain: RpcChain) -> list[dict[str, Any]]:
    """What waits for a block."""
    pool = await chain.rpc("txpool_content")
    return [tx for account in pool["pending"].values() for tx in account.values()]


async def until_waits(chain: RpcChain, count: int, above: int = 0) -> list[dict[str, Any]]:
    """So many wait that bid more than this."""
    async with asyncio.timeout(30):
        while True:
            found = [tx for tx in await waiting(chain) if int(tx["maxFeePerGas"], 16) > above]
            if len(found) == count:
                return found
            await asyncio.sleep(0.02)


async def test_more_is_bid_while_blocks_become_dearer(
    chain: RpcChain, signers: list[Signer]
) -> None:
    await mine(chain, GWEI)
    before = await chain.balance_wei(TO)
    sending = asyncio.create_task(chain.send_eth(signers[0], TO, 7))
    (first,) = await until_waits(chain, 1)
    bid = int(first["maxFeePerGas"], 16)
    assert bid == first_bid(GWEI).fee
    for base in (8 * GWEI, 20 * GWEI):
        await mine(chain, base)
        assert not sending.done()
        (higher,) = await until_waits(chain, 1, above=bid)
        bid = int(higher["maxFeePerGas"], 16)
        assert higher["nonce"] == first["nonce"] and bid >= base
    await mine(chain, 20 * GWEI)
    sent = await sending
    assert await chain.balance_wei(TO) == before + 7, "once"
    assert sent.tx_hash == higher["hash"] != first["hash"]
    assert await waiting(chain) == []


async def test_a_higher_bid_that_the_node_took_without_a_word_is_the_same_transaction(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node falls silent while it takes it, and is back when it is in a block."""
    await mine(chain, GWEI)
    before = await chain.balance_wei(TO)
    hand_over = chain._sender._hand_over
    sending = asyncio.create_task(chain.send_eth(signers[0], TO, 7))
    (first,) = await until_waits(chain, 1)

    async def without_a_word(prepared: PreparedTransaction) -> None:
        await hand_over(prepared)
        raise ChainUnreachable("no answer", "it was lost")

    monkeypatch.setattr(chain._sender, "_hand_over", without_a_word)
    await mine(chain, 8 * GWEI)
    (higher,) = await until_waits(chain, 1, above=int(first["maxFeePerGas"], 16))
    await mine(chain, 8 * GWEI)
    assert (await sending).tx_hash == higher["hash"] != first["hash"]
    assert await chain.balance_wei(TO) == before + 7


async def test_what_is_too_dear_waits_and_goes_first_the_next_time(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "CONFIRM_S", 0.5)
    await mine(chain, GWEI)
    before = await chain.balance_wei(TO)
    sending = asyncio.create_task(chain.send_eth(signers[0], TO, 7))
    (first,) = await until_waits(chain, 1)
    await mine(chain, 1000 * GWEI)
    with pytest.raises(ChainUnreachable, match="sent but not mined") as given_up:
        await sending
    assert first["hash"] in given_up.value.state and "may still be mined" in given_up.value.state

    monkeypatch.setattr(sender, "CONFIRM_S", 60.0)
    await mine(chain, 40 * GWEI)
    sending = asyncio.create_task(chain.send_eth(signers[0], TO, 100))
    await until_waits(chain, 2, above=40 * GWEI)
    await mine(chain, 40 * GWEI)
    await sending
    assert await chain.balance_wei(TO) == before + 107, "both, each once"


async def test_what_an_account_cannot_pay_is_not_bid(
    chain: RpcChain, signers: list[Signer]
) -> None:
    await mine(chain, GWEI)
    poor = Signer(b"\x21" * 32, chain_id=CHAIN_ID)
    await chain.rpc("anvil_setBalance", poor.address, hex(21_000 * 4 * GWEI))
    sending = asyncio.create_task(chain.send_eth(poor, TO, 1))
    (first,) = await until_waits(chain, 1)
    await mine(chain, 10 * GWEI)
    assert not sending.done()
    async with asyncio.timeout(30):  # a node that has dropped it gets it once more
        while not sending.done():
            await mine(chain, GWEI)
            await asyncio.sleep(0.05)
    assert (await sending).tx_hash == first["hash"]


async def test_another_transaction_with_its_nonce_ends_the_wait(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "OUTBID_EVERY_S", 60.0)
    await mine(chain, GWEI)
    sending = asyncio.create_task(chain.send_eth(signers[0], TO, 1))
    (first,) = await until_waits(chain, 1)
    await chain.rpc("anvil_dropTransaction", first["hash"])
    elsewhere = RpcChain(chain.rpc_url, CHAIN_ID, {})
    try:
        theirs = asyncio.create_task(elsewhere.send_eth(signers[0], TO, 2))
        await until_waits(chain, 1)
        await mine(chain)
        await theirs
    finally:
        await elsewhere.close()
    monkeypatch.setattr(sender, "OUTBID_EVERY_S", 0.0)
    with pytest.raises(ContractRefused, match="will not be mined") as replaced:
        await sending
    assert "had its nonce" in replaced.value.state


async def test_more_gas_than_a_block_takes_of_one_is_refused_before(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ContractRefused, match="too much for one transaction") as refused:
        await chain._sender.send(
            signers[0], sender.TransactionDraft(TO, "0x01", MOST_GAS + 1, "Game.move")
        )
    assert refused.value.error_args == {"needed": MOST_GAS + 1, "most": MOST_GAS}


# --- killed between any two lines ---


class Killed(BaseException):
    """Nothing after it is done."""


#: No process has this number.
ENDED = 2**22 + 1, "ended"
POINTS = ["before it is written", "before it is sent", "while it waits", "before it is forgotten"]


def outbox_of(chain: RpcChain) -> TransactionOutbox:
    box = chain._sender._outbox
    assert box is not None
    return box


def dying(
    chain: RpcChain, box: TransactionOutbox, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have a program die at a point of its next transaction."""

    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    async def die_later(*_: Any, **__: Any) -> Any:
        raise Killed

    if point == POINTS[0]:
        monkeypatch.setattr(box, "put", die)
    elif point == POINTS[1]:
        monkeypatch.setattr(chain._sender, "push", die_later)
    elif point == POINTS[2]:
        monkeypatch.setattr(chain._sender, "until_mined", die_later)
    else:
        monkeypatch.setattr(box, "forget", die)


@pytest.mark.parametrize("is_mined_meanwhile", [True, False])
@pytest.mark.parametrize("point", POINTS)
async def test_a_program_that_is_killed_sends_nothing_twice(
    point: str,
    is_mined_meanwhile: bool,
    node: Anvil,
    signers: list[Signer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever starts it again is told what was done, and what was not done is done once."""
    payer = signers[2]
    first = RpcChain(node.rpc_url, CHAIN_ID, {}, state=tmp_path)
    box = outbox_of(first)
    box._me = ENDED
    await mine(first, GWEI)
    before = await first.balance_wei(TO)
    dying(first, box, point, monkeypatch)
    sending = asyncio.create_task(first.send_eth(payer, TO, 5))
    if point == POINTS[3]:
        await until_waits(first, 1)
        await mine(first)
    with pytest.raises(Killed):
        await sending
    was_sent = point in POINTS[2:]
    if is_mined_meanwhile:
        await mine(first)
    await first.close()

    second = RpcChain(node.rpc_url, CHAIN_ID, {}, state=tmp_path)
    try:
        sending = asyncio.create_task(second.send_eth(payer, TO, 5))
        if not was_sent or (point == POINTS[2] and not is_mined_meanwhile):
            await until_waits(second, 1)
        await mine(second)
        if was_sent:
            with pytest.raises(ChainUnreachable, match="ended before it was done") as told:
                await sending
            assert "transfer was mined in block" in told.value.why
            assert await second.balance_wei(TO) == before + 5
            sending = asyncio.create_task(second.send_eth(payer, TO, 5))
            await until_waits(second, 1)
            await mine(second)
            await sending
            assert await second.balance_wei(TO) == before + 10, "it was wanted once more"
        else:
            await sending
            assert await second.balance_wei(TO) == before + 5
        assert outbox_of(second).left(payer.address) == []
    finally:
        await second.close()


async def test_of_two_with_one_nonce_one_is_mined(
    node: Anvil, signers: list[Signer], tmp_path: Path
) -> None:
    """Killed before it was sent, as far as our node knows; another node has it all the same."""
    chain = RpcChain(node.rpc_url, CHAIN_ID, {}, state=tmp_path)
    box = outbox_of(chain)
    try:
        await mine(chain, GWEI)
        before = await chain.balance_wei(TO)
        draft = sender.TransactionDraft(TO, "0x", 21_000, "transfer", 5)
        old = await chain._sender.prepare(signers[3], draft)
        here, box._me = box._me, ENDED
        box.put(old)
        box._me = here
        sending = asyncio.create_task(chain.send_eth(signers[3], TO, 50))
        (new,) = await until_waits(chain, 1)
        assert int(new["nonce"], 16) == old.nonce
        with pytest.raises(HeadraceError):
            await chain.push(old)  # underpriced in the place of the new one
        await mine(chain)
        await sending
        assert await chain.balance_wei(TO) == before + 50
    finally:
        await chain.close()


def test_what_was_signed_can_be_read_back(signers: list[Signer]) -> None:
    fields: dict[str, Any] = {
        **{"type": 2, "chainId": CHAIN_ID, "to": TO, "value": 3, "data": "0x1234", "gas": 50_000},
        **{"maxFeePerGas": 7, "maxPriorityFeePerGas": 2, "nonce": 4},
    }
    prepared: PreparedTransaction = sender.prepared_by(signers[0], fields, "x")
    again = sender.prepared_by(signers[0], sender._fields_of(prepared), "x")
    assert again == prepared
