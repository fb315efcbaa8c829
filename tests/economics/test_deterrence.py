"""At the published parameters no cheat earns: lazy, steering, silent, colluding or griefing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol.network_file import USD, Parameters
from tests.economics.deterrence import (
    Published,
    auditor_stake,
    bond_of,
    catch_probability,
    expected_gain,
    freezing_price,
    gain_over,
    griefing_gain,
    least_stake,
    self_slash_gain,
    shares,
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
    assert stake == pytest.approx(38.4, abs=0.1)
    assert expected_gain(PUBLISHED, stake) == pytest.approx(0, abs=1e-12)
    assert least_stake(replace(PUBLISHED, audit_rate=0.05)) == pytest.approx(22.2, abs=0.1)
    assert least_stake(replace(PUBLISHED, audit_rate=0.01)) == pytest.approx(119, abs=1)
    assert least_stake(replace(PUBLISHED, audit_rate=0.0)) == float("inf")
    # Who cannot convict itself first loses all.
    assert least_stake(replace(PUBLISHED, kept=0.0)) == pytest.approx(19.2, abs=0.1)


@pytest.mark.parametrize("payment", [0.01, 0.1, 1.0])
def test_small_jobs_are_no_safer_to_cheat_in(payment: float) -> None:
    """What a small job saves shrinks with its payment; the stake behind it does not."""
    stake = least_stake(PUBLISHED)
    assert least_stake(PUBLISHED, payment) == pytest.approx(stake * payment)
    assert expected_gain(PUBLISHED, stake * 1.01, payment) < 0


def test_an_accuser_of_a_small_job_is_paid_by_the_stake() -> None:
    """The challenger's share does not depend on the job; the requester's ends at its lock."""
    reward, amends = shares(PUBLISHED, STAKE, bond_of(PUBLISHED, STAKE, BOND), locked=0.01)
    assert reward == pytest.approx(0.2 * STAKE)
    assert amends == 0.01


def test_shipped_stake_is_many_times_the_least() -> None:
    assert least_stake(PUBLISHED) * 100 < STAKE
    half_bribed = replace(PUBLISHED, colluding=0.5)
    assert least_stake(half_bribed) * 100 < STAKE


@given(st.integers(1, 5_000), st.floats(40, 10_000))
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


@given(st.floats(1, 10**6), st.floats(0, 10**5), st.floats(0, 10**6), st.integers(0, 10**3))
def test_slashing_oneself_burns_half(stake: float, bond: float, lock: float, straws: int) -> None:
    assert self_slash_gain(PUBLISHED, stake, bond, lock, straws) <= -0.5 * stake + 1e-6 * stake


def test_lazy_auditors_lose_more_by_canaries_than_they_save() -> None:
    assert auditor_stake(PUBLISHED) == pytest.approx(4.0)
    assert PUBLISHED.audit_fee == pytest.approx(1.5 * PUBLISHED.audit_cost)
    assert auditor_stake(replace(PUBLISHED, canary_rate=0.0)) == float("inf")


def test_false_accusation_pays_the_accused() -> None:
    lost, won = griefing_gain(BOND, defence_cost=1.0)
    assert lost < 0 < won


def test_a_second_of_freezing_costs_in_proportion_to_what_is_frozen() -> None:
    """Each hour, of a large stake: by falling silent at once, and by using every turn to its end.

    An accuser has 15 turns at most: three questions, the accusation and its restatement, eight
    openings, the proof and a part of it; the accused needs none of its own time.
    """
    turn_s, payout_s, stake = 4 * 3600, 3600, 10**6 * BOND
    hour = [
        3600 * freezing_price(PUBLISHED, stake, BOND, turns * turn_s + payout_s) / stake
        for turns in (1, 15)
    ]
    assert hour == [pytest.approx(0.001), pytest.approx(0.005 / 61)]
    assert freezing_price(PUBLISHED, STAKE, BOND, 3600) == BOND / 3600


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
    worth = catch_probability(PUBLISHED) * ((1 - PUBLISHED.kept) * STAKE + 1)
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
