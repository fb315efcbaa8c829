"""A real node: what is read, sent, refused and decoded, and what is left when it goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from core.chain.artifacts import argument, artifact, canonical, decode_revert, predict_address
from core.chain.chain import CONTRACTS, ChainCall, ChainEvent, Fate, Sent, TransactionFate
from core.chain.follower import EventFollower
from core.chain.rpc import RpcChain
from core.chain.sending import TransactionDraft
from core.keys.signer import Signer
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.errors import ChainUnreachable, ConfigError, ContractRefused, GasShort
from core.protocol.network_file import Parameters
from devnet.deploy import deploy
from tests.conftest import CHAIN_ID, Anvil
from tests.core.protocol.test_types import ORDER

pytestmark = pytest.mark.chain

USD = 10**6
STRANGER = "0x00000000000000000000000000000000DeaDBeef"


@pytest.fixture(scope="module")
def addresses(anvil: Anvil, signers: list[Signer]) -> dict[str, str]:
    """All contracts, deployed once by the first account."""

    async def run() -> dict[str, str]:
        chain = RpcChain(anvil.rpc_url, CHAIN_ID, {})
        try:
            return await deploy(chain, signers[0], signers[0].address, Parameters())
        finally:
            await chain.close()

    return asyncio.run(run())


@pytest.fixture
async def chain(anvil: Anvil, addresses: dict[str, str]) -> AsyncIterator[RpcChain]:
    connected = RpcChain(anvil.rpc_url, CHAIN_ID, addresses)
    yield connected
    await connected.close()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., RpcChain]]:
    """Chains of nodes of a test's own; closed with it."""
    made: list[RpcChain] = []

    def to(
        rpc_url: str, addresses: dict[str, str] | None = None, chain_id: int = CHAIN_ID
    ) -> RpcChain:
        made.append(RpcChain(rpc_url, chain_id, addresses or {}))
        return made[-1]

    yield to
    for one in made:
        await one.close()


async def mint(chain: RpcChain, signer: Signer, to: str, units: int) -> Sent:
    return await chain.transact(signer, "TestUSD", "mint", to, units)


def model(layers: int = 3) -> tuple[t.ModelSpec, list[bytes]]:
    roots = [bytes([i + 1]) * 32 for i in range(layers + 2)]
    name = signing.name_hash
    spec = t.ModelSpec(
        architecture=name("llama"),
        layers=layers,
        hidden=8,
        heads=2,
        kv_heads=1,
        ffn=16,
        vocab=64,
        context=128,
        embed_units=1,
        head_units=2,
        dtype=name("float32"),
        numerics_profile=name("fp32"),
        weights_root=commit.to_hex(commit.merkle_root(roots)),
        manifest_hash=t.ZERO_HASH,
    )
    return spec, roots


# --- addresses and deployment ---


@pytest.mark.parametrize(
    ("nonce", "address"),
    [
        # Two are known to every user of a fresh Anvil; the others by RLP with eth_utils and rlp.
        (0, "0x5FbDB2315678afecb367f032d93F642f64180aa3"),
        (1, "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"),
    ],
)
def test_addresses_of_the_first_deployments_are_the_well_known_ones(
    signers: list[Signer], nonce: int, address: str
) -> None:
    assert predict_address(signers[0].address, nonce) == address


@pytest.mark.parametrize("nonce", [0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 2**63])
def test_predicted_addresses_are_the_rlp_hash(signers: list[Signer], nonce: int) -> None:
    import rlp
    from eth_utils import keccak, to_checksum_address

    owner = signers[0].address
    encoded = rlp.encode([bytes.fromhex(owner[2:]), nonce])
    assert predict_address(owner, nonce) == to_checksum_address(keccak(encoded)[12:])


