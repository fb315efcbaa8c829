"""A balance says what is locked and by which job, what can be spent, and how long that lasts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.commands.wallet import balance as holdings_module
from client.commands.wallet.balance import DAY_S, holdings, lasts, per_day_spent
from core.money import pricing
from core.protocol.types import JobState
from core.protocol.units import covering_units
from core.runtime.commands.results import plain
from tests.client.commands.ask.test_job_list import Desk
from tests.town.orders import NOW_S, REQUESTER, SPEC

USD = 10**6


class At:
    """A clock that stands."""

    def now(self) -> float:
        return float(NOW_S)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """One finished job of the requester's, which still holds money."""
    desk = Desk(tmp_path)
    desk.open_for(monkeypatch, holdings_module)
    monkeypatch.setattr(holdings_module, "SystemClock", At)
    me = REQUESTER.address
    desk.chain.usd[me], desk.chain.prepaid[me] = 3 * USD, 4 * USD
    desk.chain.answers["MinerRegistry.operatorsOf"] = []
    desk.on_chain.state, desk.on_chain.tokens_in, desk.on_chain.tokens_out = JobState.MATCHED, 0, 0
    return desk


async def test_what_a_job_holds_and_has_cost_is_in_the_balance(desk: Desk) -> None:
    desk.keep()
    found = plain(await holdings(desk.settings, REQUESTER.address))
    assert (found["wallet"], found["prepaid"], found["spendable"]) == ("3usd", "4usd", "7usd")
    locked = desk.settings.show_token(covering_units(desk.locked_nano))
    assert (found["locked"], found["locked_by"]) == (locked, [f"{desk.typed} {locked}"])
    order = desk.job.signed.order
    cost = pricing.cost(SPEC.layer_units, 7, 8, order.price_in, order.price_out)
    assert found["lasts"].endswith(f"at {desk.settings.show_token(cost)} a day")


async def test_another_wallets_jobs_are_not_ours(desk: Desk) -> None:
    desk.keep()
    found = plain(await holdings(desk.settings, "0x" + "77" * 20))
    assert (found["locked"], found["locked_by"]) == ("0usd", [])
    assert found["lasts"] == "nothing was spent in the last 7 days"


async def test_what_was_paid_for_holds_nothing_and_is_not_asked_about(desk: Desk) -> None:
    desk.keep()
    desk.change(lambda store: store.set_state(desk.job.job_id, "acknowledged"))
    found = plain(await holdings(desk.settings, REQUESTER.address))
    assert (found["locked"], found["locked_by"]) == ("0usd", [])
    assert "TaskRegistry.jobOf" not in desk.chain.reads


async def test_what_is_not_paid_yet_is_locked_whole_and_what_ended_locks_nothing(
    desk: Desk,
) -> None:
    desk.keep()
    desk.on_chain.tokens_in, desk.on_chain.tokens_out = 7, 8
    locks = []
    for state in (JobState.DELIVERED, JobState.DISPUTED, JobState.SETTLED):
        desk.on_chain.state = state
        locks.append(plain(await holdings(desk.settings, REQUESTER.address))["locked"])
    whole = desk.settings.show_token(covering_units(desk.locked_nano))
    assert locks == [whole, whole, "0usd"]


@given(st.lists(st.tuples(st.integers(0, 30 * DAY_S), st.integers(0, 10**12)), max_size=20))
def test_a_day_costs_the_mean_of_days_that_cost_anything(spent: list[tuple[int, int]]) -> None:
    days = {at // DAY_S for at, cost in spent if cost}
    total = sum(cost for _, cost in spent)
    per_day = per_day_spent(spent)
    assert per_day * len(days) >= total > (per_day - 1) * len(days) if days else per_day == 0


@pytest.mark.parametrize(
    ("spendable", "said"),
    [
        (0, "less than an hour at x"),
        (10, "about 10 hours at x"),
        (1, "about 1 hour at x"),
        (47, "about 47 hours at x"),
        (48, "about 2 days at x"),
        (24 * 9999, "about 9,999 days at x"),
    ],
)
def test_how_long_it_lasts_is_said_in_words(spendable: int, said: str) -> None:
    assert lasts(spendable, 24, "x") == said
