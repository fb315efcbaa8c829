"""Which proposals a miner takes, one reason at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from core.money import pricing
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import PlanInvalid
from core.protocol.units import format_token
from miner.chain import admission
from miner.chain.admission import (
    ChainView,
    MinerState,
    ReceivedProposal,
    decide,
    decide_on_chain,
)
from tests.town.machines import PROFILE
from tests.town.orders import ARBITRATOR, NOW_S, key

ME, BEFORE, MATCHER, REQUESTER = (key(n).address for n in (1, 2, 3, 4))
SPEC = t.ModelSpec(
    architecture=t.ZERO_HASH,
    layers=8,
    hidden=64,
    heads=4,
    kv_heads=2,
    ffn=128,
    vocab=300,
    context=512,
    embed_units=1,
    head_units=2,
    dtype=t.ZERO_HASH,
    numerics_profile=PROFILE,
    weights_root=t.ZERO_HASH,
    manifest_hash=t.ZERO_HASH,
)
ORDER = t.Order(
    requester=REQUESTER,
    model_id=signing.model_id(SPEC),
    input_root="0x" + "44" * 32,
    sampling_root="0x" + "55" * 32,
    requests=4,
    max_tokens_in=1000,
    max_tokens_out=2000,
    price_in=100_000_000,
    price_out=300_000_000,
    matcher=MATCHER,
    matcher_fee_bps=100,
    opening_fee=0,
    min_stake=0,
    deadline=NOW_S + 600,
    window=60,
    auditor=t.ZERO_ADDRESS,
    arbitrator=ARBITRATOR,
    numerics_profile=PROFILE,
    terms_hash=t.ZERO_HASH,
    nonce=1,
)
PLAN = (
    t.Stage(operator=BEFORE, layer_from=0, layer_to=3),
    t.Stage(operator=ME, layer_from=3, layer_to=8),
)
OFFER = ReceivedProposal(
    order=ORDER, order_signed=True, proposer=MATCHER, plan=PLAN, stage=1, endpoints=2
)
STANDING = MinerState(
    operator=ME,
    model_id=ORDER.model_id,
    spec=SPEC,
    layers=t.LayerRange(3, 8),
    price_in=100_000_000,
    price_out=300_000_000,
    free_requests=4,
    draining=False,
)
NEED = pricing.max_amount(ORDER, SPEC)
VIEW = ChainView(
    now_s=NOW_S,
    requester_balance=NEED,
    arbitrator_listed=True,
    can_work=True,
    nonce_used=False,
    max_job_s=600,
    max_window_s=60,
)


def stage(operator: str, start: int, end: int) -> t.Stage:
    return t.Stage(operator=operator, layer_from=start, layer_to=end)


def test_a_fair_proposal_is_taken() -> None:
    assert decide(OFFER, STANDING) is None
    assert decide_on_chain(ORDER, SPEC, VIEW) is None


@pytest.mark.parametrize(
    ("code", "offer", "order", "standing"),
    [
        (admission.DRAINING, {}, {}, {"draining": True}),
        (admission.NOT_SERVING, {}, {}, {"layers": None}),
        (admission.MATCHER, {"proposer": ME}, {}, {}),
        (admission.SIGNATURE, {"order_signed": False}, {}, {}),
        (admission.MODEL, {}, {"model_id": "0x" + "22" * 32}, {}),
        (admission.PROFILE, {}, {"numerics_profile": t.ZERO_HASH}, {}),
        (admission.REQUESTS, {}, {"requests": 0}, {}),
        (admission.REQUESTS, {}, {"requests": 4097}, {}),
        (admission.REQUESTS, {}, {"max_tokens_in": 0}, {}),
        (admission.REQUESTS, {}, {"max_tokens_out": 0}, {}),
        ("E-PLAN-01", {"plan": (stage(BEFORE, 0, 2), stage(ME, 3, 8))}, {}, {}),
        ("E-PLAN-01", {"plan": (stage(BEFORE, 0, 4), stage(ME, 3, 8))}, {}, {}),
        ("E-PLAN-01", {"plan": (stage(BEFORE, 0, 3), stage(ME, 3, 7))}, {}, {}),
        ("E-PLAN-01", {"plan": (stage(BEFORE, 0, 3), stage(ME, 3, 9))}, {}, {}),
        ("E-PLAN-01", {"plan": (stage(BEFORE, 0, 0), stage(ME, 0, 8))}, {}, {}),
        (admission.PLACE, {"endpoints": 1}, {}, {}),
        (admission.PLACE, {"stage": 0}, {}, {}),
        (admission.PLACE, {"stage": 2}, {}, {}),
        (admission.PLACE, {"plan": (stage(ME, 0, 3), stage(ME, 3, 8))}, {}, {}),
        (admission.PLACE, {"plan": (stage(BEFORE, 0, 4), stage(ME, 4, 8))}, {}, {}),
        (admission.PRICE, {}, {"price_in": 99_999_999}, {}),
        (admission.PRICE, {}, {"price_out": 299_999_999}, {}),
        (admission.SLOTS, {}, {}, {"free_requests": 0}),
    ],
)
def test_refused_without_asking_the_chain(
    code: str, offer: dict[str, Any], order: dict[str, Any], standing: dict[str, Any]
) -> None:
    changed = replace(OFFER, order=msgspec.structs.replace(ORDER, **order), **offer)
    refusal = decide(changed, replace(STANDING, **standing))
    assert refusal is not None
    assert refusal.code == code


def test_a_registered_order_needs_no_key_no_nonce_and_no_balance() -> None:
    """Its requester opened it itself: it waits on chain, its money locked."""
    alone: dict[str, Any] = {"signer_may_spend": False, "nonce_used": True, "requester_balance": 0}
    assert decide_on_chain(ORDER, SPEC, replace(VIEW, **alone, is_registered=True)) is None
    found = decide_on_chain(ORDER, SPEC, replace(VIEW, **alone))
    assert found is not None and found.code == admission.SIGNATURE
    late = replace(VIEW, **alone, is_registered=True, now_s=ORDER.deadline)
    found = decide_on_chain(ORDER, SPEC, late)
    assert found is not None and found.code == admission.DEADLINE


@pytest.mark.parametrize(
    ("code", "view", "order"),
    [
        (admission.USED, {"nonce_used": True}, {}),
        (admission.DEADLINE, {}, {"deadline": NOW_S + 4}),
        (admission.DEADLINE, {}, {"deadline": NOW_S - 1}),
        (admission.DEADLINE, {}, {"deadline": NOW_S + 601}),
        (admission.WINDOW, {}, {"window": 61}),
        (admission.ESCROW, {"requester_balance": NEED - 1}, {}),
        (admission.ARBITRATOR, {"arbitrator_listed": False}, {}),
        (admission.STAKE, {"can_work": False}, {}),
    ],
)
def test_refused_for_what_the_chain_says(
    code: str, view: dict[str, Any], order: dict[str, Any]
) -> None:
    refusal = decide_on_chain(msgspec.structs.replace(ORDER, **order), SPEC, replace(VIEW, **view))
    assert refusal is not None
    assert refusal.code == code


def test_refusal_for_money_names_what_is_there_and_what_is_needed() -> None:
    refusal = decide_on_chain(ORDER, SPEC, replace(VIEW, requester_balance=5))
    assert refusal is not None
    assert "0.000005usd" in refusal.reason
    assert format_token(NEED) in refusal.reason


def test_an_order_without_a_matcher_may_come_from_anyone() -> None:
    order = msgspec.structs.replace(ORDER, matcher=t.ZERO_ADDRESS)
    assert decide(replace(OFFER, order=order, proposer=BEFORE), STANDING) is None


@pytest.mark.parametrize(("requests", "most"), [(1, 1), (4, 4), (100, 8)])
def test_a_job_runs_no_more_at_once_than_it_can_use(requests: int, most: int) -> None:
    order = msgspec.structs.replace(ORDER, requests=requests)
    assert admission.at_once(order) == most


def test_an_acceptance_ends_with_the_deadline_or_after_five_minutes() -> None:
    assert admission.acceptance_expiry(ORDER, NOW_S) == NOW_S + 300
    soon = msgspec.structs.replace(ORDER, deadline=NOW_S + 10)
    assert admission.acceptance_expiry(soon, NOW_S) == NOW_S + 10


def test_tiling_errors_name_the_layers() -> None:
    with pytest.raises(PlanInvalid, match="layers 3 to 4 are served by nobody"):
        admission.check_tiling([stage(BEFORE, 0, 3), stage(ME, 5, 8)], 8)
    with pytest.raises(PlanInvalid, match="layers 2 to 2 are served twice"):
        admission.check_tiling([stage(BEFORE, 0, 3), stage(ME, 2, 8)], 8)
