"""The daemon's life: killed and restarted, its chain lost or rolled back, its swarm silent."""

from __future__ import annotations

import pytest

from core.protocol import signing
from core.protocol.errors import ConfigError
from core.protocol.types import JobState, LayerRange
from matcher.planning.allocating import TELL_EVERY_S
from matcher.records.jobs import Job
from tests.matcher.settling.test_settler import SPLIT, finish, opened, result_root, state
from tests.town.fleet import MODEL_ID, SPEC, machine_key, make_ack, make_order
from tests.town.matcher import Net
from tests.town.orders import DOMAIN, sign_order


def allocation(net: Net) -> dict[str, LayerRange | None]:
    """What each machine was told last; None: to stand by."""
    told = {op: stage.allocated[-1] for op, stage in net.peers.stages.items() if stage.allocated}
    return {operator: message.layers for operator, message in told.items()}


async def restart(net: Net) -> None:
    daemon = net.restarted()
    await daemon.prepare()
    await net.tick(2)


async def test_machines_that_join_are_told_their_layers_and_again_while_they_hold(
    net: Net,
) -> None:
    await net.daemon.prepare()
    for number in (1, 2, 3):
        net.announce(number)
    await net.tick()
    found = allocation(net)
    covered = sorted(layers for layers in found.values() if layers is not None)
    assert [layers.start for layers in covered] == [0, *(layers.end for layers in covered[:-1])]
    assert covered[-1].end == 30
    assert set(found) == {machine_key(n).address for n in (1, 2, 3)}
    sequence = net.stage(1).allocated[0].sequence
    for number in (1, 2, 3):
        layers = found[machine_key(number).address]
        net.announce(number, state="SERVING", layers=layers, allocation=sequence)
    await net.pass_time(TELL_EVERY_S + 2)
    assert [message.sequence for message in net.stage(1).allocated] == [sequence] * 2


async def test_a_machine_without_stake_is_told_nothing(net: Net) -> None:
    await net.daemon.prepare()
    for number in (1, 2, 3, 4):
        net.announce(number)
    net.chain.stakes[machine_key(4).address] = 0
    await net.tick()
    assert machine_key(4).address not in allocation(net)


async def test_a_machine_that_forgot_its_layers_or_did_not_hear_is_told_again(net: Net) -> None:
    await net.daemon.prepare()
    for number in (1, 2):
        net.announce(number)
    net.stage(2).is_gone = True
    await net.tick()
    assert not net.stage(2).allocated
    net.stage(2).is_gone = False
    await net.pass_time(3)
    sequence = net.stage(2).allocated[-1].sequence
    for number in (1, 2):
        layers = net.stage(number).allocated[-1].layers
        net.announce(number, state="SERVING", layers=layers, allocation=sequence)
    await net.pass_time(3)
    heard = [len(net.stage(number).allocated) for number in (1, 2)]
    await net.pass_time(3)
    assert [len(net.stage(number).allocated) for number in (1, 2)] == heard
    net.announce(2)  # it was restarted
    await net.pass_time(3)
    assert len(net.stage(2).allocated) > heard[1]
    assert len(net.stage(1).allocated) == heard[0]


@pytest.mark.parametrize("killed_when", ["matched", "finished", "delivered", "acknowledged"])
async def test_a_matcher_killed_in_mid_job_finishes_it_after_a_restart(
    net: Net, killed_when: str
) -> None:
    await net.daemon.prepare()
    job = await opened(net)
    if killed_when != "matched":
        finish(net, 0, 1)
        await net.pass_time(30 if killed_when == "delivered" else 5)
    if killed_when == "acknowledged":
        net.chain.is_down = True
        await net.daemon.settler.receive_ack(job.job_id, make_ack(job, 20, 60, result_root(job)))
        net.chain.is_down = False
    await restart(net)
    if killed_when == "matched":
        assert net.daemon.world.promised(int(net.clock.now() * 1000))[machine_key(1).address] == 1
        finish(net, 0, 1)
    await net.pass_time(120)
    assert state(net, job) == "Settled"
    expected = ["settleAck"] if killed_when == "acknowledged" else ["deliver", "finalize"]
    assert net.chain.called == ["openMatched", *expected]


