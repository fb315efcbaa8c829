"""Who pays what: nothing appears, nothing vanishes, and no share is rounded away."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.money import pricing
from core.protocol import types as t
from core.protocol.units import NANO
from tests.core.protocol.test_types import HASH, ORDER


@dataclass(frozen=True)
class Job:
    order: t.Order
    plan: list[t.Stage]
    model: t.ModelSpec
    tokens_in: int
    tokens_out: int
    protocol_fee_bps: int


def model_of(layers: int, embed: int, head: int) -> t.ModelSpec:
    return t.ModelSpec(HASH, layers, 8, 1, 1, 8, 9, 9, embed, head, HASH, HASH, HASH, HASH)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Plans that tile a model, with counts within the caps, from nothing to the largest numbers."""
    layers = draw(st.integers(1, 65_535))
    cuts = draw(st.sets(st.integers(1, layers), max_size=min(7, layers)))
    bounds = sorted({0, layers, *cuts})
    model = model_of(layers, draw(st.integers(0, 255)), draw(st.integers(0, 255)))
    cap = st.integers(0, 2**32 - 1)
    price = st.one_of(st.integers(0, 10**6), st.integers(0, 2**63 - 1))
    order = msgspec.structs.replace(
        ORDER,
        max_tokens_in=draw(cap),
        max_tokens_out=draw(cap),
        price_in=draw(price),
        price_out=draw(price),
        matcher_fee_bps=draw(st.integers(0, t.MAX_MATCHER_FEE_BPS)),
        opening_fee=draw(st.integers(0, 2**63 - 1)),
    )
    return Job(
        order,
        [t.Stage(t.ZERO_ADDRESS, a, b) for a, b in itertools.pairwise(bounds)],
        model,
        draw(st.integers(0, order.max_tokens_in)),
        draw(st.integers(0, order.max_tokens_out)),
        draw(st.integers(0, 100)),
    )


def split(job: Job, at_fault: frozenset[int] = frozenset()) -> pricing.Split:
    return pricing.split(
        job.order,
        job.plan,
        job.model,
        job.tokens_in,
        job.tokens_out,
        protocol_fee_bps=job.protocol_fee_bps,
        at_fault=at_fault,
    )


@given(jobs(), st.data())
def test_every_unit_locked_is_paid_or_returned(job: Job, data: st.DataObject) -> None:
    faulty = frozenset(data.draw(st.sets(st.integers(0, len(job.plan) - 1))))
    result = split(job, faulty)
    parts = [*result.pays, result.matcher_fee, result.protocol_fee, result.refund]
    parts.append(job.order.opening_fee * NANO)
    assert sum(parts) == result.locked
    assert min(parts) >= 0
    assert result.locked < 2**128


@given(jobs())
def test_the_units_of_all_stages_are_the_model_s(job: Job) -> None:
    assert sum(pricing.stage_units(s, job.model) for s in job.plan) == job.model.layer_units


@given(jobs())
def test_gross_is_exact_and_fees_round_down(job: Job) -> None:
    result = split(job)
    rate = job.tokens_in * job.order.price_in + job.tokens_out * job.order.price_out
    assert sum(result.gross) == job.model.layer_units * rate
    fees = Fraction(job.order.matcher_fee_bps + job.protocol_fee_bps, pricing.BPS)
    assert result.matcher_fee + result.protocol_fee <= sum(result.gross) * fees
    for gross, pay in zip(result.gross, result.pays, strict=True):
        assert gross * (1 - fees) <= pay <= gross


@given(jobs(), st.data())
def test_a_stage_at_fault_changes_only_its_own_pay(job: Job, data: st.DataObject) -> None:
    faulty = frozenset(data.draw(st.sets(st.integers(0, len(job.plan) - 1), min_size=1)))
    honest, judged = split(job), split(job, faulty)
    assert judged.gross == honest.gross
    for index, pay in enumerate(judged.pays):
        assert pay == (0 if index in faulty else honest.pays[index])
    withheld = sum(judged.gross[index] for index in faulty)
    assert judged.refund == honest.refund + withheld


@given(jobs())
def test_the_whole_use_of_the_caps_returns_nothing(job: Job) -> None:
    full = split(
        Job(
            job.order,
            job.plan,
            job.model,
            job.order.max_tokens_in,
            job.order.max_tokens_out,
            job.protocol_fee_bps,
        )
    )
    assert full.refund == 0
    assert full.locked == pricing.max_nano(job.order, job.model)
    assert 0 <= pricing.max_amount(job.order, job.model) * NANO - full.locked < NANO


def test_one_layer_model_in_one_stage_has_both_ends() -> None:
    assert pricing.stage_units(t.Stage(t.ZERO_ADDRESS, 0, 1), model_of(1, 2, 5)) == 8


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2)])
def test_whole_units_cover_a_cost_in_halves(tokens: int, expected: int) -> None:
    assert pricing.cost_nano(1, tokens, 0, NANO // 2, 0) == tokens * NANO // 2
    assert pricing.cost(1, tokens, 0, NANO // 2, 0) == expected


def test_a_share_below_a_unit_is_a_share() -> None:
    plan = [t.Stage(t.ZERO_ADDRESS, 0, 1), t.Stage(t.ZERO_ADDRESS, 1, 3)]
    order = msgspec.structs.replace(ORDER, price_in=100, price_out=200, matcher_fee_bps=500)
    found = pricing.split(order, plan, model_of(3, 0, 0), 1, 1, protocol_fee_bps=100)
    assert (found.gross, found.pays) == ((300, 600), (282, 564))
    assert (found.matcher_fee, found.protocol_fee) == (45, 9)


@given(st.integers(0, 2**90), st.integers(0, 300), st.integers(0, 500), st.integers(0, 100))
def test_fees_and_what_they_leave_never_fall(gross: int, more: int, m: int, p: int) -> None:
    before, after = pricing.fees(gross, m, p), pricing.fees(gross + more, m, p)
    assert after[0] >= before[0]
    assert after[1] >= before[1]
    assert gross + more - sum(after) >= gross - sum(before)
    assert sum(before) == gross * (m + p) // pricing.BPS
    for fee, bps in zip(before, (m, p), strict=True):
        assert abs(fee - Fraction(gross * bps, pricing.BPS)) < 2


def test_two_floors_side_by_side_would_take_a_unit_back() -> None:
    naive = [g - g * 500 // pricing.BPS - g * 100 // pricing.BPS for g in (99, 100)]
    ours = [g - sum(pricing.fees(g, 500, 100)) for g in (99, 100)]
    assert naive == [95, 94]
    assert ours == [94, 94]
