"""Are amounts read exactly, refused without a unit, and prices converted as documented?"""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.money.pricing import cost_nano
from core.protocol import units
from core.protocol.errors import AmountInvalid, AmountUnitMissing

ETH_UNITS = {"eth": 10**18, "gwei": 10**9, "wei": 1}


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_token, "500usd", 500_000_000),
        (units.parse_token, " 0.000001usd ", 1),
        (units.parse_token, "1_000usd", 1_000_000_000),
        (units.parse_token, ".5 usd", 500_000),
        (units.parse_price, "0.40usd/Mtok", 400_000),
        (units.parse_duration, "30s", 30),
        (units.parse_duration, "10m", 600),
        (units.parse_duration, "24h", 86_400),
        (units.parse_duration, "1.5h", 5_400),
        (units.parse_bytes, "6GiB", 6 * 2**30),
        (units.parse_bytes, "6GB", 6 * 10**9),
        (units.parse_bytes, "0.5KiB", 512),
    ],
)
def test_amounts_are_read_exactly(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "unit"),
    [
        (units.parse_token, "500", "500usd"),
        (units.parse_price, "0.4", "0.4usd/Mtok"),
        (units.parse_duration, "30", "30m"),
        (units.parse_bytes, "6", "6GiB"),
    ],
)
def test_a_bare_number_is_refused_naming_the_units(parse, text, unit):
    with pytest.raises(AmountUnitMissing) as caught:
        parse(text)
    assert unit in caught.value.next_step


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_token, "0.0000001usd"),
        (units.parse_token, "-5usd"),
        (units.parse_token, "+5usd"),
        (units.parse_token, "1e6usd"),
        (units.parse_token, "5eth"),
        (units.parse_token, "usd"),
        (units.parse_token, ""),
        (units.parse_token, "NaNusd"),
        (units.parse_token, "١usd"),
        (units.parse_token, f"{2**128}usd"),
        (units.parse_token, "9" * 500 + "usd"),
        (units.parse_price, "0.4usd"),
        (units.parse_price, "0.4usd/mtok"),
        (units.parse_duration, "0.5s"),
        (units.parse_duration, "10min"),
        (units.parse_bytes, "6gib"),
    ],
)
def test_what_is_not_an_exact_amount_is_refused(parse, text):
    with pytest.raises(AmountInvalid) as caught:
        parse(text)
    assert not isinstance(caught.value, AmountUnitMissing)


def test_an_over_precise_amount_suggests_the_next_lower_one():
    with pytest.raises(AmountInvalid) as caught:
        units.parse_token("1.0000019usd")
    assert "1.000001usd" in caught.value.next_step


def test_a_wrong_capital_letter_suggests_the_right_unit():
    with pytest.raises(AmountInvalid) as caught:
        units.parse_price("0.4usd/mtok")
    assert "0.4usd/Mtok" in caught.value.next_step


@given(st.integers(0, 2**128 - 1))
def test_printed_tokens_read_back_as_the_same_integer(amount):
    assert units.parse_token(units.format_token(amount)) == amount


@given(st.integers(0, 2**128), st.integers(0, 18))
def test_tokens_of_any_decimals_read_back(amount, decimals):
    text = units.format_token(amount % 2**128, symbol="tok", decimals=decimals)
    assert units.parse_token(text, symbol="tok", decimals=decimals) == amount % 2**128


@given(st.integers(0, 2**256 - 1))
def test_printed_ether_reads_back_as_the_same_integer(wei):
    text = units.format_eth(wei)
    unit, scale = next(one for one in ETH_UNITS.items() if text.endswith(one[0]))
    assert Fraction(text.removesuffix(unit)) * scale == wei


@given(st.integers(0, 2**64 - 1))
def test_printed_prices_times_and_sizes_read_back(value):
    assert units.parse_price(units.format_price(value)) == value
    assert units.parse_duration(units.format_duration(value)) == value
    assert units.parse_bytes(units.format_bytes(value)) == value


@pytest.mark.parametrize(
    ("wei", "text"), [(5 * 10**18, "5eth"), (250 * 10**9, "250gwei"), (7, "7wei"), (0, "0wei")]
)
def test_ether_is_printed_in_a_readable_unit(wei, text):
    assert units.format_eth(wei) == text


@given(st.integers(0, 10**12), st.integers(1, 1000))
def test_a_price_survives_the_way_to_nano_units_and_back(price, layer_units):
    assert units.price_of_nano(units.nano_price(price, layer_units), layer_units) == price


@given(st.integers(0, 10**12), st.integers(1, 65_535))
def test_rounding_favours_the_miner_by_less_than_one_nano_unit_per_layer_unit(price, layer_units):
    nano = units.nano_price(price, layer_units)
    excess = nano * layer_units - price * 1000
    assert 0 <= excess < layer_units


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 1000))
def test_a_higher_printed_price_never_becomes_a_lower_nano_price(one, other, layer_units):
    low, high = sorted((one, other))
    assert units.nano_price(low, layer_units) <= units.nano_price(high, layer_units)


@given(st.integers(0, 10**9), st.integers(1, 1000))
def test_a_million_tokens_cost_the_printed_price(price, layer_units):
    nano = units.nano_price(price, layer_units)
    assert units.whole_units(cost_nano(layer_units, 0, 1_000_000, 0, nano)) == price


def test_a_price_that_does_not_fit_the_order_is_refused():
    with pytest.raises(AmountInvalid, match="too large"):
        units.nano_price(2**64, 1)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("0usd", "0 usd"),
        ("5usd", "5.00 usd"),
        ("1234567.891usd", "1,234,567.89 usd"),
        ("0.007913usd", "0.0079 usd"),
        ("0.05usd", "0.05 usd"),
        ("0.000123usd", "0.000123 usd"),
        ("0.4usd/Mtok", "0.40 usd/Mtok"),
        ("-3usd", "-3.00 usd"),
        ("5 usd", None),
        ("1e5usd", None),
        ("24h", None),
        ("5usdc", None),
        ("usd", None),
        ("", None),
    ],
)
def test_money_reads_like_money(written: str, shown: str | None) -> None:
    assert units.money_for_people(written) == shown


@given(st.integers(0, 10**15))
def test_money_for_people_is_within_half_a_cent_or_half_a_hundredth_of_it(amount: int) -> None:
    shown = units.money_for_people(units.format_token(amount))
    assert shown is not None
    value = Decimal(shown.removesuffix(" usd").replace(",", "")) * 10**6
    assert abs(value - amount) <= (5_000 if amount >= 10**6 else 50 if amount >= 1000 else 0)
