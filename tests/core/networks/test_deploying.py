"""Does a deployment that is killed at any point go on, with the same addresses?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.chain.chain import CONTRACTS, PreparedTransaction
from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.networks import deploying
from core.networks.checking import require_true
from core.networks.deploying import Journal, begun, create, creations, write_journal
from core.protocol.errors import CheckFailed, ConfigError
from core.protocol.network_file import Parameters
from core.protocol.signing import DigestSigner
from tests.conftest import CHAIN_ID, Anvil
from tests.core.networks.deployed import DEPLOYER, OWNER, deployment_by, file_of

pytestmark = pytest.mark.chain


class Killed(BaseException):
    """The process is gone."""


class MortalChain(RpcChain):
    """Dies the first time that it comes to a moment."""

    dies = ""

    async def prepare_creation(
        self, signer: DigestSigner, name: str, *args: Any
    ) -> PreparedTransaction:
        self.reach("before it is signed")
        return await super().prepare_creation(signer, name, *args)

    async def push(self, prepared: PreparedTransaction) -> None:
        self.reach("before it is sent")
        await super().push(prepared)
        self.reach("after it was sent")

    def reach(self, moment: str) -> None:
        if moment == self.dies:
            raise Killed


MOMENTS = ("before it is signed", "before it is sent", "after it was sent")


@pytest.fixture
async def chain(anvil: Anvil) -> AsyncIterator[RpcChain]:
    made = RpcChain(anvil.rpc_url, CHAIN_ID, {})
    yield made
    await made.close()


async def test_killed_at_every_point_it_goes_on_at_the_same_addresses(
    anvil: Anvil, chain: RpcChain, signers: list[Signer], tmp_path: Path
) -> None:
    """Each run dies at the next moment of the next transaction, and the last one at none."""
    path = tmp_path / "state" / "journal.json"
    first = await deployment_by(chain, signers)
    points = [moment for _ in CONTRACTS for moment in MOMENTS]
    for number, moment in enumerate([*points, ""]):
        run = MortalChain(anvil.rpc_url, CHAIN_ID, {})
        run.dies = moment
        journal = [begun(path, await deployment_by(run, signers))]
        assert journal[0].deployment == first

        def keep(name: str, tx_hash: str, journal: list[Journal] = journal) -> None:
            journal[0] = journal[0].with_signed(name, tx_hash)
            write_journal(path, journal[0])

        created: list[str] = []
        work = create(run, signers[DEPLOYER], journal[0].deployment, keep, created.append)
        if moment:
            with pytest.raises(Killed):
                await work
            assert created == list(CONTRACTS[: number // len(MOMENTS)])
        else:
            await work
        await run.close()
    assert run.addresses == {k: v for k, v in first.at.items() if k != "Proofs"}
    assert await chain.nonce(signers[DEPLOYER].address) == first.first_nonce + len(CONTRACTS)
    file = await file_of(chain, journal[0], signers[OWNER])
    await require_true(chain, file)


async def test_a_transaction_that_waits_in_the_node_is_waited_for(
    own_anvil: Callable[..., Anvil], signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = own_anvil("--no-mining")
    chain = RpcChain(node.rpc_url, CHAIN_ID, {})
    deployment = await deployment_by(chain, signers)
    sent = await chain.prepare_creation(signers[DEPLOYER], CONTRACTS[0], deployment.owner)
    await chain.push(sent)  # and the process that sent it is gone
    monkeypatch.setattr(deploying, "_PENDING_WITHIN_S", 0.5)
    with pytest.raises(deploying.ChainUnreachable, match="waits in the node"):
        await create(chain, signers[DEPLOYER], deployment)
    monkeypatch.setattr(deploying, "_PENDING_WITHIN_S", 60.0)
    await chain.rpc("evm_setAutomine", True)
    await asyncio.gather(create(chain, signers[DEPLOYER], deployment), chain.rpc("evm_mine"))
    assert chain.addresses["TestUSD"] == deployment.at["TestUSD"]
    await chain.close()


async def test_a_nonce_that_was_spent_elsewhere_is_told(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploying, "_LAG_WITHIN_S", 0.1)
    deployment = await deployment_by(chain, signers)
    await chain.send_eth(signers[DEPLOYER], signers[OWNER].address, 1)
    with pytest.raises(ConfigError, match="TestUSD can no longer be created") as error:
        await create(chain, signers[DEPLOYER], deployment)
    assert f"nonce {deployment.first_nonce}" in error.value.why


async def test_a_chain_that_began_anew_is_told(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploying, "_LAG_WITHIN_S", 0.1)
    deployment = await deployment_by(chain, signers)
    later = msgspec.structs.replace(deployment, first_nonce=deployment.first_nonce + 3)
    with pytest.raises(ConfigError, match="can no longer"):
        await create(chain, signers[DEPLOYER], later)


async def test_nodes_that_are_late_are_waited_for(
    chain: RpcChain, signers: list[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third answer is of a node that knows neither the last contract nor its nonce."""
    raw, nonce, asked = chain.raw, chain.nonce, Counter[str]()

    def is_late(method: str) -> bool:
        asked[method] += 1
        return asked[method] % 3 == 0

    async def late_raw(method: str, *params: Any) -> bytes:
        return b"" if is_late(method) else await raw(method, *params)

    async def late_nonce(account: str, block: str = "pending") -> int:
        if block == "latest":
            return 0 if is_late(block) else await nonce(account, block)
        return await nonce(account) - is_late("nonce")

    deployment = await deployment_by(chain, signers)
    monkeypatch.setattr(deploying, "_POLL_S", 0.0)
    monkeypatch.setattr(chain, "raw", late_raw)
    monkeypatch.setattr(chain, "nonce", late_nonce)
    await create(chain, signers[DEPLOYER], deployment)
    assert asked["nonce"] > 3
    await create(chain, signers[DEPLOYER], deployment)
    assert await nonce(deployment.deployer) == deployment.first_nonce + len(CONTRACTS)


async def test_other_code_at_a_foretold_address_is_not_taken(
    chain: RpcChain, signers: list[Signer]
) -> None:
    deployment = await deployment_by(chain, signers)
    await chain.rpc("anvil_setCode", deployment.at["Escrow"], "0x00")
    with pytest.raises(CheckFailed, match="Escrow is not what was compiled"):
        await create(chain, signers[DEPLOYER], deployment)
    await chain.rpc("anvil_setCode", deployment.at["Escrow"], "0x")


async def test_a_journal_of_another_deployment_is_not_gone_on_with(
    chain: RpcChain, signers: list[Signer], tmp_path: Path
) -> None:
    path = tmp_path / "journal.json"
    deployment = await deployment_by(chain, signers)
    begun(path, deployment)
    elsewhere = msgspec.structs.replace(deployment, first_nonce=99, first_block=99)
    assert begun(path, elsewhere).deployment == deployment
    other = msgspec.structs.replace(deployment, parameters=Parameters(turn_s=29))
    with pytest.raises(ConfigError, match="another deployment"):
        begun(path, other)
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        begun(path, deployment)


async def test_creations_that_no_block_has_are_told(chain: RpcChain, signers: list[Signer]) -> None:
    journal = Journal(await deployment_by(chain, signers)).with_signed("TestUSD", "0x" + "11" * 32)
    with pytest.raises(ConfigError, match="created TestUSD is not known"):
        await creations(chain, journal)
