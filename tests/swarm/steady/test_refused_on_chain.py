"""An order is good for one job on one chain only, a plan only if it covers every layer once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest

from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.protocol import signing
from core.protocol.errors import ContractRefused
from core.protocol.network_file import USD
from core.protocol.types import Order, SignedOrder, Stage
from devnet.accounts import signer_of
from devnet.deploy import deploy, register_model
from tests.conftest import Anvil
from tests.swarm.world import MARKS, JobSeen, World, prompt

pytestmark = MARKS
OTHER_CHAIN_ID = 1337  # local too, so that the same test keys may sign for it
#: One that no program of the network takes by itself.
FREE_NONCE = 2**62 + 7


async def any_job(world: World) -> JobSeen:
    """A job that was opened and paid."""
    jobs = await world.jobs()
    if not jobs:
        await world.submit(world.requests("any", [prompt("q", "Anything.", 4)]))
        jobs = await world.jobs()
    return jobs[0]


def open_arguments(call: dict[str, Any]) -> list[Any]:
    return [call[name] for name in ("order", "requesterSig", "plan")]


async def test_an_order_opens_one_job_and_never_a_second(world: World) -> None:
    job = await any_job(world)
    with pytest.raises(ContractRefused) as refused:
        await world.chain.simulate(
            world.net.addresses["matcher-1"],
            "TaskRegistry",
            "openMatched",
            *open_arguments(job.open_call),
        )
    assert refused.value.error == "NonceUsedAlready"
    assert refused.value.exit_code == 6

    signed = SignedOrder(job.order, job.open_call["requesterSig"])
    async with httpx2.AsyncClient() as http:
        answer = await http.post(
            f"{world.net.matcher_url}/v1/orders", content=msgspec.json.encode(signed)
        )
    assert answer.json()["jobId"] == job.job_id
    assert len([j for j in await world.jobs() if j.order == job.order]) == 1


async def test_an_order_is_refused_on_another_chain_even_at_equal_addresses(
    world: World, own_anvil: Callable[..., Anvil]
) -> None:
    job = await any_job(world)
    node = own_anvil("--chain-id", str(OTHER_CHAIN_ID))
    other = RpcChain(node.rpc_url, OTHER_CHAIN_ID, {})
    deployer = Signer(signer_secret("deployer"), chain_id=OTHER_CHAIN_ID)
    try:
        await deploy(other, deployer, deployer.address, world.net.parameters)
        assert dict(other.addresses) == dict(world.chain.addresses)
        again = await register_model(
            other, deployer, world.net.model_folder, effort=world.net.effort
        )
        assert again == world.net.model_id
        with pytest.raises(ContractRefused) as refused:
            await other.simulate(
                world.net.addresses["matcher-1"],
                "TaskRegistry",
                "openMatched",
                *open_arguments(job.open_call),
            )
    finally:
        await other.close()
    assert refused.value.error == "BadSignature"
    assert refused.value.error_args["expected"].lower() == job.order.requester.lower()


async def test_the_matcher_refuses_an_order_signed_for_another_chain(world: World) -> None:
    job = await any_job(world)
    order = msgspec.structs.replace(job.order, nonce=FREE_NONCE)
    elsewhere = signing.Domain(OTHER_CHAIN_ID, world.chain.domain.verifying_contract)
    signed = SignedOrder(order, signing.sign(signer_of("requester-1"), elsewhere, order))
    async with httpx2.AsyncClient() as http:
        answer = await http.post(
            f"{world.net.matcher_url}/v1/orders", content=msgspec.json.encode(signed)
        )
    assert answer.status_code >= 400
    assert "sign" in answer.text
    assert not [j for j in await world.jobs() if j.order == order]


def signer_secret(party: str) -> bytes:
    from core.keys.signer import DEVNET_PHRASE, secret_from_phrase
    from devnet.accounts import PARTIES

    return secret_from_phrase(DEVNET_PHRASE, PARTIES[party])


class FreshOrder:
    """An order that no matcher has seen, and a plan of equal parts, none empty with one less."""

    def __init__(self, world: World, job: JobSeen, nonce: int, now_s: int) -> None:
        self._world, stages, layers = world, len(job.plan), job.plan[-1].layer_to
        self.plan = tuple(
            Stage(stage.operator, layers * at // stages, layers * (at + 1) // stages)
            for at, stage in enumerate(job.plan)
        )
        self.order: Order = msgspec.structs.replace(job.order, nonce=nonce, deadline=now_s + 600)

    async def simulate(self, plan: tuple[Stage, ...]) -> None:
        """Open it with this plan. Raises ContractRefused."""
        await self._world.chain.simulate(
            self._world.net.addresses["matcher-1"],
            "TaskRegistry",
            "openMatched",
            self.order,
            signing.sign(signer_of("requester-1"), self._world.chain.domain, self.order),
            list(plan),
        )


def moved(plan: tuple[Stage, ...], index: int, start: int, end: int) -> tuple[Stage, ...]:
    """The plan with one stage's layers shifted at both ends."""
    stage = plan[index]
    changed = Stage(stage.operator, stage.layer_from + start, stage.layer_to + end)
    return (*plan[:index], changed, *plan[index + 1 :])


async def test_a_plan_with_a_gap_or_an_overlap_is_refused_by_the_contract(world: World) -> None:
    job = await any_job(world)
    await world.run("requester-1", "client", "wallet", "deposit", "1usd", "--yes")
    fresh = FreshOrder(world, job, FREE_NONCE, await world.chain.now())
    assert await world.chain.read("Escrow", "balanceOf", job.order.requester) >= USD
    await fresh.simulate(fresh.plan)  # sound as it is, so it is the layers that are refused below

    for plan, error in (
        (moved(fresh.plan, 1, 1, 0), "LayerGap"),
        (moved(fresh.plan, 1, -1, 0), "LayerGap"),
        (moved(fresh.plan, 2, 0, -1), "LayersUncovered"),
        (fresh.plan[:2], "LayersUncovered"),
        ((fresh.plan[0], fresh.plan[2]), "LayerGap"),
        ((*fresh.plan, fresh.plan[2]), "LayerGap"),
    ):
        with pytest.raises(ContractRefused) as refused:
            await fresh.simulate(plan)
        assert refused.value.error == error, plan
        assert refused.value.exit_code == 6
