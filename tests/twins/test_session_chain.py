"""A session on a real node: what Python signs and computes is what the contracts accept and pay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.money import pricing
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import ContractRefused
from core.protocol.network_file import USD, Parameters
from core.protocol.units import NANO
from devnet.deploy import deploy
from tests.conftest import CHAIN_ID, Anvil
from tests.core.chain.test_chain import model

pytestmark = pytest.mark.chain

PARAMETERS = Parameters()
DEPOSIT, LIMIT = 100 * USD, 40_000  # four sessions
FEES = {"protocol_fee_bps": PARAMETERS.protocol_fee_bps}


@dataclass
class Town:
    """Deployed contracts, two miners with stake, a requester with a deposit and a spender."""

    chain: RpcChain
    signers: list[Signer]
    spec: t.ModelSpec
    nonces: int = 0

    @property
    def requester(self) -> Signer:
        return self.signers[5]

    @property
    def spender(self) -> Signer:
        return self.signers[6]

    @property
    def matcher(self) -> Signer:
        return self.signers[7]

    @property
    def plan(self) -> list[t.Stage]:
        return [t.Stage(self.signers[3].address, 0, 2), t.Stage(self.signers[4].address, 2, 3)]

    async def read(self, function: str, *args: Any) -> Any:
        return await self.chain.read("Escrow", function, *args)

    async def session(self, signer: Signer, *, max_tokens: int = 500_000) -> Session:
        """An open order signed by `signer`, matched on the chain."""
        self.nonces += 1
        now = await self.chain.now()
        terms = t.Terms.of(2, avoided=[self.signers[9].address])
        order = t.Order(
            requester=self.requester.address,
            model_id=signing.model_id(self.spec),
            input_root=t.ZERO_HASH,
            sampling_root=t.ZERO_HASH,
            requests=1000,
            max_tokens_in=max_tokens,
            max_tokens_out=max_tokens,
            price_in=1_000_003,
            price_out=2_000_011,
            matcher=self.matcher.address,
            matcher_fee_bps=130,
            opening_fee=0,
            min_stake=0,
            deadline=now + 600,
            window=300,
            auditor=t.ZERO_ADDRESS,
            arbitrator=self.chain.addresses["JuryArbitrator"],
            numerics_profile=self.spec.numerics_profile,
            terms_hash=signing.terms_hash(terms),
            nonce=self.nonces,
        )
        await self.chain.transact(
            self.matcher,
            "TaskRegistry",
            "openMatched",
            order,
            signing.sign(signer, self.chain.domain, order),
            self.plan,
        )
        return Session(self, order, signing.job_id(self.chain.domain, order))


@dataclass
class Session:
    town: Town
    order: t.Order
    job_id: str

    async def bring(self, signer: Signer, tokens_in: int, tokens_out: int) -> None:
        """An Ack of these totals, signed by `signer`, brought by an outsider."""
        chain, plan = self.town.chain, self.town.plan
        ack = t.Ack(
            signing.order_hash(self.order),
            signing.plan_hash(plan),
            t.ZERO_HASH,
            tokens_in,
            tokens_out,
        )
        signature = signing.sign(signer, chain.domain, ack)
        await chain.transact(
            self.town.signers[8], "TaskRegistry", "settleAck", self.order, ack, signature, plan
        )

    async def close(self, signer: Signer) -> None:
        plan_hash = signing.plan_hash(self.town.plan)
        await self.town.chain.transact(
            signer, "TaskRegistry", "requestClose", self.order, plan_hash
        )

    async def end(self) -> None:
        """An outsider ends it, once its delay is over."""
        outsider, plan = self.town.signers[8], self.town.plan
        await self.town.chain.transact(outsider, "TaskRegistry", "expire", self.order, plan)

    async def job(self) -> Any:
        plan_hash = signing.plan_hash(self.town.plan)
        return await self.town.chain.read("TaskRegistry", "jobOf", self.job_id, plan_hash)

    async def locked(self) -> int:
        return pricing.locked_nano(self.order, await self.job())


@pytest.fixture
async def town(own_anvil: Callable[..., Anvil], signers: list[Signer]) -> AsyncIterator[Town]:
    chain = RpcChain(own_anvil().rpc_url, CHAIN_ID, {})
    await deploy(chain, signers[0], signers[9].address, PARAMETERS)
    spec, roots = model()
    await chain.transact(
        signers[0], "ModelRegistry", "register", spec, ["0x" + r.hex() for r in roots]
    )
    for owner, operator in zip(signers[1:3], signers[3:5], strict=True):
        await chain.transact(signers[0], "TestUSD", "mint", owner.address, 500 * USD)
        await chain.transact(
            owner, "TestUSD", "approve", chain.addresses["MinerRegistry"], 500 * USD
        )
        said = signing.OperatorProof(owner=owner.address, operator=operator.address)
        proof = signing.sign(operator, chain.domain, said)
        await chain.transact(owner, "MinerRegistry", "register", 500 * USD, operator.address, proof)
    made = Town(chain, signers, spec)
    await chain.transact(signers[0], "TestUSD", "mint", made.requester.address, DEPOSIT)
    await chain.transact(made.requester, "TestUSD", "approve", chain.addresses["Escrow"], DEPOSIT)
    await chain.transact(made.requester, "Escrow", "deposit", DEPOSIT)
    await chain.transact(made.requester, "Escrow", "setSpender", made.spender.address, LIMIT, 2**63)
    yield made
    await chain.close()


async def later(chain: RpcChain, seconds: int) -> None:
    await chain.rpc("evm_increaseTime", seconds)
    await chain.rpc("evm_mine")


async def test_a_session_pays_as_python_computes_and_ends_with_the_rest_returned(
    town: Town,
) -> None:
    chain = town.chain
    session = await town.session(town.spender)
    locked = pricing.max_nano(session.order, town.spec)
    assert await session.locked() == locked
    assert await town.read("jobSpenderOf", session.job_id) == town.spender.address

    operators = [signer.address for signer in town.signers[3:5]]
    for totals in ((1000, 333), (1001, 333), (77_777, 99_999)):
        await session.bring(town.spender, *totals)
        job = await session.job()
        assert (job["state"], job["tokensIn"], job["tokensOut"]) == (t.JobState.MATCHED, *totals)
        assert await session.locked() == locked
        for who in operators:
            assert (await town.read("nanoOf", who))["earned"] == 0

    await session.close(town.spender)
    with pytest.raises(ContractRefused, match="DeadlineNotPassed"):
        await session.end()
    await later(chain, PARAMETERS.close_delay_s + 1)
    await session.end()
    due = pricing.split(session.order, town.plan, town.spec, 77_777, 99_999, **FEES)
    for who, nano in zip(operators, due.pays, strict=True):
        assert (await town.read("nanoOf", who))["earned"] == nano
    assert (await town.read("nanoOf", town.matcher.address))["matcherFees"] == due.matcher_fee
    assert (await session.job())["state"] == t.JobState.SETTLED
    assert await session.locked() == 0
    spent = locked - due.refund
    left = (await town.read("nanoOf", town.requester.address))["balance"]
    assert left == DEPOSIT * NANO - spent
    used = await town.read("spenderOf", town.requester.address, town.spender.address)
    assert (used["limit"], used["usedNano"]) == (LIMIT, spent)


async def test_what_operators_earned_goes_to_their_owners_whoever_collects(town: Town) -> None:
    session = await town.session(town.requester)
    await session.bring(town.requester, 77_777, 99_999)
    await session.close(town.requester)
    await later(town.chain, PARAMETERS.close_delay_s + 1)
    await session.end()
    operators = [signer.address for signer in town.signers[3:5]]
    earned = [await town.read("earnedOf", operator) for operator in operators]
    assert all(earned)
    await town.chain.transact(town.signers[8], "Escrow", "collect", operators)
    for owner, units in zip(town.signers[1:3], earned, strict=True):
        assert await town.chain.read("TestUSD", "balanceOf", owner.address) == units
    assert [await town.read("earnedOf", operator) for operator in operators] == [0, 0]


async def test_an_ack_that_counts_no_more_is_refused(town: Town) -> None:
    session = await town.session(town.requester)
    await session.bring(town.requester, 500, 100)
    for totals in ((500, 100), (499, 100), (500, 99)):
        with pytest.raises(ContractRefused, match="AckStale"):
            await session.bring(town.requester, *totals)


async def test_an_ack_in_hand_pays_its_face_after_one_of_the_requesters_own(town: Town) -> None:
    session = await town.session(town.requester)
    await session.bring(town.requester, 501, 0)
    await session.bring(town.requester, 500, 100)
    job = await session.job()
    assert (job["tokensIn"], job["tokensOut"]) == (501, 100)


async def test_a_spender_is_held_to_its_limit_and_its_own_jobs(town: Town) -> None:
    mine = await town.session(town.requester)
    with pytest.raises(ContractRefused, match="BadSignature"):
        await mine.bring(town.spender, 1, 1)
    with pytest.raises(ContractRefused, match="BadSignature"):
        await town.session(town.signers[8])
    with pytest.raises(ContractRefused, match="SpenderOverLimit"):
        await town.session(town.spender, max_tokens=5_000_000)
    session = await town.session(town.spender)
    await town.chain.transact(town.requester, "Escrow", "setSpender", town.spender.address, 0, 0)
    with pytest.raises(ContractRefused, match="BadSignature"):
        await town.session(town.spender)
    await session.bring(town.spender, 9, 9)  # what it opened, it may still settle
    assert (await session.job())["tokensIn"] == 9


async def test_terms_are_bound_to_the_order_that_the_chain_knows(town: Town) -> None:
    session = await town.session(town.requester)
    changed = msgspec.structs.replace(session.order, terms_hash=t.ZERO_HASH)
    assert signing.job_id(town.chain.domain, changed) != session.job_id
    assert (await session.job())["state"] == t.JobState.MATCHED
