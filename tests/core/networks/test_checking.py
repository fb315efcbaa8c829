"""Does every lie in a network file, and every lie of a chain, become a named row?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.chain.artifacts import artifact, predict_address
from core.chain.rpc import RpcChain
from core.chain.sending import TransactionDraft
from core.keys.signer import Signer
from core.networks import checking
from core.networks.checking import _matcher_row, check_network, require_true, speaks_for
from core.networks.deploying import Journal, create
from core.networks.plan import constructor_arguments
from core.protocol.errors import CheckFailed, ContractRefused
from core.protocol.network_file import NetworkFile, Parameters
from tests.conftest import CHAIN_ID, Anvil
from tests.core.networks.deployed import (
    DEPLOYER,
    GUARDIAN,
    OWNER,
    Remembered,
    deploy_riverside,
    deployment_by,
    file_of,
)
from tests.twins.make_vectors import network_file

pytestmark = pytest.mark.chain
replace = msgspec.structs.replace
STRANGER = "0x" + "77" * 20


@pytest.fixture(scope="module")
def true(anvil: Anvil, signers: list[Signer]) -> NetworkFile:
    return deploy_riverside(anvil.rpc_url, signers)


@pytest.fixture
async def chain(anvil: Anvil) -> AsyncIterator[RpcChain]:
    """As it was, after the test."""
    made = RpcChain(anvil.rpc_url, CHAIN_ID, {})
    before = await made.rpc("evm_snapshot")
    yield made
    await made.rpc("evm_revert", before)
    await made.close()


async def wrong(chain: RpcChain, file: NetworkFile) -> set[str]:
    return {row.point for row in await check_network(chain, file) if not row.ok}


async def test_a_true_file_has_no_contradiction(chain: RpcChain, true: NetworkFile) -> None:
    rows = await require_true(chain, true)
    assert len(rows) == 41
    assert len({row.point for row in rows}) == len(rows)


#: What a file says wrongly → the rows that show it, beside the signature.
LIES: dict[str, tuple[Callable[[NetworkFile], dict[str, Any]], set[str]]] = {
    "owner": (lambda f: {"owner": STRANGER}, {"owner of MinerRegistry", "owner of TaskRegistry"}),
    "guardian": (
        lambda f: {"guardian": STRANGER},
        {"guardian of MinerRegistry", "guardian of TaskRegistry"},
    ),
    "fee recipient": (lambda f: {"fee_recipient": STRANGER}, {"fee recipient"}),
    "fee": (
        lambda f: {"parameters": replace(f.parameters, protocol_fee_bps=49)},
        {"protocol fee"},
    ),
    "arbitrators": (lambda f: {"arbitrators": f.arbitrators[:1]}, {"arbitrators"}),
    "first block": (
        lambda f: {"deploy_block": f.deploy_block + 5},
        {"first block", "arbitrators"},
    ),
    "symbol": (lambda f: {"token": replace(f.token, symbol="usdc")}, {"token's symbol"}),
    "decimals": (lambda f: {"token": replace(f.token, decimals=18)}, {"token's decimals"}),
    "creation": (
        lambda f: {"creations": f.creations | {"Escrow": f.creations["Referee"]}},
        {"creation of Escrow"},
    ),
    "no creation": (
        lambda f: {"creations": {k: v for k, v in f.creations.items() if k != "Escrow"}},
        {"creation of Escrow"},
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_of_the_file_is_its_row(
    chain: RpcChain, true: NetworkFile, signers: list[Signer], lie: str
) -> None:
    """Signed by the owner itself: the signature alone proves nothing."""
    change, rows = LIES[lie]
    false = replace(true, **change(true)).signed_with(signers[OWNER])
    assert await wrong(chain, false) == rows


@pytest.mark.parametrize("name", Parameters.__struct_fields__)
async def test_every_parameter_is_held_to_the_chain(
    chain: RpcChain, true: NetworkFile, name: str
) -> None:
    lied = replace(true.parameters, **{name: getattr(true.parameters, name) + 1})
    assert await wrong(chain, replace(true, parameters=lied)) - {"signature"}, name


async def test_swapped_addresses_are_other_code(chain: RpcChain, true: NetworkFile) -> None:
    at = true.contracts
    swapped = at | {"TraceJudge": at["RowJudge"], "RowJudge": at["TraceJudge"]}
    found = await wrong(chain, replace(true, contracts=swapped))
    assert {"code of TraceJudge", "code of RowJudge", "code of ToleranceGame"} <= found


async def test_a_missing_or_an_unknown_contract_is_a_row(
    chain: RpcChain, true: NetworkFile
) -> None:
    fewer = {name: at for name, at in true.contracts.items() if name != "Referee"}
    for contracts in (fewer, true.contracts | {"../../escape": STRANGER}):
        assert await wrong(chain, replace(true, contracts=contracts)) == {"names of contracts"}


async def test_another_chain_is_a_row(chain: RpcChain, true: NetworkFile) -> None:
    assert await wrong(chain, replace(true, chain_id=1)) == {"chain"}


async def test_a_signature_of_a_stranger_is_two_facts(
    chain: RpcChain, true: NetworkFile, signers: list[Signer]
) -> None:
    assert await wrong(chain, true.signed_with(signers[GUARDIAN])) == {"signer"}
    forged = replace(true.signed_with(signers[GUARDIAN]), signer=true.owner)
    assert await wrong(chain, forged) == {"signature"}
    assert await wrong(chain, replace(true, signature="", signer="")) == {"signature"}
    with pytest.raises(CheckFailed, match="contradicts") as error:
        await require_true(chain, forged)
    assert error.value.exit_code != 0


Attack = Callable[[RpcChain, NetworkFile], Awaitable[None]]


async def _judge_of_a_stranger(chain: RpcChain, true: NetworkFile) -> None:
    """The same code, but for one word: whose programs it reads."""
    found = artifact("TraceJudge")
    code = await chain.raw("eth_getCode", true.contracts["TraceJudge"], "latest")
    start = found["immutables"]["_programs"][0]
    changed = code[: start + 12] + bytes.fromhex(STRANGER[2:]) + code[start + 32 :]
    await chain.rpc("anvil_setCode", true.contracts["TraceJudge"], "0x" + changed.hex())


async def _code_with_a_door(chain: RpcChain, true: NetworkFile) -> None:
    code = bytearray(await chain.raw("eth_getCode", true.contracts["Escrow"], "latest"))
    code[200] ^= 1
    await chain.rpc("anvil_setCode", true.contracts["Escrow"], "0x" + code.hex())


@pytest.mark.parametrize(
    ("attack", "point"),
    [(_judge_of_a_stranger, "code of TraceJudge"), (_code_with_a_door, "code of Escrow")],
)
async def test_code_that_differs_in_one_word_is_a_row(
    chain: RpcChain, true: NetworkFile, attack: Attack, point: str
) -> None:
    await attack(chain, true)
    assert await wrong(chain, true) == {point}


async def test_an_arbitrator_that_a_constructor_hid_is_found(
    chain: RpcChain, signers: list[Signer]
) -> None:
    """Our own code, made with one more arbitrator: it can take every stake at once."""
    deployment = await deployment_by(chain, signers)
    kept = Remembered(Journal(deployment))
    deployer = signers[DEPLOYER]
    roles = deployment.owner, deployment.guardian, deployment.fee_recipient
    for name in deployment.created:
        arguments = constructor_arguments(deployment.at, deployment.parameters, *roles)[name]
        if name == "MinerRegistry":
            arguments[0]["arbitrators"].append(STRANGER)
        prepared = await chain.prepare_creation(deployer, name, *arguments)
        kept.add(name, prepared.tx_hash)
        await chain.push(prepared)
        await chain.mined_as(prepared)
    await create(chain, deployer, deployment)  # which finds nothing to do: the code is ours
    file = await file_of(chain, kept.journal, signers[OWNER])
    assert await wrong(chain, file) == {"creation of MinerRegistry", "arbitrators"}


async def test_what_owners_may_change_is_told_by_the_next_revision(
    chain: RpcChain, true: NetworkFile, signers: list[Signer]
) -> None:
    await check_network(chain, true)  # binds the contracts
    await chain.transact(signers[OWNER], "TaskRegistry", "lowerProtocolFee", 7)
    for name in ("TaskRegistry", "MinerRegistry"):
        await chain.transact(signers[OWNER], name, "setGuardian", STRANGER)
        await chain.transact(signers[OWNER], name, "transferOwnership", signers[5].address)
        await chain.transact(signers[5], name, "acceptOwnership")
    assert "signer" in await wrong(chain, true)
    changed = {
        "revision": 2,
        "owner": signers[5].address,
        "guardian": STRANGER,
        "parameters": replace(true.parameters, protocol_fee_bps=7),
    }
    await require_true(chain, replace(true, **changed).signed_with(signers[5]))


async def test_a_proposed_arbitrator_is_told_and_no_contradiction(
    chain: RpcChain, true: NetworkFile, signers: list[Signer]
) -> None:
    await check_network(chain, true)
    await chain.transact(signers[OWNER], "MinerRegistry", "proposeArbitrator", STRANGER)
    rows = {row.point: row for row in await require_true(chain, true)}
    assert STRANGER in rows["proposed arbitrators"].chain


async def make(chain: RpcChain, signer: Signer, name: str, *arguments: Any) -> Any:
    """A contract that tests alone have, as web3 knows it."""
    found = json.loads(Path(__file__).with_name(f"{name}.json").read_text())
    factory = chain._node.eth.contract(abi=found["abi"], bytecode=found["bytecode"])
    data = factory.constructor(*arguments).data_in_transaction
    at = predict_address(signer.address, await chain.nonce(signer.address))
    await chain._sender.send(signer, TransactionDraft(None, data, 4_000_000, name))
    return chain._node.eth.contract(address=at, abi=found["abi"])


async def call(chain: RpcChain, signer: Signer, asked: Any) -> None:
    draft = TransactionDraft(asked.address, asked._encode_transaction_data(), 500_000, "call")
    await chain._sender.send(signer, draft)


async def offer(chain: RpcChain, owner: Signer, to: str) -> None:
    for name in ("TaskRegistry", "MinerRegistry"):
        await chain.transact(owner, name, "transferOwnership", to)


async def test_events_are_asked_for_in_halves_where_a_node_refuses_many_blocks(
    chain: RpcChain, true: NetworkFile, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_network(chain, true)
    await chain.rpc("anvil_mine", hex(20))
    await chain.transact(signers[OWNER], "MinerRegistry", "proposeArbitrator", STRANGER)
    rpc, spans = chain.rpc, list[int]()

    async def limited(method: str, *params: Any) -> Any:
        if method == "eth_getLogs":
            spans.append(int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16))
            if spans[-1] > 3:
                raise ContractRefused("eth_getLogs", error="block range too large")
        return await rpc(method, *params)

    monkeypatch.setattr(checking, "BLOCKS_PER_CALL", 3)
    monkeypatch.setattr(chain, "rpc", limited)
    rows = {row.point: row for row in await require_true(chain, true)}
    assert rows["proposed arbitrators"].chain == STRANGER
    assert max(spans) > 20 and min(spans) <= 3
    monkeypatch.setattr(checking, "BLOCKS_PER_CALL", 9)
    with pytest.raises(ContractRefused, match="eth_getLogs"):
        await check_network(chain, true)


@pytest.mark.parametrize(
    ("url", "is_public"),
    [
        ("https://matcher.example", True),
        ("https://8.8.8.8:7100", True),
        ("http://matcher.example", False),
        ("https://localhost:7100", False),
        ("https://127.0.0.1", False),
        ("https://169.254.169.254/latest", False),
        ("https://[::1]:7100", False),
        ("https://10.0.0.7", False),
        ("https://[oops", False),
        ("", False),
    ],
)
def test_a_file_sends_no_orders_into_its_readers_own_network(url: str, is_public: bool) -> None:
    file = network_file()
    named = replace(file, chain_id=1, matchers=(replace(file.matchers[0], url=url),))
    assert _matcher_row(named).ok == is_public
    assert _matcher_row(replace(named, chain_id=CHAIN_ID)).ok, "a local chain's are local"


async def test_an_owner_that_is_a_contract_signs_as_one(
    chain: RpcChain, true: NetworkFile, signers: list[Signer]
) -> None:
    """EIP-1271, as multisigs answer it."""
    await check_network(chain, true)
    wallet = await make(chain, signers[5], "ContractWallet", signers[6].address)
    await offer(chain, signers[OWNER], wallet.address)
    for name in ("TaskRegistry", "MinerRegistry"):
        accept = chain.call_data(name, "acceptOwnership")
        await call(chain, signers[5], wallet.functions.run(chain.addresses[name], accept))
    theirs = replace(true, revision=2, owner=wallet.address)
    good = replace(theirs.signed_with(signers[6]), signer=wallet.address)
    await require_true(chain, good)
    assert await wrong(chain, replace(theirs.signed_with(signers[7]), signer=wallet.address)) == {
        "signature"
    }
    assert await wrong(chain, theirs.signed_with(signers[6])) == {"signer"}


async def test_a_timelock_s_proposer_speaks_for_it(
    chain: RpcChain, true: NetworkFile, signers: list[Signer]
) -> None:
    """A timelock signs nothing itself."""
    await check_network(chain, true)
    council, nobody = signers[6], "0x" + "00" * 20
    lock = await make(
        chain, signers[5], "TimelockController", 60, [council.address], [nobody], nobody
    )
    await offer(chain, signers[OWNER], lock.address)
    for name in ("TaskRegistry", "MinerRegistry"):
        accept = [
            chain.addresses[name],
            0,
            chain.call_data(name, "acceptOwnership"),
            bytes(32),
            bytes(32),
        ]
        await call(chain, council, lock.functions.schedule(*accept, 60))
        await chain.rpc("evm_increaseTime", 61)
        await call(chain, signers[5], lock.functions.execute(*accept))
    theirs = replace(true, revision=2, owner=lock.address)
    await require_true(chain, theirs.signed_with(council))
    assert await wrong(chain, theirs.signed_with(signers[OWNER])) == {"signer"}
    assert await speaks_for(chain, lock.address, council.address)


async def test_a_plain_account_or_a_contract_of_another_kind_speaks_for_itself_alone(
    chain: RpcChain, true: NetworkFile
) -> None:
    assert await speaks_for(chain, STRANGER, STRANGER)
    assert not await speaks_for(chain, STRANGER, true.owner)
    assert not await speaks_for(chain, true.contracts["Escrow"], true.owner)
