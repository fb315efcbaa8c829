"""Orders take turns over the flow, and pass machines over whose KV cache is nearly promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import count

import pytest

from core.protocol.errors import HeadraceError, NoCapacity
from core.protocol.types import Order
from matcher.fleet.fleet_view import Sighting
from matcher.fleet.shapes import shape_of
from matcher.routes.round_robin import PromisedCache
from matcher.routes.routes import Chosen, LiveRoutes
from tests.town.fleet import NOW_MS, SPEC, machine_key, make_order, serving_at, standing

#: One request of 42 tokens.
ONE = make_order(requests=1, max_tokens_in=10, max_tokens_out=32)
_NAMES = (f"job {number}" for number in count())


def op(number: int) -> str:
    return machine_key(number).address


def routes_over(*here: Sighting, partial: bool = True) -> LiveRoutes:
    routes = LiveRoutes(SPEC, shape_of(SPEC), partial=partial, by_turns=True)
    routes.see(here, {one.operator: standing() for one in here}, NOW_MS)
    return routes


def taken(
    routes: LiveRoutes, order: Order = ONE, excluded: Collection[str] = ()
) -> Chosen | HeadraceError:
    return routes.take(next(_NAMES), order, NOW_MS, excluded)


def chain(found: Chosen | HeadraceError) -> list[str]:
    assert isinstance(found, Chosen), found
    return [stage.operator for stage in found.plan]


#: Two machines for each half; the first of each is three times as fast.
HALVES = (
    serving_at(1, 0, 15, bandwidth_gb_s=30.0, max_requests=400, kv_free_tokens=10**6),
    serving_at(2, 0, 15, bandwidth_gb_s=10.0, max_requests=400, kv_free_tokens=10**6),
    serving_at(3, 15, 30, bandwidth_gb_s=30.0, max_requests=400, kv_free_tokens=10**6),
    serving_at(4, 15, 30, bandwidth_gb_s=10.0, max_requests=400, kv_free_tokens=10**6),
)


def test_orders_are_spread_as_the_flow_is() -> None:
    routes = routes_over(*HALVES)
    visits = Counter(operator for _ in range(200) for operator in chain(taken(routes)))
    for fast, slow in ((1, 2), (3, 4)):
        assert visits[op(fast)] + visits[op(slow)] == 200
        assert visits[op(fast)] == pytest.approx(150, abs=2)


def test_an_order_of_many_requests_counts_as_many_turns() -> None:
    routes = routes_over(*HALVES)
    eight = make_order(requests=8, max_tokens_in=80, max_tokens_out=256)
    first = chain(taken(routes, eight))[0]
    assert first == op(1)
    assert [chain(taken(routes))[0] for _ in range(2)] == [op(2)] * 2


def test_a_machine_over_the_mark_is_passed_over_until_something_ends() -> None:
    # 126 tokens are three requests; under 85 % of it are two.
    small = serving_at(1, 0, 30, kv_free_tokens=126)
    other = serving_at(2, 0, 30, kv_free_tokens=10_000, bandwidth_gb_s=0.1)
    routes = routes_over(small, other)
    names = [f"held {number}" for number in range(4)]
    held = {name: routes.take(name, ONE, NOW_MS) for name in names}
    visits = Counter(operator for found in held.values() for operator in chain(found))
    assert visits == {op(1): 2, op(2): 2}
    for name, found in held.items():
        if chain(found) == [op(1)]:
            routes.book.release(name, NOW_MS)
    assert chain(taken(routes)) == [op(1)]


def test_where_all_are_over_the_mark_an_order_waits_as_for_a_busy_fleet() -> None:
    routes = routes_over(serving_at(1, 0, 30, kv_free_tokens=90))
    assert isinstance(taken(routes), Chosen)
    refused = taken(routes)
    assert isinstance(refused, NoCapacity) and refused.details["busy"] is True
    assert routes.would_do(ONE) == {op(1)}


def test_turns_that_lead_nowhere_do_not_hide_a_chain() -> None:
    # The flow is all over machine 1, which this order may not use.
    here = (serving_at(1, 0, 30), serving_at(2, 0, 30, bandwidth_gb_s=0.05))
    routes = routes_over(*here)
    assert {chain(taken(routes))[0] for _ in range(5)} == {op(1)}, "under 5 % is left out"
    assert chain(taken(routes, excluded={op(1)})) == [op(2)]
    dear = make_order(requests=1, max_tokens_in=10, max_tokens_out=32, price_out=0)
    assert isinstance(taken(routes, dear), NoCapacity)


def test_a_machine_that_is_gone_is_never_next() -> None:
    routes = routes_over(*HALVES)
    left = [one for one in HALVES if one.operator != op(1)]
    routes.see(left, {one.operator: standing() for one in left}, NOW_MS + 1)
    assert {chain(taken(routes))[0] for _ in range(20)} == {op(2)}


def test_overlapping_slices_are_used_in_part() -> None:
    routes = routes_over(serving_at(1, 0, 20), serving_at(2, 10, 30))
    found = taken(routes)
    assert isinstance(found, Chosen)
    assert [(s.layer_from, s.layer_to) for s in found.plan] == [(0, 20), (20, 30)]
    assert found.latency_ms > 0
    assert isinstance(taken(routes_over(*HALVES[:1])), NoCapacity), "half a model is no chain"


def _caches() -> Iterator[tuple[PromisedCache, int, bool]]:
    yield PromisedCache(100, 100), 100, True
    yield PromisedCache(100, 100), 101, False
    yield PromisedCache(100, 90), 75, True
    yield PromisedCache(100, 90), 76, False
    yield PromisedCache(100, -5), 1, False
    yield PromisedCache(0, 0), 1, False


@pytest.mark.parametrize(("cache", "tokens", "takes"), _caches())
def test_the_mark_is_held_but_for_an_idle_machine(
    cache: PromisedCache, tokens: int, takes: bool
) -> None:
    assert cache.takes(tokens) is takes
