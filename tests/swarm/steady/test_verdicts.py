"""Where an order names the jury, exactly the liar is slashed, and false accusers pay.

The last file of its folder: without its stake, the liar's machine is missing in the devnet.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import closing
from typing import Any

import msgspec
import pytest_asyncio

from client.context import open_store
from client.jury.jury import Phase, VoteKind
from core.keys.keystore import Keystore
from core.keys.signer import DEVNET_PASSWORD
from core.protocol import ids, signing
from core.protocol.errors import CheckFailed, UsageError
from core.protocol.network_file import USD
from core.protocol.types import JobState
from core.protocol.units import NANO
from devnet.ledger import changes
from devnet.network import MinerProfile
from devnet.processes import members_of_session
from tests.swarm.books import expected_changes, split_of
from tests.swarm.steady.conftest import UNEQUAL
from tests.swarm.world import MARKS, WITHIN_S, World, prompt, until

pytestmark = MARKS
JURORS = ("juror-1", "juror-2", "juror-3")
LINES = [prompt(f"q{i}", text, 8) for i, text in enumerate(("Why is the sky blue?", "Count."))]
DRAWN_WITHIN_S = 300.0
HONEST: list[str] = []  # the job that both sides of the file are about
JURY = ("--arbitrator", "jury")


@pytest_asyncio.fixture(scope="module", loop_scope="package", autouse=True)
async def jury(world: World) -> None:
    await asyncio.gather(*(world.net.start_juror(juror, "100usd") for juror in JURORS))


async def jury_events(world: World, name: str) -> list[dict[str, Any]]:
    head = await world.chain.block_number()
    events = await world.chain.events(world.net.deploy_block, head)
    return [e.args for e in events if (e.contract, e.name) == ("JuryArbitrator", name)]


async def phase_of(world: World, dispute: str) -> Phase:
    return Phase((await world.chain.read("JuryArbitrator", "disputeOf", dispute))["phase"])


async def votes(world: World, dispute: str) -> dict[str, VoteKind]:
    """What each juror revealed."""
    parties = {address.lower(): party for party, address in world.net.addresses.items()}
    return {
        parties[args["juror"].lower()]: VoteKind(args["vote"])
        for args in await jury_events(world, "VoteRevealed")
        if args["dispute"] == dispute
    }


def fee_shares(world: World) -> Counter[str]:
    """The jury's fee: equal parts, and the rest of the division is burned."""
    p = world.net.parameters
    found = Counter(dict.fromkeys(JURORS, p.jury_fee // p.panel * NANO))
    found["burned"] = p.jury_fee % p.panel * NANO
    return found


def non_zero(found: Counter[str]) -> dict[str, int]:
    return {party: change for party, change in found.items() if change}


async def test_an_honest_job_passes_the_check_and_a_false_accusation_costs_the_bond(
    world: World,
) -> None:
    before = await world.holdings()
    done, _ = await world.submit(world.requests("honest", LINES), "--window", "10m", *JURY)
    name = done.result["jobs"][0]
    (job,) = await world.jobs_of(done.result)
    job = await world.ended(job.job_id, JobState.SETTLED)
    checked = await world.run("requester-1", "auditor", "check", name, "--json")
    assert [row["verdict"] for row in checked.result] == ["ok"] * 3, checked.result
    refused = await world.run(
        "requester-1", "auditor", "convict", name, "--yes", expect=UsageError.exit_code
    )
    HONEST.append(job.job_id)
    assert "nothing to convict by" in refused.err
    assert "not seen" not in refused.err

    accused = await world.run(
        "requester-1",
        "auditor",
        "dispute",
        name,
        "--stage",
        "0",
        "--yes",
        "--json",
        within_s=DRAWN_WITHIN_S,
    )
    assert accused.result["verdict"] == "no fault"
    dispute = (await jury_events(world, "DisputeOpened"))[-1]["dispute"]
    assert await votes(world, dispute) == dict.fromkeys(JURORS, VoteKind.NO_FAULT)

    p = world.net.parameters
    expected = Counter(await expected_changes(world, [job]))
    expected.update(fee_shares(world))
    expected["requester-1"] -= (p.bond + p.jury_fee) * NANO
    expected[await world.party_of(job.plan[0].operator)] += p.bond // 2 * NANO
    expected["burned"] += (p.bond - p.bond // 2) * NANO
    observed = changes(before, await world.holdings())
    assert observed == non_zero(expected)
    assert sum(observed.values()) == 0
    operator = await world.chain.read("MinerRegistry", "ownerOf", job.plan[0].operator)
    miner = await world.chain.read("MinerRegistry", "minerOf", operator)
    assert (miner["stake"], miner["strikes"]) == (500 * USD, 0)


async def test_a_liar_is_named_and_slashed_though_a_juror_dies_between_commit_and_reveal(
    world: World,
) -> None:
    net = world.net

    async def routes() -> Any:
        """None while the matcher has not seen yet that a miner's last dispute is over."""
        return (await net.ask_matcher("/v1/routes"))["routes"]

    found = await until(routes, within_s=WITHIN_S, what="the matcher has a route")
    chosen = found[0]["stages"]
    liar = await world.party_of(chosen[1]["operator"])
    await net.processes.stop(liar)
    lie = MinerProfile(UNEQUAL[liar].memory, lie_layer=int(chosen[1]["layerFrom"]))
    await net.start_miner(liar, lie)
    await world.all_serve()
    before = await world.holdings()
    done, _ = await world.submit(
        world.requests("doubted", LINES),
        "--ack",
        "later",
        "--window",
        "10m",
        "--auditor",
        net.addresses["auditor-1"],
        *JURY,
    )
    name = done.result["jobs"][0]
    (job,) = await world.jobs_of(done.result)
    await world.ended(job.job_id, JobState.DELIVERED)

    checked = await world.run("auditor-1", "auditor", "check", name, "--json", expect=9)
    assert [row["verdict"] == "ok" for row in checked.result] == [True, False, True]
    assert checked.error["details"]["stage"] == 1
    assert checked.error["details"]["operator"] == job.plan[1].operator
    assert await world.party_of(job.plan[1].operator) == liar

    def tell(juror: str, number: signal.Signals) -> None:
        for pid in members_of_session(net.processes.get(juror).pid):
            os.kill(pid, number)

    tell("juror-3", signal.SIGSTOP)  # so that the commit phase lasts until it goes on
    try:
        await world.run(
            "auditor-1", "auditor", "dispute", name, "--stage", "1", "--no-wait", "--yes", "--json"
        )
        dispute = (await jury_events(world, "DisputeOpened"))[-1]["dispute"]

        async def committed() -> bool:
            return any(
                (args["dispute"], args["juror"]) == (dispute, net.addresses["juror-1"])
                for args in await jury_events(world, "VoteCommitted")
            )

        await until(committed, within_s=WITHIN_S, what="juror-1 has committed")
        await net.processes.kill("juror-1")
        assert await phase_of(world, dispute) is Phase.COMMITTING
    finally:
        tell("juror-3", signal.SIGCONT)
    await net.start_juror("juror-1", None)

    async def executed() -> bool:
        return await phase_of(world, dispute) is Phase.EXECUTED

    await until(executed, within_s=DRAWN_WITHIN_S, what="the verdict is executed")
    assert await votes(world, dispute) == dict.fromkeys(JURORS, VoteKind.FAULT)

    bound = job.job_id, signing.plan_hash(job.plan)
    delivered = await world.chain.read("TaskRegistry", "jobOf", *bound)
    assert delivered["faultMask"] == 0b010
    await world.pass_time(max(1, delivered["finalAt"] - await world.chain.now() + 1))
    job = await world.ended(job.job_id, JobState.SETTLED)

    p = net.parameters
    taken = before[liar].stake * p.slash_bps // 10_000
    reward = min(taken * 2_000 // 10_000, 10 * p.bond * NANO)
    amends = min(taken * 3_000 // 10_000, (await split_of(world, job)).locked)
    expected = Counter(await expected_changes(world, [job], at_fault=frozenset({1})))
    expected.update(fee_shares(world))
    expected[liar] -= taken
    expected["auditor-1"] += reward - p.jury_fee * NANO
    expected["requester-1"] += amends
    expected["burned"] += taken - reward - amends
    observed = changes(before, await world.holdings())
    assert observed == non_zero(expected)
    assert sum(observed.values()) == 0
    stakes = [
        (await world.chain.read("MinerRegistry", "minerOf", net.addresses[party]))["stake"]
        for party in world.profiles
    ]
    assert sorted(stakes) == sorted([500 * USD - taken // NANO, 500 * USD, 500 * USD])


async def test_totals_that_no_requests_make_convict_by_one_command(world: World) -> None:
    """Without bond and jury: a receipt of the honest job again, with a token more in its totals."""
    (job_id,) = HONEST
    name = ids.short(ids.Kind.JOB, job_id)
    job = next(job for job in await world.jobs() if job.job_id == job_id)
    party = await world.party_of(job.plan[0].operator)
    keys, domain = Keystore(world.net.layout.keystores), world.chain.domain
    signer = keys.unlock(f"{party}-operator", DEVNET_PASSWORD, chain_id=domain.chain_id)
    with closing(open_store(world.settings_of("requester-1"))) as store:
        honest = next(s for _, s in store.receipts(job_id) if s.receipt.stage == 0)
        tokens_out = honest.receipt.tokens_out + 1
        receipt = msgspec.structs.replace(honest.receipt, tokens_out=tokens_out)
        signature = signing.sign(signer, domain, receipt)
        lie = msgspec.structs.replace(honest, receipt=receipt, signature=signature)
        store.add_receipts(job_id, [lie])
    checked = await world.run("requester-1", "auditor", "check", name, expect=CheckFailed.exit_code)
    assert "auditor convict" in checked.err
    done = await world.run("requester-1", "auditor", "convict", name, "--yes", "--json")
    assert [(one["stage"], one["evidence"]) for one in done.result] == [(0, "counts")]
    bound = job_id, signing.plan_hash(job.plan)
    assert (await world.chain.read("TaskRegistry", "jobOf", *bound))["faultMask"] == 1
    owner = world.net.addresses[party]
    assert (await world.chain.read("MinerRegistry", "minerOf", owner))["stake"] == 0
