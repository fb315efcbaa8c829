"""An order that its requester registered on chain is matched unasked, or left where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed
from core.protocol.types import REGISTERED, JobState, SignedOrder
from matcher.matching import registered
from tests.town.chain import PREPAID
from tests.town.fleet import make_order
from tests.town.matcher import Net
from tests.town.orders import DOMAIN, REQUESTER, key, sign_order

SPLIT = ((1, 0, 10), (2, 10, 20), (3, 20, 30))


@pytest.fixture
async def net(net: Net) -> Net:
    """A matcher that looks for such orders, and a requester with tokens in its wallet."""
    net.rules = replace(net.rules, registered=True)
    net.restarted()
    net.chain.usd[REQUESTER.address] = PREPAID
    return net


async def register(net: Net, **changes: Any) -> tuple[str, t.Order]:
    order = make_order(**changes)
    await net.chain.transact(REQUESTER, "TaskRegistry", "open", order)
    return signing.job_id(DOMAIN, order), order


def state(net: Net, job_id: str) -> JobState:
    return net.chain.jobs[job_id].state


def called(net: Net) -> list[str]:
    return [function for _, function, *_ in net.chain.sent]


async def test_a_registered_order_is_matched_with_machines_that_accept_it(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    job_id, order = await register(net)
    locked = net.chain.locked[job_id]
    await net.pass_time(3)
    assert state(net, job_id) is JobState.MATCHED
    assert called(net) == ["open", "matchJob"]
    assert net.chain.locked[job_id] == locked, "nothing is locked a second time"
    job = net.daemon.store.job(job_id)
    assert job is not None and job.signed == SignedOrder(order, REGISTERED)
    assert len(job.acceptances) == 3
    again = await net.daemon.matchmaker.open(job.signed)
    assert (again.job_id, called(net)) == (job_id, ["open", "matchJob"]), "asked again it is there"


async def test_the_chain_is_not_asked_for_orders_that_were_handed_in(net: Net) -> None:
    await net.tick()
    asked: list[str] = []
    call_of = net.chain.call_of

    async def counted(tx_hash: str) -> Any:
        asked.append(tx_hash)
        return await call_of(tx_hash)

    net.chain.call_of = counted  # type: ignore[method-assign]
    job = {"job": "0x" + "ab" * 32, "requester": REQUESTER.address}
    net.chain.emit("TaskRegistry", "JobOpened", **job, modelId=t.ZERO_HASH, maxNano=1)
    net.chain.note("TaskRegistry", "JobMatched", {**job, "matcher": key(41).address, "plan": []})
    batch = await net.chain.events(net.chain.head, net.chain.head)
    assert len({event.tx_hash for event in batch}) == 1
    await net.daemon.registered.take_in(batch)
    assert asked == []
    await net.daemon.registered.take_in(batch[:1])
    assert asked == [batch[0].tx_hash], "one that is only opened is looked at"


async def test_it_waits_for_machines_and_is_tried_again(net: Net) -> None:
    await net.tick()
    job_id, _ = await register(net)
    await net.pass_time(5)
    assert state(net, job_id) is JobState.OPEN
    net.serve(*SPLIT)
    await net.pass_time(30)
    assert state(net, job_id) is JobState.MATCHED


async def test_a_matcher_that_was_down_finds_it_when_it_starts(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    job_id, _ = await register(net)
    position = await net.daemon._following.follow(0)  # seen, and the matcher dies
    assert position.began
    await net.restarted().prepare()
    await net.pass_time(3)
    assert state(net, job_id) is JobState.MATCHED


async def test_one_that_was_matched_and_forgotten_is_adopted_from_the_chain(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    job_id, order = await register(net)
    await net.pass_time(3)
    plan = net.chain.jobs[job_id].plan
    (net.folder / "matcher.sqlite").unlink()
    await net.restarted().prepare()
    await net.tick()
    job = net.daemon.store.job(job_id)
    assert job is not None and (job.signed.order, list(job.plan)) == (order, list(plan))
    assert job.signed.is_registered


@pytest.mark.parametrize(
    "changes", [{"matcher": key(41).address}, {"matcher_fee_bps": 0}, {"deadline": 5}]
)
async def test_what_names_another_pays_too_little_or_is_late_is_left_where_it_is(
    net: Net, changes: dict[str, Any]
) -> None:
    net.serve(*SPLIT)
    await net.tick()
    if "deadline" in changes:
        changes = {"deadline": int(net.clock.now()) + changes["deadline"]}
    job_id, _ = await register(net, **changes)
    await net.pass_time(8)
    assert state(net, job_id) is JobState.OPEN
    assert called(net) == ["open"]


async def test_one_that_was_taken_back_is_forgotten(net: Net) -> None:
    await net.tick()
    job_id, order = await register(net)
    await net.pass_time(2)
    assert net.daemon.registered._waiting
    await net.chain.transact(REQUESTER, "TaskRegistry", "cancel", order)
    net.serve(*SPLIT)
    await net.pass_time(30)
    assert state(net, job_id) is JobState.CANCELLED
    assert not net.daemon.registered._waiting


async def test_nobody_has_an_order_matched_without_signature_that_is_not_registered(
    net: Net,
) -> None:
    net.serve(*SPLIT)
    await net.tick()
    order = make_order()
    with pytest.raises(CheckFailed, match="not signed by its requester"):
        await net.daemon.matchmaker.open(SignedOrder(order, REGISTERED))
    job = await net.daemon.matchmaker.open(sign_order(order))
    assert await net.daemon.matchmaker.open(SignedOrder(order, REGISTERED)) == job
    assert called(net) == ["openMatched"]


async def test_one_requester_fills_neither_the_list_nor_the_room(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered, "MOST_OF_ONE", 3)
    monkeypatch.setattr(registered, "AT_ONCE", 2)
    await net.tick()
    for nonce in range(5):
        await register(net, nonce=100 + nonce)
    await net.daemon.follow_chain()
    assert len(net.daemon.registered._waiting) == 3
    assert len(net.daemon.registered.due()) == 2
    assert net.daemon.registered.due() == []


async def test_a_matcher_that_does_not_look_for_them_matches_none(net: Net) -> None:
    net.rules = replace(net.rules, registered=False)
    net.restarted()
    net.serve(*SPLIT)
    await net.tick()
    job_id, _ = await register(net)
    await net.pass_time(5)
    assert state(net, job_id) is JobState.OPEN