async def test_a_lost_database_is_rebuilt_from_the_chain(net: Net) -> None:
    await net.daemon.prepare()
    job = await opened(net)
    (net.folder / "matcher.sqlite").rename(net.folder / "gone.sqlite")
    await restart(net)
    found = net.daemon.store.job(job.job_id)
    assert found is not None
    assert (found.signed, found.plan, found.state) == (job.signed, job.plan, "Matched")
    assert found.open_tx == job.open_tx
    finish(net, 0, 1)
    await net.pass_time(100)
    assert state(net, job) == "Settled"


async def test_a_job_from_a_lost_database_whose_block_is_lost_too_is_not_opened_again(
    net: Net,
) -> None:
    """Nobody knows any more for how long its stages gave their word."""
    await net.daemon.prepare()
    job = await opened(net)
    (net.folder / "matcher.sqlite").rename(net.folder / "gone.sqlite")
    await restart(net)
    net.chain.roll_back(1)
    await net.pass_time(4)
    assert job.job_id not in net.chain.jobs
    assert state(net, job) == "Failed"
    again = await net.daemon.matchmaker.open(job.signed)
    assert again.state == "Matched"


async def test_a_database_of_another_network_is_refused(net: Net) -> None:
    await net.daemon.prepare()
    with pytest.raises(ConfigError, match="belongs to another network"):
        net.daemon.store.bind(1, DOMAIN.verifying_contract)


async def test_losing_the_chain_makes_it_unready_until_the_chain_is_back(net: Net) -> None:
    await net.daemon.prepare()
    net.serve(*SPLIT)
    await net.tick()
    assert net.daemon.world.ready
    net.chain.is_down = True
    await net.pass_time(8)
    assert not net.daemon.world.ready
    assert net.daemon.world.swarm.ok
    net.chain.is_down = False
    await net.pass_time(12)
    assert net.daemon.world.ready
    assert (await net.daemon.matchmaker.open(sign_order(make_order()))).state == "Matched"


async def test_an_absent_chain_is_asked_less_and_less_often(net: Net) -> None:
    await net.daemon.prepare()
    net.chain.is_down = True
    asked = 0
    original = net.chain.block_number

    async def counted() -> int:
        nonlocal asked
        asked += 1
        return await original()

    net.chain.block_number = counted  # type: ignore[method-assign]
    await net.pass_time(60)
    assert 3 <= asked <= 15


async def test_lost_blocks_are_derived_again(net: Net) -> None:
    """The block that opened the job is lost: its acceptances still hold, so it is opened again."""
    await net.daemon.prepare()
    job = await opened(net)
    await net.tick()
    net.chain.roll_back(1)
    assert job.job_id not in net.chain.jobs
    await net.pass_time(4)
    assert job.job_id in net.chain.jobs
    assert state(net, job) == "Matched"
    assert net.chain.called == ["openMatched", "openMatched"]


async def test_a_settlement_in_a_lost_block_is_repeated(net: Net) -> None:
    await net.daemon.prepare()
    job = await opened(net)
    finish(net, 0, 1)
    await net.tick()
    await net.daemon.settler.receive_ack(job.job_id, make_ack(job, 20, 60, result_root(job)))
    await net.tick()
    net.chain.roll_back(1)
    await net.pass_time(4)
    assert state(net, job) == "Settled"
    assert net.chain.called.count("settleAck") == 2
    assert net.chain.jobs[job.job_id].state is JobState.SETTLED