@pytest.mark.parametrize("nonce", [0, 1, 127, 128, 255, 256, 70_000])
async def test_deployments_land_where_predicted(
    own_anvil: Callable[..., Anvil],
    connect: Callable[..., RpcChain],
    signers: list[Signer],
    nonce: int,
) -> None:
    chain = connect(own_anvil().rpc_url)
    who = signers[0]
    await chain.rpc("anvil_setNonce", who.address, hex(nonce))
    address = await chain.deploy(who, "TestUSD", who.address)
    assert address == predict_address(who.address, nonce)
    assert await chain.read("TestUSD", "decimals") == 6


async def test_check_accepts_our_chain(chain: RpcChain) -> None:
    assert set(chain.addresses) == {*CONTRACTS, "Evidence"}
    await chain.check()


async def test_check_names_a_wrong_chain_id(
    anvil: Anvil, addresses: dict[str, str], connect: Callable[..., RpcChain]
) -> None:
    with pytest.raises(ConfigError, match="31337"):
        await connect(anvil.rpc_url, addresses, chain_id=1).check()


async def test_check_names_a_contract_that_is_another_network_s(
    anvil: Anvil, addresses: dict[str, str], connect: Callable[..., RpcChain]
) -> None:
    """Code is there: money would go to it, and no job could ever be paid from it."""
    wrong = {**addresses, "Escrow": addresses["MinerRegistry"]}
    with pytest.raises(ConfigError, match="wrong about Escrow"):
        await connect(anvil.rpc_url, wrong).check()


async def test_check_names_a_contract_without_code(
    anvil: Anvil, addresses: dict[str, str], connect: Callable[..., RpcChain]
) -> None:
    with pytest.raises(ConfigError, match=f"no Escrow at {STRANGER}"):
        await connect(anvil.rpc_url, {**addresses, "Escrow": STRANGER}).check()


async def test_the_domain_names_this_chain_and_its_task_registry(chain: RpcChain) -> None:
    assert chain.domain == signing.Domain(CHAIN_ID, chain.addresses["TaskRegistry"])


async def test_every_contract_has_code_of_a_size_that_chains_accept(chain: RpcChain) -> None:
    for name, address in chain.addresses.items():
        deployed = bytes.fromhex((await chain.rpc("eth_getCode", address, "latest"))[2:])
        assert 100 < len(deployed) <= 24_576, name


# --- reading and sending ---


async def test_what_is_minted_is_read_back(chain: RpcChain, signers: list[Signer]) -> None:
    to = Signer(b"\x11" * 32, chain_id=CHAIN_ID).address
    before = await chain.block_number()
    sent = await mint(chain, signers[0], to, 5 * USD)
    assert sent.block_number > before
    assert 21_000 < sent.gas_used < 200_000
    assert await chain.read("TestUSD", "balanceOf", to) == 5 * USD
    assert await chain.read("TestUSD", "balanceOf", to.lower()) == 5 * USD
    assert await chain.read("TestUSD", "balanceOf", to, block=before) == 0


async def test_events_are_decoded_in_chain_order(chain: RpcChain, signers: list[Signer]) -> None:
    first = await mint(chain, signers[0], signers[1].address, 1)
    last = await chain.transact(signers[1], "TestUSD", "transfer", signers[2].address.lower(), 1)
    found = await chain.events(first.block_number, last.block_number)
    assert [(e.contract, e.name, e.tx_hash) for e in found] == [
        ("TestUSD", "Transfer", first.tx_hash),
        ("TestUSD", "Transfer", last.tx_hash),
    ]
    assert found[1].args == {"from": signers[1].address, "to": signers[2].address, "value": 1}
    assert found[1].block_hash == await chain.block_hash(last.block_number)
    assert msgspec.json.decode(msgspec.json.encode(found[1]), type=ChainEvent) == found[1]


