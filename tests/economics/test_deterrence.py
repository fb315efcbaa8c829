"""At the published parameters no cheat earns: lazy, steering, silent, colluding or griefing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devnet.deploy import USD, Parameters
from tests.economics.deterrence import (
    Published,
    auditor_stake,
    catch_probability,
    expected_gain,
    gain_over,
    griefing_gain,
    least_stake,
    self_slash_gain,
)
from tests.economics.players import COST, Market, Miner

PUBLISHED = Published()
#: In payments of a stage for a job: the least stake over what a job of a cent pays.
STAKE = Parameters().min_stake / (USD / 100)
BOND = Parameters().bond / (USD / 100)
SEEDS, JOBS = range(30), 400
HONEST = Miner("honest")


def mean(miner: Miner, p: Published = PUBLISHED, stake: float = STAKE, **options: float) -> float:
    """What a way of behaving earns, over seeds."""
    earned = [Market(p, seed).run(miner, stake, JOBS, **options).earned for seed in SEEDS]
    return sum(earned) / len(earned)


# --- the formula ---


def test_least_stake_is_where_the_gain_is_nothing() -> None:
    stake = least_stake(PUBLISHED)
    assert stake == pytest.approx(19.2, abs=0.1)
    assert expected_gain(PUBLISHED, stake) == pytest.approx(0, abs=1e-12)
    assert least_stake(replace(PUBLISHED, audit_rate=0.05)) == pytest.approx(11.1, abs=0.1)
    assert least_stake(replace(PUBLISHED, audit_rate=0.01)) == pytest.approx(60, abs=1)
    assert least_stake(replace(PUBLISHED, audit_rate=0.0)) == float("inf")


def test_shipped_stake_is_many_times_the_least() -> None:
    assert least_stake(PUBLISHED) * 100 < STAKE
    half_bribed = replace(PUBLISHED, colluding=0.5)
    assert least_stake(half_bribed) * 100 < STAKE


@given(st.integers(1, 5_000), st.floats(20, 10_000))
def test_many_jobs_at_once_gain_nothing_either(jobs: int, stake: float) -> None:
    assert gain_over(PUBLISHED, stake, jobs) < 0


@given(st.floats(0.001, 0.5), st.floats(0.5, 1.0), st.floats(0.1, 1.0), st.floats(0, 0.9))
def test_gain_changes_sign_at_the_least_stake(a: float, d: float, c: float, rho: float) -> None:
    p = replace(PUBLISHED, audit_rate=a, detection=d, saving=c, colluding=rho)
    stake = least_stake(p)
    if stake > 0:
        assert expected_gain(p, stake * 1.01 + 1e-9) < 0
        assert expected_gain(p, stake * 0.99 - 1e-9) > 0
    assert 0 < catch_probability(p) < 1


@given(st.floats(1, 10**6), st.floats(0, 10**5))
def test_slashing_oneself_burns_money(stake: float, bond: float) -> None:
    assert self_slash_gain(PUBLISHED, stake, bond) <= -0.5 * stake + 1e-6 * stake


def test_lazy_auditors_lose_more_by_canaries_than_they_save() -> None:
    assert auditor_stake(PUBLISHED) == pytest.approx(4.0)
    assert PUBLISHED.audit_fee == pytest.approx(1.5 * PUBLISHED.audit_cost)
    assert auditor_stake(replace(PUBLISHED, canary_rate=0.0)) == float("inf")


def test_false_accusation_pays_the_accused() -> None:
    lost, won = griefing_gain(BOND, defence_cost=1.0)
    assert lost < 0 < won


# --- the market ---


@pytest.mark.parametrize("share", [0.02, 0.2, 1.0])
def test_lazy_miner_earns_less_than_an_honest_one(share: float) -> None:
    lazy = Miner("lazy", cheats=share, saving=0.6)
    assert mean(lazy) < mean(HONEST) - 1
    assert mean(HONEST) == pytest.approx((1 - COST) * JOBS)


def test_lazy_miner_would_earn_more_with_too_little_stake_and_no_newcomers_rate() -> None:
    """The simulation can tell: without what deters, cheating pays."""
    weak = replace(PUBLISHED, audit_rate=0.001, newcomer_rate=0.001)
    lazy = Miner("lazy", cheats=1.0, saving=0.6)
    assert mean(lazy, weak, stake=5.0) > mean(HONEST, weak, stake=5.0)


def test_steering_pays_only_if_one_answer_is_worth_much_of_the_stake() -> None:
    bribed = Miner("steering", cheats=0.05, gains=2.0)
    assert mean(bribed) < mean(HONEST)
    worth = catch_probability(PUBLISHED) * (STAKE + 1)
    assert worth > 100, "of payments: what one bent answer may be worth before steering pays"


def test_silence_earns_less_than_answering() -> None:
    silent = Miner("silent", cheats=0.05, saving=0.6, withholds=True)
    assert mean(silent) < mean(HONEST)
    stubborn = Miner("stubborn", withholds=True)
    assert mean(stubborn) <= mean(HONEST), "and who only withholds pays for being asked on chain"


def test_half_of_the_auditors_may_be_bribed() -> None:
    lazy = Miner("colluding", cheats=0.2, saving=0.6)
    assert mean(lazy, bribed=0.5) < mean(HONEST)


def test_burn_keeps_slashes_from_being_shared() -> None:
    market = Market(PUBLISHED, 1)
    account = market.run(Miner("lazy", cheats=1.0, saving=0.6), STAKE, 10_000)
    assert account.is_slashed
    assert market.burned == pytest.approx(0.5 * STAKE)


def test_griefer_goes_broke_at_its_bonds() -> None:
    """The game itself finds a false accusation: the cost is the bond, the victim's is gas."""
    money, accusations = 10 * BOND, 0
    while money >= BOND:
        lost, won = griefing_gain(BOND, defence_cost=1.0)
        money += lost
        accusations += 1
        assert won > 0
    assert accusations == 10
