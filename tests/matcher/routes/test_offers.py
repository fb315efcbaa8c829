"""What an order must pay at least, and whether what serves makes a whole chain."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from matcher.routes.offers import Price, StageOffer, cheapest, covered_to, serves
from tests.town.fleet import machine_key, make_order, make_spec

SMALL = make_spec(layers=6)


def offer(number: int, start: int, end: int, price_in: int = 1, price_out: int = 1) -> StageOffer:
    return StageOffer(
        machine_key(number).address,
        f"h:{number}",
        LayerRange(start, end),
        price_in,
        price_out,
        stake_units=100,
        used_slots=0,
        max_slots=4,
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 3), st.integers(0, 3)),
        max_size=9,
    ),
    st.integers(1, 5),
    st.integers(0, 5),
)
@settings(max_examples=300, deadline=None)
def test_the_lowest_price_is_the_lowest_of_all_pairs(
    raw: list[tuple[int, int, int, int]], tokens_in: int, tokens_out: int
) -> None:
    offers = [
        offer(n, start, min(6, start + size), price_in, price_out)
        for n, (start, size, price_in, price_out) in enumerate(raw)
    ]
    every = [
        tokens_in * a + tokens_out * b
        for a in {o.price_in for o in offers}
        for b in {o.price_out for o in offers}
        if serves([o for o in offers if o.price_in <= a and o.price_out <= b], 6)
    ]
    found = cheapest(offers, SMALL, tokens_in, tokens_out)
    assert (found is None) == (not every)
    if found is not None:
        assert tokens_in * found.price_in + tokens_out * found.price_out == min(every)
        within = [
            o for o in offers if o.price_in <= found.price_in and o.price_out <= found.price_out
        ]
        assert serves(within, 6)


def test_coverage_needs_boundaries_that_meet() -> None:
    assert serves([offer(1, 0, 3), offer(2, 3, 6)], 6)
    assert not serves([offer(1, 0, 4), offer(2, 3, 6)], 6)
    assert covered_to([offer(1, 0, 4), offer(2, 3, 6)], 6) == 4
    assert covered_to([], 6) == 0


def test_parts_of_shards_cover_what_whole_ones_do_not() -> None:
    overlapping = [offer(1, 0, 4, 7, 1), offer(2, 3, 6, 1, 1), offer(3, 1, 2, 9, 9)]
    assert serves(overlapping, 6, True) and covered_to(overlapping, 6, True) == 6
    assert cheapest(overlapping, SMALL, 1, 1) is None
    assert cheapest(overlapping, SMALL, 1, 1, True) == Price(7, 1)


def test_an_offer_is_taken_by_an_order_that_pays_both_prices_and_asks_no_more_stake() -> None:
    order = make_order(price_in=5, price_out=7, min_stake=100)
    assert offer(1, 0, 6, 5, 7).takes(order)
    assert not offer(1, 0, 6, 6, 7).takes(order) and not offer(1, 0, 6, 5, 8).takes(order)
    assert not offer(1, 0, 6, 5, 7).takes(make_order(min_stake=101))


def test_the_price_of_a_chain_is_that_of_its_dearest_stage() -> None:
    dear = [offer(1, 0, 3, 10, 1), offer(2, 3, 6, 1, 10)]
    assert cheapest(dear, SMALL, 1, 1) == Price(10, 10)