async def test_a_model_s_id_and_shards_are_the_chain_s(
    chain: RpcChain, signers: list[Signer]
) -> None:
    spec, roots = model()
    hexed = [commit.to_hex(root) for root in roots]
    await chain.transact(signers[0], "ModelRegistry", "register", spec, hexed)
    model_id = signing.model_id(spec)
    assert await chain.read("ModelRegistry", "exists", model_id)
    assert await chain.read("ModelRegistry", "specOf", model_id) == msgspec.to_builtins(spec)
    shape = await chain.read("ModelRegistry", "shapeOf", model_id)
    assert shape.keys() == {"layers", "embedUnits", "headUnits"}
    assert shape["layers"] == spec.layers
    for start in range(spec.layers):
        for end in range(start + 1, spec.layers + 1):
            on_chain = await chain.read("ModelRegistry", "shardRoot", model_id, start, end)
            assert on_chain == commit.to_hex(commit.shard_root(roots, start, end))


async def test_many_transactions_of_one_signer_at_once_keep_nonce_order(
    chain: RpcChain, signers: list[Signer]
) -> None:
    who, to = signers[0], Signer(b"\x12" * 32, chain_id=CHAIN_ID).address
    first = await chain.nonce(who.address)
    sent = await asyncio.gather(*(mint(chain, who, to, 10**i) for i in range(12)))
    assert await chain.nonce(who.address) == first + 12
    assert await chain.read("TestUSD", "balanceOf", to) == int("1" * 12)
    nonces = [
        int((await chain.rpc("eth_getTransactionByHash", s.tx_hash))["nonce"], 16) for s in sent
    ]
    assert sorted(nonces) == list(range(first, first + 12))


async def test_nonces_stay_in_order_while_blocks_take_time(
    own_anvil: Callable[..., Anvil], connect: Callable[..., RpcChain], signers: list[Signer]
) -> None:
    chain = connect(own_anvil("--block-time", "1").rpc_url)
    who = signers[0]
    to = [Signer(bytes([i + 1]) * 32, chain_id=CHAIN_ID).address for i in range(6)]
    sent = await asyncio.gather(*(chain.send_eth(who, a, 10**15) for a in to))
    assert await chain.nonce(who.address) == 6
    assert [await chain.balance_wei(a) for a in to] == [10**15] * 6
    assert all(one.gas_used == 21_000 for one in sent)


async def test_the_journal_hears_of_a_transaction_twice(
    chain: RpcChain, signers: list[Signer]
) -> None:
    heard: list[dict[str, Any]] = []
    chain._sender.journal = heard.append
    sent = await mint(chain, signers[0], STRANGER, 1)
    assert [entry["hash"] for entry in heard] == [sent.tx_hash] * 2
    assert heard[0]["outcome"] == "sent"
    assert heard[1]["outcome"].startswith(f"mined in block {sent.block_number}")


# --- refusals ---


async def test_a_revert_is_refused_with_the_custom_error_and_its_arguments_before_any_gas(
    chain: RpcChain, signers: list[Signer]
) -> None:
    poor = signers[7]
    nonce = await chain.nonce(poor.address)
    with pytest.raises(ContractRefused) as refused:
        await chain.transact(poor, "TestUSD", "transfer", STRANGER, 7)
    assert refused.value.error == "ERC20InsufficientBalance"
    assert refused.value.error_args == {"sender": poor.address, "balance": 0, "needed": 7}
    with pytest.raises(ContractRefused) as refused:
        await mint(chain, poor, STRANGER, 7)
    assert refused.value.error == "OwnableUnauthorizedAccount"
    assert refused.value.error_args == {"account": poor.address}
    assert await chain.nonce(poor.address) == nonce


async def test_a_refused_read_names_our_own_error(chain: RpcChain) -> None:
    unknown = "0x" + "77" * 32
    with pytest.raises(ContractRefused) as refused:
        await chain.read("ModelRegistry", "specOf", unknown)
    assert (refused.value.error, refused.value.error_args) == ("ModelUnknown", {"id": unknown})


async def test_a_refused_deployment_names_the_constructor_s_error(
    chain: RpcChain, signers: list[Signer]
) -> None:
    with pytest.raises(ContractRefused) as refused:
        await chain.deploy(signers[0], "TestUSD", t.ZERO_ADDRESS)
    assert refused.value.error == "OwnableInvalidOwner"


