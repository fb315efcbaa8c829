"""Is what an order can have without paying worth less than what opening it costs who has it?

docs/protocol.md §9 has the formula, §4 the opening fee. Gas is measured by the contracts' own
tests, at the prices of a cheap rollup.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace

from client.orders.orders import PromptBatch
from core.money import pricing
from core.protocol.units import NANO
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from tests.town.orders import SPEC, prompts, signed_order

SNAPSHOTS = Path(__file__).resolve().parents[2] / "contracts" / "snapshots"
#: 0.01 gwei for a unit of gas, 2,500 usd for an ETH.
USD_A_GAS = Fraction(1, 10**11) * 2500
MTOK = 10**6


def gas_usd(contract: str, call: str) -> Fraction:
    gas = json.loads((SNAPSHOTS / f"{contract}.json").read_text())
    return int(gas[call]) * USD_A_GAS


def taken_usd(usd_a_mtok: Fraction, max_unpaid_units: int, token_units: int) -> Fraction:
    """The most that an order can have of all its stages beyond what it acknowledges.

    A first stage gives it one credit of rows, and a later one two, whoever is the first.
    """
    price = int(usd_a_mtok * token_units * NANO / MTOK / SPEC.layer_units)
    order = replace(signed_order(PromptBatch.of(prompts(1))).order, price_in=price, price_out=price)
    rows = 2 * pricing.credit_rows(order, SPEC, max_unpaid_units)
    return rows * usd_a_mtok / MTOK


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(flags={}, environ={}, folders=Folders.at(tmp_path))


def fee_usd(settings: Settings) -> Fraction:
    return Fraction(settings.token(settings.matcher.opening_fee), settings.token("1usd"))


def most_usd(settings: Settings, usd_a_mtok: Fraction) -> Fraction:
    unpaid = settings.token(settings.miner.max_unpaid)
    return taken_usd(usd_a_mtok, unpaid, settings.token("1usd"))


@pytest.mark.parametrize(
    "usd_a_mtok", [Fraction(1, 100), Fraction(2, 5), Fraction(3), Fraction(19)]
)
def test_an_order_has_less_for_nothing_than_it_pays_for_its_opening(
    usd_a_mtok: Fraction, settings: Settings
) -> None:
    assert 0 < most_usd(settings, usd_a_mtok) < fee_usd(settings)


@pytest.mark.parametrize("usd_a_mtok", [Fraction(1, 100), Fraction(2, 5), Fraction(3), Fraction(9)])
def test_who_gets_the_fee_back_pays_more_gas_for_the_opening(
    usd_a_mtok: Fraction, settings: Settings
) -> None:
    """A requester that is its own matcher sends the transaction."""
    assert 0 < most_usd(settings, usd_a_mtok) < gas_usd("TaskRegistry", "openMatched K=1")


def test_dearer_models_are_named_where_the_bounds_end(settings: Settings) -> None:
    """128 rows are the least credit: worth more than gas from here on, then than the fee."""
    assert most_usd(settings, Fraction(10)) > gas_usd("TaskRegistry", "openMatched K=1")
    assert most_usd(settings, Fraction(20)) > fee_usd(settings)


def test_the_fee_pays_the_gas_of_an_order_that_comes_to_nothing(settings: Settings) -> None:
    opened = gas_usd("TaskRegistry", "openMatched K=4")
    ended = gas_usd("TaskRegistry", "expire, nothing counted, K=4")
    assert opened + ended <= fee_usd(settings)


def test_a_client_pays_the_fee_that_a_matcher_asks_by_default(settings: Settings) -> None:
    asked, most = settings.matcher.opening_fee, settings.client.max_opening_fee
    assert 0 < settings.token(asked) <= settings.token(most)