async def test_a_replaced_chain_leaves_no_job_in_doubt(net: Net) -> None:
    """Another chain behind the same address, hours later: what was open is gone, and said to be."""
    await net.daemon.prepare()
    job = await opened(net)
    await net.tick()
    net.chain.roll_back(net.chain.head)
    net.chain.reorganise(-1)
    net.chain.emit("ModelRegistry", "ModelRegistered", id=MODEL_ID)
    await net.clock.advance(400)
    await net.pass_time(5)
    found = net.daemon.store.job(job.job_id)
    assert (found.state, found.stale) == ("Failed", False)
    assert set(net.daemon.world.models) == {MODEL_ID}


async def test_a_dead_machine_is_replaced_by_one_that_stands_by(net: Net) -> None:
    await net.daemon.prepare()
    for number in (1, 2, 3):
        net.announce(number)
    await net.tick()
    told = allocation(net)
    for number in (1, 2, 3):
        layers = told[machine_key(number).address]
        net.announce(number, state="SERVING", layers=layers, allocation=1)
    await net.tick()
    net.stage(2).is_gone = True
    await net.pass_time(14)
    net.announce(4)
    await net.pass_time(3)
    after = allocation(net)
    assert after[machine_key(4).address] == told[machine_key(2).address]
    for number in (1, 3):
        assert after[machine_key(number).address] == told[machine_key(number).address]


async def test_a_silent_swarm_makes_it_unready_and_nothing_else(net: Net) -> None:
    await net.daemon.prepare()
    job = await opened(net)
    net.swarm.is_down = True
    await net.pass_time(3)
    assert not net.daemon.world.ready
    finish(net, 0, 1)
    await net.pass_time(100)
    assert state(net, job) == "Settled"


async def test_records_that_are_forged_or_misplaced_are_counted_and_dropped(net: Net) -> None:
    await net.daemon.prepare()
    net.announce(1)
    topic = next(iter(net.swarm.topics.values()))
    genuine = topic[machine_key(1).address.lower()]
    topic[machine_key(2).address.lower()] = genuine
    topic[machine_key(3).address.lower()] = b"\x93garbage"
    await net.tick()
    assert set(net.daemon.world.sightings) == {machine_key(1).address}
    assert net.daemon.world.swarm.refused_total == 2


async def test_a_bug_in_one_phase_does_not_stop_the_others(net: Net) -> None:
    await net.daemon.prepare()
    net.serve(*SPLIT)

    def broken() -> None:
        raise RuntimeError("a bug")

    broken.__name__ = "replan"
    net.daemon.replan = broken  # type: ignore[method-assign]
    await net.tick()
    assert net.daemon.world.ready
    assert net.daemon._bugs.labels("replan")._value.get() == 1


async def test_the_loop_runs_until_it_is_cancelled(net: Net) -> None:
    import asyncio

    await net.daemon.prepare()
    net.serve(*SPLIT)
    loop = asyncio.create_task(net.daemon.run())
    async with asyncio.timeout(20):
        while not net.daemon.world.ready:
            await asyncio.sleep(0.01)
            if net.clock.sleepers:
                await net.clock.advance(1)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await net.daemon.close()
    assert loop.cancelled()


async def test_layers_fixed_by_an_owner_count_and_are_not_assigned(net: Net) -> None:
    await net.daemon.prepare()
    net.announce(1, state="SERVING", layers=LayerRange(0, 14), allocation=0)
    net.announce(2)
    await net.tick()
    assert not any(allocation(net).values())
    net.announce(2, memory_bytes=600 * 2**20)
    await net.pass_time(1)
    net.announce(3)
    await net.pass_time(2)
    found = allocation(net)
    assert machine_key(1).address not in found
    assert LayerRange(14, SPEC.layers) in found.values()


def test_job_ids_are_the_orders_digest() -> None:
    signed = sign_order(make_order())
    job = Job(signing.job_id(DOMAIN, signed.order), signed, (), (), (), 0)
    assert job.job_id == "0x" + signing.digest(DOMAIN, signed.order).hex()