async def test_a_malformed_signature_reverts_with_a_decoded_error(
    chain: RpcChain, signers: list[Signer]
) -> None:
    order = msgspec.structs.replace(ORDER, requester=signers[1].address.lower())
    stage = t.Stage(signers[2].address.lower(), 0, 3)
    with pytest.raises(ContractRefused) as refused:
        await chain.transact(signers[0], "TaskRegistry", "openMatched", order, "0x", [stage])
    names = {e["name"] for e in artifact("TaskRegistry")["abi"] if e["type"] == "error"}
    assert refused.value.error in names


async def test_a_call_that_reverts_in_its_block_is_refused_with_its_gas_paid(
    chain: RpcChain, signers: list[Signer]
) -> None:
    poor = signers[6]
    data = transfer_data(chain, STRANGER, 1)
    before = await chain.balance_wei(poor.address)
    with pytest.raises(ContractRefused) as refused:
        await chain._sender.send(
            poor, TransactionDraft(chain.addresses["TestUSD"], data, 100_000, "transfer")
        )
    assert refused.value.error == "reverted"
    assert await chain.balance_wei(poor.address) < before


async def test_no_gas_money_is_said_with_the_numbers(
    chain: RpcChain, signers: list[Signer]
) -> None:
    beggar = Signer(b"\x33" * 32, chain_id=CHAIN_ID)
    await mint(chain, signers[0], beggar.address, 10)
    with pytest.raises(GasShort) as short:
        await chain.transact(beggar, "TestUSD", "transfer", signers[0].address, 10)
    assert (short.value.have, short.value.address) == (0, beggar.address)
    assert short.value.need == short.value.short_by > 0
    await chain.send_eth(signers[0], beggar.address, short.value.need * 2)
    await chain.transact(beggar, "TestUSD", "transfer", signers[0].address, 10)


async def test_sending_more_eth_than_there_is_is_said_too(
    chain: RpcChain, signers: list[Signer]
) -> None:
    with pytest.raises(GasShort):
        await chain.send_eth(signers[8], STRANGER, 10**24)


async def test_a_node_s_own_refusal_is_passed_on(chain: RpcChain) -> None:
    with pytest.raises((ContractRefused, ChainUnreachable)):
        await chain.rpc("anvil_noSuchMethod")


def revert_data(signature: str, *args: Any) -> str:
    from eth_abi import encode
    from eth_utils import keccak

    kinds = [kind for kind in signature.partition("(")[2].rstrip(")").split(",") if kind]
    return "0x" + (keccak(text=signature)[:4] + encode(kinds, args)).hex()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (revert_data("Error(string)", "too late"), ("Error", {"reason": "too late"})),
        (revert_data("Panic(uint256)", 0x11), ("Panic", {"code": 17})),
        (revert_data("ModelShapeInvalid()"), ("ModelShapeInvalid", {})),
        (
            revert_data("RootsLengthWrong(uint256,uint256)", 3, 5),
            ("RootsLengthWrong", {"have": 3, "need": 5}),
        ),
        (revert_data("RootsLengthWrong(uint256,uint256)", 3, 5)[:-2], ("RootsLengthWrong", {})),
        ("0x08c379a0", ("Error", {})),
        ("0x08c379a0" + "ff" * 64, ("Error", {})),
        ("0xdeadbeef" + "00" * 32, ("unknown error 0xdeadbeef", {})),
    ],
)
def test_revert_data_is_decoded_whatever_it_is(data: str, expected: tuple[str, Any]) -> None:
    assert decode_revert(data) == expected


def test_every_error_of_every_contract_is_known() -> None:
    for name in (*CONTRACTS, "Evidence"):
        for entry in artifact(name)["abi"]:
            if entry["type"] == "error":
                kinds = ",".join(canonical(i) for i in entry["inputs"])
                assert decode_revert(revert_data_of(entry["name"], kinds))[0] == entry["name"]


