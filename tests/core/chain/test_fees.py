"""What is bid for gas, and when more is bid."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.chain.fees import MOST_GAS, MOST_RAISE, Bid, first_bid, gas_limit, higher_bid

GWEI = 10**9


def test_the_first_bid_outlasts_five_full_blocks() -> None:
    bid, base = first_bid(GWEI), float(GWEI)
    for _ in range(5):
        base *= 9 / 8
        assert bid.fee >= base + bid.tip - GWEI
    assert first_bid(0) == Bid(GWEI, GWEI)


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_more_is_bid_only_where_it_is_needed_and_helps(then: int, now: int) -> None:
    first = first_bid(then)
    higher = higher_bid(first, first, now)
    if first.fee >= now + first.tip:
        assert higher is None
    elif higher is None:
        assert now + first.tip * 9 // 8 + 1 > MOST_RAISE * first.fee, "dearer than it may become"
    else:
        assert higher.fee >= now + higher.tip
        assert higher.fee * 10 >= first.fee * 11 and higher.tip * 10 >= first.tip * 11
        assert higher.fee <= MOST_RAISE * first.fee


def test_it_follows_a_base_fee_of_twenty_times_and_no_further_than_allowed() -> None:
    first = bid = first_bid(GWEI)
    for base in (4 * GWEI, 10 * GWEI, 20 * GWEI):
        raised = higher_bid(bid, first, base)
        if raised is not None:
            bid = raised
        assert bid.fee >= base + bid.tip
    assert higher_bid(bid, first, 1000 * GWEI) is None
    assert higher_bid(bid, bid, 500 * GWEI) is not None, "begun anew it may"


def test_gas_has_room_and_an_end() -> None:
    assert gas_limit(21_000, is_plain=True) == 21_000
    assert gas_limit(100_000, is_plain=False) == 160_000
    assert gas_limit(MOST_GAS - 1, is_plain=False) == MOST_GAS
    assert gas_limit(MOST_GAS, is_plain=False) == MOST_GAS
