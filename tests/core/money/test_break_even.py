"""DeServe's profit model: its own table, and what must hold for every machine."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.money.break_even import (
    Earning,
    HourlyCost,
    break_even_tokens_per_s,
    profit_units_per_hour,
)

USD = 10**6
PRICE = 900_000  # 0.90 usd/Mtok


@pytest.mark.parametrize(
    ("cost_cents", "tokens_per_s"), [(35, 108), (369, 1139), (552, 1704), (1388, 4283)]
)
def test_the_papers_table_is_reproduced(cost_cents: int, tokens_per_s: int) -> None:
    """The paper prints 4,283 for 4,283.95 and 1,704 for 1,703.7: it rounds now down, now up."""
    cost = HourlyCost(rent_units_per_hour=cost_cents * USD // 100)
    found = break_even_tokens_per_s(cost, Earning(0, PRICE))
    assert found is not None
    assert abs(found - tokens_per_s) < 1


def test_power_is_a_cost_and_fees_prompts_and_layers_change_the_price() -> None:
    cost = HourlyCost(power_watts=500, energy_units_per_kwh=300_000)
    assert cost.units_per_hour == 150_000
    whole = Earning(price_in=100_000, price_out=400_000)
    assert break_even_tokens_per_s(cost, whole) == Fraction(150_000, 400_000) * 10**6 / 3600
    half = Earning(100_000, 400_000, Fraction(4), layer_units=15, of_layer_units=30, fee_bps=500)
    assert half.units_per_token == Fraction(800_000, 10**6) / 2 * Fraction(95, 100)
    assert break_even_tokens_per_s(cost, Earning(0, 0)) is None


amounts = st.integers(min_value=1, max_value=10**12)


@given(amounts, amounts, st.integers(min_value=0, max_value=9_999))
def test_at_break_even_nothing_is_won_and_nothing_lost(rent: int, price: int, fee: int) -> None:
    cost, earning = HourlyCost(rent), Earning(0, price, fee_bps=fee)
    rate = break_even_tokens_per_s(cost, earning)
    assert rate is not None
    assert profit_units_per_hour(cost, earning, rate) == 0
    assert profit_units_per_hour(cost, earning, rate * 2, Fraction(1, 2)) == 0
    assert profit_units_per_hour(cost, earning, rate * 2) == cost.units_per_hour
    assert profit_units_per_hour(cost, earning, rate / 2) < 0
