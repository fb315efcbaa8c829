"""Does `miner quote` say from which rate on a machine pays, in DeServe's numbers and in the
owner's?
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.runtime.folders import Folders
from core.runtime.settings import load
from miner import cli
from miner.commands.quote import Costs, hourly_cost, paper_table


@pytest.fixture
def run_miner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    def run(*argv: str) -> tuple[int, Any]:
        code = cli.main([*argv, "--json"])
        document = json.loads(capsys.readouterr().out.splitlines()[-1])
        return code, document.get("result") or document["error"]

    return run


@pytest.mark.parametrize(
    ("rent", "tokens_per_s"),
    [("0.35usd", 108), ("3.69usd", 1139), ("5.52usd", 1704), ("13.88usd", 4283)],
)
def test_the_papers_machines_break_even_where_its_table_says(
    run_miner: Any, rent: str, tokens_per_s: int
) -> None:
    prices = ("--price-in", "0usd/Mtok", "--price-out", "0.90usd/Mtok")
    code, found = run_miner("quote", "--rent-per-hour", rent, *prices)
    assert code == 0
    assert abs(found["breakEvenTokensPerS"] - tokens_per_s) < 1
    assert found["pays"] is None, "no rate was measured"


def test_the_papers_own_table_is_printed_beside_what_we_compute(tmp_path: Path) -> None:
    rows = paper_table(load(folders=Folders.at(tmp_path), environ={}))
    assert [row.printed_in_paper for row in rows] == [108, 1139, 1704, 4283]
    assert all(abs(row.break_even_tokens_per_s - row.printed_in_paper) <= 1 for row in rows)


def test_twice_the_break_even_rate_pays_and_half_of_it_does_not(run_miner: Any) -> None:
    argv = ("quote", "--rent-per-hour", "0.35usd", "--price-in", "0usd/Mtok")
    argv += ("--price-out", "0.90usd/Mtok")
    _, rich = run_miner(*argv, "--tokens-per-s", "216.05")
    _, poor = run_miner(*argv, "--tokens-per-s", "54")
    assert (rich["pays"], poor["pays"]) == (True, False)
    assert rich["profitPerDay"].startswith("8.4"), "a day's cost again"
    assert poor["profitPerDay"].startswith("-4.2")
    _, idle = run_miner(*argv, "--tokens-per-s", "216.05", "--utilisation", "0.25")
    assert idle["pays"] is False


def test_power_costs_its_price_and_without_one_is_refused(run_miner: Any, tmp_path: Path) -> None:
    settings = load(folders=Folders.at(tmp_path), environ={})
    cost = hourly_cost(settings, Costs("0.10usd/h", 500, "0.30usd/kWh"))
    assert cost.units_per_hour == 100_000 + 150_000
    assert run_miner("quote", "--power-watts", "500")[0] == 2
    code, error = run_miner("quote", "--rent-per-hour", "0.35")
    assert (code, error["code"]) == (2, "E-AMOUNT-01")


def test_a_price_of_nothing_never_breaks_even(run_miner: Any) -> None:
    prices = ("--price-in", "0usd/Mtok", "--price-out", "0usd/Mtok")
    code, found = run_miner("quote", "--rent-per-hour", "1usd", *prices)
    assert (code, found["breakEvenTokensPerS"]) == (0, None)
