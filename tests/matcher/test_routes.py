"""What an order must pay at least, and which chain it gets for that."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol.errors import HeadraceError, NoCapacity
from core.protocol.types import LayerRange, Order
from matcher.fleet_view import Sighting
from matcher.routes import Chosen, Offer, Price, cheapest, covered_to, find_route, offers_of, serves
from matcher.shapes import shape_of
from tests.matcher.worlds import (
    NOW_MS,
    SPEC,
    machine_key,
    make_order,
    make_spec,
    serving_at,
    standing,
)

SHAPE = shape_of(SPEC)
SMALL = make_spec(layers=6)


def offer(number: int, start: int, end: int, price_in: int = 1, price_out: int = 1) -> Offer:
    return Offer(
        machine_key(number).address, f"h:{number}", LayerRange(start, end), price_in, price_out,
        stake_units=100, used_slots=0, max_slots=4,
    )  # fmt: skip


def find(
    order: Order, *here: Sighting, excluded: frozenset[str] = frozenset(), stake: int = 500
) -> Chosen | HeadraceError:
    standings = {s.operator: standing(stake) for s in here}
    offers = offers_of(here, standings, {}, SPEC)
    return find_route(order, SPEC, SHAPE, here, offers, excluded)


def operators(found: Chosen | HeadraceError) -> list[str]:
    assert isinstance(found, Chosen), found
    return [stage.operator for stage in found.plan]


def refusal(found: Chosen | HeadraceError) -> NoCapacity:
    assert isinstance(found, NoCapacity)
    return found


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
    assert covered_to([offer(1, 0, 4), offer(2, 3, 6)]) == 4
    assert covered_to([]) == 0


def test_the_price_of_a_chain_is_that_of_its_dearest_stage() -> None:
    dear = [offer(1, 0, 3, 10, 1), offer(2, 3, 6, 1, 10)]
    assert cheapest(dear, SMALL, 1, 1) == Price(10, 10)


def test_a_machine_above_the_orders_price_is_not_used() -> None:
    dear = serving_at(1, 0, 30, price_out=10**9, tau_ms_per_layer=0.01)
    cheap = serving_at(2, 0, 30, tau_ms_per_layer=50.0)
    assert operators(find(make_order(), dear, cheap)) == [machine_key(2).address]


def test_too_low_a_price_names_the_nearest_offer_that_would_do() -> None:
    here = (serving_at(1, 0, 15, price_in=5_000_000), serving_at(2, 15, 30, price_out=20_000_000))
    found = refusal(find(make_order(), *here))
    assert found.details["nearest_offer"]
    price = {"price_in": found.details["price_in"], "price_out": found.details["price_out"]}
    assert operators(find(make_order(**price), *here)) == [machine_key(n).address for n in (1, 2)]


def test_missing_layers_are_named() -> None:
    assert refusal(find(make_order(), serving_at(1, 0, 15))).details["covered_to"] == 15


def test_machines_with_too_little_stake_for_the_order_are_not_used() -> None:
    assert "stake" in refusal(find(make_order(min_stake=501), serving_at(1, 0, 30))).why


def test_excluded_machines_are_not_used_and_said_to_be_missing() -> None:
    gone = frozenset({machine_key(1).address})
    assert "did not answer" in refusal(find(make_order(), serving_at(1, 0, 30), excluded=gone)).why


def test_full_machines_are_said_to_be_full() -> None:
    full = serving_at(1, 0, 30, active_requests=16)
    assert "slots" in refusal(find(make_order(), full)).why


def test_the_faster_of_two_chains_is_taken_and_load_turns_it_round() -> None:
    fast = serving_at(1, 0, 30, tau_ms_per_layer=1.0)
    slow = serving_at(2, 0, 30, tau_ms_per_layer=1.2)
    assert operators(find(make_order(), fast, slow)) == [machine_key(1).address]
    busy = serving_at(1, 0, 30, tau_ms_per_layer=1.0, active_requests=15)
    assert operators(find(make_order(), busy, slow)) == [machine_key(2).address]


def test_a_promise_counts_until_telemetry_shows_more() -> None:
    machine = serving_at(1, 0, 30, active_requests=3)
    standings = {machine.operator: standing()}
    assert offers_of([machine], standings, {}, SPEC)[0].used_slots == 3
    assert offers_of([machine], standings, {machine.operator: 5}, SPEC)[0].used_slots == 5
    assert offers_of([machine], standings, {machine.operator: 1}, SPEC)[0].used_slots == 3
    assert machine.alive(NOW_MS)
