"""Receipts are collected over what every stage finished, and a silent stage is named."""

from __future__ import annotations

import asyncio

from core.protocol import wire
from core.runtime.network.collecting import collect, dialled
from matcher.matching.proposing import propose
from tests.clocks import ManualClock
from tests.town.fleet import FakePeers, FakeStage, machine_key, make_job, make_order
from tests.town.orders import DOMAIN, NOW_S, sign_order

JOB = make_job(sign_order(make_order()), [(1, 0, 10), (2, 10, 30)])
ORDER, PLAN = JOB.signed.order, JOB.plan


class Hanging(FakeStage):
    """Accepts the stream and never answers."""

    async def call(self, *_: object, **__: object) -> wire.Frame:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_silent_stage_is_named_after_one_deadline() -> None:
    clock = ManualClock(float(NOW_S))
    one, two = FakeStage(1, clock, finished={0, 1}), Hanging(2, clock)
    peers = FakePeers({machine_key(1).address: one, machine_key(2).address: two})
    ask = dialled(peers, PLAN, JOB.endpoints)
    found = await collect(ask, ORDER, PLAN, DOMAIN, all_requests=True, timeout_s=0.2)
    assert found.receipts == ()
    assert "stage 1" in found.problem


async def test_only_what_every_stage_finished_is_receipted() -> None:
    clock = ManualClock(float(NOW_S))
    stages = {machine_key(n).address: FakeStage(n, clock) for n in (1, 2)}
    peers = FakePeers(dict(stages))
    await propose(peers, JOB.signed, PLAN, JOB.endpoints, DOMAIN, NOW_S)
    stages[machine_key(1).address].finished = {0, 1, 77}
    stages[machine_key(2).address].finished = {1, 77}
    ask = dialled(peers, PLAN, JOB.endpoints)
    found = await collect(ask, ORDER, PLAN, DOMAIN, all_requests=False)
    assert (found.requests, len(found.receipts)) == ((1,), 2)
    whole = await collect(ask, ORDER, PLAN, DOMAIN, all_requests=True)
    assert (whole.requests, whole.receipts) == ((1,), ())
