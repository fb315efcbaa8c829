"""Is what an order can have without paying worth less than the gas of opening it?

docs/protocol.md §9 has the formula. Gas is measured by the contracts' own tests, at the prices of a
cheap rollup.
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
from core.runtime.settings import load
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


@pytest.mark.parametrize("usd_a_mtok", [Fraction(1, 100), Fraction(2, 5), Fraction(3), Fraction(9)])
def test_an_order_has_less_for_nothing_than_the_gas_of_opening_it(
    usd_a_mtok: Fraction, tmp_path: Path
) -> None:
    settings = load(flags={}, environ={}, folders=Folders.at(tmp_path))
    token_units = settings.token("1usd")
    most = taken_usd(usd_a_mtok, settings.token(settings.miner.max_unpaid), token_units)
    assert 0 < most < gas_usd("TaskRegistry", "openMatched K=1")


def test_dearer_models_are_named_where_the_bound_ends(tmp_path: Path) -> None:
    """128 rows are the least credit, which is worth more than gas from here on."""
    settings = load(flags={}, environ={}, folders=Folders.at(tmp_path))
    most = taken_usd(Fraction(10), settings.token(settings.miner.max_unpaid), 10**6)
    assert most > gas_usd("TaskRegistry", "openMatched K=1")