def revert_data_of(name: str, kinds: str) -> str:
    from eth_utils import keccak

    return "0x" + keccak(text=f"{name}({kinds})")[:4].hex()


# --- decoding what others sent ---


def transfer_data(chain: RpcChain, to: str, units: int) -> str:
    call = chain._contracts["TestUSD"].functions["transfer"](to, units)
    return str(call._encode_transaction_data())


async def test_a_transaction_s_call_is_decoded(chain: RpcChain, signers: list[Signer]) -> None:
    sent = await mint(chain, signers[0], STRANGER, 9)
    call = await chain.call_of(sent.tx_hash)
    assert call == ChainCall("TestUSD", "mint", {"to": STRANGER, "amount": 9}, signers[0].address)
    (in_block,) = await chain.mined(sent.block_number)
    assert (in_block.call, in_block.gas_used) == (call, sent.gas_used)


async def test_structs_in_calldata_are_decoded_by_name(
    chain: RpcChain, signers: list[Signer]
) -> None:
    spec, roots = model(layers=5)
    hexed = [commit.to_hex(root) for root in roots]
    sent = await chain.transact(signers[0], "ModelRegistry", "register", spec, hexed)
    call = await chain.call_of(sent.tx_hash)
    assert call is not None
    assert msgspec.convert(call.args["spec"], t.ModelSpec) == spec
    assert call.args["roots"] == hexed


async def test_orders_and_plans_in_calldata_are_read_back_as_values(
    chain: RpcChain, signers: list[Signer]
) -> None:
    order = msgspec.structs.replace(ORDER, requester=signers[1].address)
    stages = [t.Stage(signers[2].address, 0, 2), t.Stage(signers[3].address, 2, 3)]
    arguments = (order, "0x12", stages)
    function = chain._contracts["TaskRegistry"].functions["openMatched"]
    data = function(*map(argument, arguments))._encode_transaction_data()
    call = await chain.call_of(await send_refused(chain, signers[5], "TaskRegistry", data))
    assert call is not None
    assert (call.function, call.sender) == ("openMatched", signers[5].address)
    assert msgspec.convert(call.args["order"], t.Order) == order
    assert msgspec.convert(call.args["plan"], list[t.Stage]) == stages
    assert call.args["requesterSig"] == "0x12"


async def send_refused(chain: RpcChain, signer: Signer, contract: str, data: str) -> str:
    """Hash of a transaction that reverted in its block."""
    heard: list[dict[str, Any]] = []
    chain._sender.journal = heard.append
    with pytest.raises(ContractRefused):
        await chain._sender.send(
            signer, TransactionDraft(chain.addresses[contract], data, 200_000, "refused")
        )
    return str(heard[0]["hash"])


async def test_nonsense_behind_a_known_selector_is_nobody_s_call(
    chain: RpcChain, signers: list[Signer]
) -> None:
    transfer = transfer_data(chain, STRANGER, 1)[:10]
    open_matched = "0x" + selector_of(chain, "TaskRegistry", "openMatched")
    openings = [
        ("TestUSD", transfer),
        ("TestUSD", transfer + "ff" * 40),
        ("TaskRegistry", open_matched + "ff" * 700),
        ("TaskRegistry", open_matched + "00" * 3),
        ("TaskRegistry", "0x99999999"),
        ("TaskRegistry", "0x99"),
    ]
    for contract, data in openings:
        tx_hash = await send_refused(chain, signers[5], contract, data)
        assert await chain.call_of(tx_hash) is None
        assert [m.call for m in await chain.mined(await chain.block_number())] == [None]


def selector_of(chain: RpcChain, contract: str, function: str) -> str:
    wanted = chain.addresses[contract].lower()
    return next(
        selector.hex()
        for (address, selector), (_, name) in chain._selectors.items()
        if address == wanted and name == function
    )


