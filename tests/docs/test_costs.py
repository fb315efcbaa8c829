"""Are the amounts on the page of costs those that the contracts and the settings have?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from core.runtime.settings import Client, Matcher, MinerSettings, SessionSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/costs.md").read_text()
USD_PER_GAS = 0.01e-9 * 2_500
#: What each line of the chain's table adds up from, in the committed snapshots.
SUMS = {
    "a deposit": ["Escrow/deposit, later"],
    "opening a job": ["TaskRegistry/openMatched K=4"],
    "paying it": ["TaskRegistry/settleAck K=4"],
    "ending one": ["TaskRegistry/expire, nothing counted, K=4"],
    "bringing the receipts": ["TaskRegistry/deliver K=4"],
    "registering, with": ["StakeAndJury/register", "StakeAndJury/registerMachine"],
    "taking its earnings": ["Escrow/collect, one operator"],
    "opening a dispute": ["TaskRegistry/dispute K=4"],
    "all moves where": ["ToleranceGame/70B, pointed at once: total"],
    "all moves down": ["ToleranceGame/70B, pleaded, descent: total"],
    "registering a model": ["StakeAndJury/register model, 30 layers"],
}


def _lines(section: str) -> list[list[str]]:
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def _number(text: str) -> float:
    return float(text.removesuffix(" usd").replace(",", ""))


def test_gas_is_what_the_snapshots_have_and_dollars_follow() -> None:
    lines = _lines("The chain")
    assert len(lines) == len(SUMS)
    for (begins, names), (_, what, gas, about) in zip(SUMS.items(), lines, strict=True):
        assert what.startswith(begins)
        measured = 0
        for name in names:
            file, _, key = name.partition("/")
            found = json.loads((ROOT / f"contracts/snapshots/{file}.json").read_text())
            measured += int(found[key])
        assert _number(gas) == measured
        assert _number(about) == pytest.approx(measured * USD_PER_GAS, abs=0.00006)


def test_examples_are_the_default_prices_times_their_tokens() -> None:
    price_in, price_out = (
        _number(str(MinerSettings.model_fields[name].default).replace("usd/Mtok", ""))
        for name in ("price_in", "price_out")
    )
    for _, tokens, cost, fee, total in _lines("An answer"):
        read, answered = (_number(one) for one in tokens.split(" + "))
        told = 0.0 if fee == "–" else _number(fee)
        assert _number(cost) == pytest.approx((read * price_in + answered * price_out) / 1e6)
        assert _number(total) == pytest.approx(_number(cost) + told)


def test_machines_pay_from_their_cost_over_their_price() -> None:
    for what, cost, price, pays in _lines("A machine"):
        brings = float(price.removesuffix(" usd/Mtok"))
        brings += 3 * 0.10 if "three prompt tokens" in what else 0.0
        share = 0.5 if "half" in what else 1.0
        rate = _number(re.split(" tokens/s", pays)[0])
        expected = _number(cost) / (brings * share) * 1e6 / 3600
        assert rate == pytest.approx(expected, rel=0.001, abs=0.05)


def test_defaults_that_the_page_names_are_the_settings() -> None:
    defaults = SessionSettings()
    assert f"{defaults.tokens_in:,} prompt tokens" in PAGE
    assert f"{defaults.tokens_out:,} answer tokens" in PAGE
    assert defaults.length_s == 20 * 60 and "twenty minutes" in PAGE
    fee = str(Matcher.model_fields["opening_fee"].default)
    assert fee.replace("usd", " usd") + " for opening a job" in PAGE
    assert float(fee.removesuffix("usd")) <= float(
        str(Client.model_fields["max_opening_fee"].default).removesuffix("usd")
    )
