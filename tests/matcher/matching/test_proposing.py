"""Whose word counts as consent, and what the silence of a peer costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from core.protocol import signing, wire
from core.protocol import types as t
from matcher.matching.proposing import ProposalRefusal, judge, propose
from tests.clocks import ManualClock
from tests.town.fleet import FakePeers, FakeStage, accept, machine_key, make_job, make_order
from tests.town.orders import DOMAIN, NOW_S, sign_order

JOB = make_job(sign_order(make_order()), [(1, 0, 10), (2, 10, 30)])
GOOD = JOB.acceptances[1]


def judged(answer: wire.AnyMessage) -> t.SignedAcceptance | ProposalRefusal:
    return judge(answer, JOB.signed, JOB.plan, 1, DOMAIN, NOW_S)


def changed(**changes: object) -> t.SignedAcceptance:
    return t.SignedAcceptance(msgspec.structs.replace(GOOD.acceptance, **changes), GOOD.signature)


ELSEWHERE = signing.Domain(1, DOMAIN.verifying_contract)


def signed_by_it(
    order: t.Order = JOB.signed.order,
    plan: Sequence[t.Stage] = JOB.plan,
    stage: int = 1,
    expiry: int = NOW_S + 300,
    domain: signing.Domain = DOMAIN,
) -> t.SignedAcceptance:
    """Truly signed by the operator in place 1, of whatever it is."""
    bound = signing.order_hash(order), signing.plan_hash(tuple(plan))
    acceptance = t.Acceptance(*bound, stage, expiry)
    return t.SignedAcceptance(acceptance, signing.sign(machine_key(2), domain, acceptance))


def test_a_signed_acceptance_of_exactly_this_place_is_consent() -> None:
    assert judged(wire.Accepted(GOOD)) == GOOD
    shortest = signed_by_it(expiry=NOW_S + 5)
    assert judged(wire.Accepted(shortest)) == shortest


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (wire.Failed(code="E-ADMIT-PRICE", reason="too low"), "too low"),
        (wire.Pong(), "Pong"),
        (wire.Accepted(changed(stage=0)), "another order, plan or place"),
        (wire.Accepted(changed(plan_hash=t.ZERO_HASH)), "another order, plan or place"),
        (wire.Accepted(changed(order_hash=t.ZERO_HASH)), "another order, plan or place"),
        (wire.Accepted(signed_by_it(make_order(nonce=2))), "another order, plan or place"),
        (wire.Accepted(signed_by_it(plan=JOB.plan[:0:-1] * 2)), "another order, plan or place"),
        (wire.Accepted(signed_by_it(stage=0)), "another order, plan or place"),
        (wire.Accepted(signed_by_it(expiry=NOW_S + 4)), "4 s only"),
        (wire.Accepted(signed_by_it(expiry=NOW_S - 1)), "-1 s only"),
        (wire.Accepted(signed_by_it(domain=ELSEWHERE)), "not signed"),
        (wire.Accepted(changed(expiry=NOW_S + 4)), "4 s only"),
        (wire.Accepted(changed(expiry=NOW_S + 299)), "not signed"),
        (
            wire.Accepted(accept(JOB.signed.order, JOB.plan, 1, machine_key(9), NOW_S + 300)),
            "not signed",
        ),
    ],
)
def test_anything_else_is_a_refusal_with_its_reason(answer: wire.AnyMessage, words: str) -> None:
    found = judged(answer)
    assert isinstance(found, ProposalRefusal)
    assert words in found.reason
    assert found.operator == JOB.plan[1].operator


class Hanging(FakeStage):
    """Accepts the stream and never answers."""

    async def call(self, *_: object, **__: object) -> wire.Frame:
        await asyncio.Event().wait()
        raise AssertionError


async def test_stages_are_asked_at_once_and_a_silent_one_costs_one_deadline() -> None:
    clock = ManualClock(float(NOW_S))
    stages = {machine_key(n).address: Hanging(n, clock) for n in (1, 2)}
    began = asyncio.get_running_loop().time()
    found = await propose(
        FakePeers(dict(stages)), JOB.signed, JOB.plan, JOB.endpoints, DOMAIN, NOW_S, timeout_s=0.2
    )
    assert [refusal.unreachable for refusal in found.refusals] == [True, True]
    assert asyncio.get_running_loop().time() - began < 2