async def test_transfers_and_creations_are_nobody_s_call(
    chain: RpcChain, signers: list[Signer]
) -> None:
    paid = await chain.send_eth(signers[5], STRANGER, 1)
    assert await chain.call_of(paid.tx_hash) is None
    # A token of the same kind elsewhere: its events and calls are not our contracts'.
    known = dict(chain.addresses)
    other = RpcChain(chain.rpc_url, CHAIN_ID, {})
    await other.deploy(signers[5], "TestUSD", signers[5].address)
    sent = await mint(other, signers[5], STRANGER, 1)
    await other.close()
    assert chain.addresses == known
    assert await chain.call_of(sent.tx_hash) is None
    assert await chain.events(sent.block_number, sent.block_number) == []


# --- nodes that go away or change their mind ---


async def test_a_dead_node_is_unreachable_for_every_question(
    own_anvil: Callable[..., Anvil], connect: Callable[..., RpcChain], signers: list[Signer]
) -> None:
    node = own_anvil()
    chain = connect(node.rpc_url)
    await chain.deploy(signers[0], "TestUSD", signers[0].address)
    node.stop()
    for ask in (
        chain.check,
        chain.block_number,
        chain.now,
        lambda: chain.block_hash(0),
        lambda: chain.events(0, 1),
        lambda: chain.read("TestUSD", "decimals"),
        lambda: chain.balance_wei(STRANGER),
        lambda: chain.nonce(STRANGER),
        lambda: chain.call_of(t.ZERO_HASH),
        lambda: chain.mined(0),
        lambda: chain.rpc("eth_chainId"),
        lambda: mint(chain, signers[0], STRANGER, 1),
        lambda: chain.send_eth(signers[0], STRANGER, 1),
    ):
        with pytest.raises(ChainUnreachable):
            await ask()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\nContent-Length: 38\r\n\r\n{"jsonrpc":"2.0","id":0,"result":"zz"}',
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
async def test_something_that_is_no_node_is_unreachable(
    connect: Callable[..., RpcChain], answer: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    chain = connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(ChainUnreachable):
        await chain.block_number()
    with pytest.raises(ChainUnreachable):
        await chain.events(0, 1)
    server.close()


async def test_a_transaction_the_node_does_not_know_is_not_found(chain: RpcChain) -> None:
    with pytest.raises(ChainUnreachable, match="not found"):
        await chain.call_of("0x" + "12" * 32)


async def test_blocks_beyond_the_head_have_no_hash(chain: RpcChain) -> None:
    head = await chain.block_number()
    assert await chain.block_hash(head + 1) is None
    assert await chain.block_hash(head) is not None
    assert await chain.now() > 1_600_000_000


async def test_a_reverted_snapshot_rolls_the_follower_back(
    own_anvil: Callable[..., Anvil], connect: Callable[..., RpcChain], signers: list[Signer]
) -> None:
    chain, who = connect(own_anvil().rpc_url), signers[0]
    await chain.deploy(who, "TestUSD", who.address)
    follower = EventFollower(chain, start_block=1)
    held: dict[str, int] = {}

    async def poll() -> tuple[int | None, list[int]]:
        batch = await follower.poll()
        if batch.rolled_back_to is not None:
            for tx_hash in [h for h, number in held.items() if number > batch.rolled_back_to]:
                del held[tx_hash]
        held.update({e.tx_hash: e.block_number for e in batch.events})
        minted = [e.args["value"] for e in batch.events if e.name == "Transfer"]
        return batch.rolled_back_to, minted

    kept = await mint(chain, who, STRANGER, 1)
    assert await poll() == (None, [1])
    snapshot = await chain.rpc("evm_snapshot")
    for value in (2, 3):
        await mint(chain, who, STRANGER, value)
    assert await poll() == (None, [2, 3])
    assert await chain.rpc("evm_revert", snapshot)
    assert await poll() == (kept.block_number, [])
    for value in (4, 5, 6):
        await mint(chain, who, STRANGER, value)
    assert await poll() == (None, [4, 5, 6])
    head = await chain.block_number()
    assert set(held) == {e.tx_hash for e in await chain.events(1, head)}
    assert await chain.read("TestUSD", "balanceOf", STRANGER) == 1 + 4 + 5 + 6


async def test_a_snapshot_replaced_before_the_next_poll_is_rolled_back_and_replayed(
    own_anvil: Callable[..., Anvil], connect: Callable[..., RpcChain], signers: list[Signer]
) -> None:
    chain, who = connect(own_anvil().rpc_url), signers[0]
    await chain.deploy(who, "TestUSD", who.address)
    follower = EventFollower(chain, start_block=1)
    kept = await mint(chain, who, STRANGER, 1)
    snapshot = await chain.rpc("evm_snapshot")
    await mint(chain, who, STRANGER, 2)
    await follower.poll()
    await chain.rpc("evm_revert", snapshot)
    for value in (3, 4, 5):
        await mint(chain, who, STRANGER, value)
    batch = await follower.poll()
    assert (batch.rolled_back_to, batch.chain_replaced) == (kept.block_number, False)
    assert [e.args["value"] for e in batch.events] == [3, 4, 5]
    assert all(b == a + 1 for (a, _), (b, _) in pairwise(batch.position.blocks))


async def test_another_node_behind_the_same_url_is_a_replaced_chain(
    own_anvil: Callable[..., Anvil], connect: Callable[..., RpcChain], signers: list[Signer]
) -> None:
    node, who = own_anvil(), signers[0]
    port = int(node.rpc_url.rpartition(":")[2])
    chain = connect(node.rpc_url)
    await chain.deploy(who, "TestUSD", who.address)
    follower = EventFollower(chain, start_block=1)
    assert (await follower.poll()).events
    node.stop()
    with pytest.raises(ChainUnreachable):
        await follower.poll()
    own_anvil("--timestamp", "1900000000", port=port)
    batch = await follower.poll()
    assert batch.chain_replaced
    assert batch.events == []
    assert not (await follower.poll()).chain_replaced


# --- prepared, and sent later ---


async def test_what_is_prepared_happens_once_however_often_it_is_sent(
    chain: RpcChain, signers: list[Signer]
) -> None:
    who, to = signers[8], signers[9].address
    before = await chain.read("TestUSD", "balanceOf", to)
    await mint(chain, signers[0], who.address, 10)
    prepared = await chain.prepare(who, "TestUSD", "transfer", to, 7)
    assert await chain.nonce(who.address) == prepared.nonce, "nothing was sent"
    assert (await chain.outcome_of(prepared, 0)).fate is Fate.PENDING
    await chain.push(prepared)
    sent = await chain.mined_as(prepared)
    await chain.push(prepared)
    assert await chain.read("TestUSD", "balanceOf", to) == before + 7
    assert sent.tx_hash == prepared.tx_hash
    done = TransactionFate(Fate.DONE, True, sent.block_number)
    assert await chain.outcome_of(prepared, 0) == done
    assert not (await chain.outcome_of(prepared, 10**6)).is_final


async def test_what_is_prepared_is_void_once_another_one_took_its_turn(
    chain: RpcChain, signers: list[Signer]
) -> None:
    who = signers[8]
    await mint(chain, signers[0], who.address, 10)
    prepared = await chain.prepare(who, "TestUSD", "transfer", STRANGER, 7)
    other = await chain.send_eth(who, STRANGER, 1)
    with pytest.raises(ChainUnreachable):
        await chain.push(prepared)
    assert await chain.outcome_of(prepared, 0) == TransactionFate(Fate.VOID, True)
    behind = await chain.block_number() - other.block_number + 1
    assert await chain.outcome_of(prepared, behind) == TransactionFate(Fate.PENDING, False)


async def test_what_would_be_refused_is_not_prepared(
    chain: RpcChain, signers: list[Signer]
) -> None:
    with pytest.raises(ContractRefused):
        await chain.prepare(signers[9], "TestUSD", "transfer", STRANGER, 10**18)
