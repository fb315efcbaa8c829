"""Which chain an order gets, who stands in, and that promises count at once."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from core.protocol.errors import HeadraceError, NoCapacity
from core.protocol.types import LayerRange, Order
from matcher.fleet.fleet_view import Sighting, fleet_of
from matcher.fleet.shapes import shape_of
from matcher.routes.routes import ANEW_MS, JOB_SLOTS, LEASE_MS, Chosen, LiveRoutes
from scheduler.fleet.fleet import Shard
from scheduler.routing.parallax_route import Route, RouteQuery, route
from scheduler.routing.reservations import Need
from scheduler.routing.routing_table import prepare
from tests.town.fleet import NOW_MS, SPEC, machine_key, make_job, make_order, serving_at, standing
from tests.town.orders import sign_order

SHAPE = shape_of(SPEC)
TWO = make_order()  # two requests of 42 tokens in the mean


def op(number: int) -> str:
    return machine_key(number).address


def routes_over(*here: Sighting, stake: int = 500, partial: bool = False) -> LiveRoutes:
    routes = LiveRoutes(SPEC, SHAPE, partial=partial)
    see(routes, *here, stake=stake)
    return routes


def see(routes: LiveRoutes, *here: Sighting, now_ms: int = NOW_MS, stake: int = 500) -> None:
    routes.see(here, {s.operator: standing(stake) for s in here}, now_ms)


def find(
    order: Order, *here: Sighting, excluded: frozenset[str] = frozenset(), stake: int = 500
) -> Chosen | HeadraceError:
    return found_by(routes_over(*here, stake=stake), order, NOW_MS, excluded)


def found_by(
    routes: LiveRoutes, order: Order, now_ms: int, excluded: Collection[str] = ()
) -> Chosen | HeadraceError:
    """What `take` would promise, without the promise."""
    return routes._find(order, now_ms, excluded, frozenset())


def operators(found: Chosen | HeadraceError) -> list[str]:
    assert isinstance(found, Chosen), found
    return [stage.operator for stage in found.plan]


def refusal(found: Chosen | HeadraceError) -> NoCapacity:
    assert isinstance(found, NoCapacity)
    return found


# --- whose chain ---


def test_a_machine_above_the_orders_price_is_not_used() -> None:
    dear = serving_at(1, 0, 30, price_out=10**9, tau_ms_per_layer=0.01)
    cheap = serving_at(2, 0, 30, tau_ms_per_layer=50.0)
    assert operators(find(make_order(), dear, cheap)) == [op(2)]


def test_too_low_a_price_names_the_nearest_offer_that_would_do() -> None:
    here = (serving_at(1, 0, 15, price_in=5_000_000), serving_at(2, 15, 30, price_out=20_000_000))
    found = refusal(find(make_order(), *here))
    assert found.details["nearest_offer"]
    price = {"price_in": found.details["price_in"], "price_out": found.details["price_out"]}
    assert operators(find(make_order(**price), *here)) == [op(1), op(2)]


def test_missing_layers_are_named() -> None:
    assert refusal(find(make_order(), serving_at(1, 0, 15))).details["covered_to"] == 15
    assert refusal(find(make_order())).details["covered_to"] == 0


def test_machines_with_too_little_stake_for_the_order_are_not_used() -> None:
    assert "stake" in refusal(find(make_order(min_stake=501), serving_at(1, 0, 30))).why


def test_excluded_machines_are_not_used_and_said_to_be_missing() -> None:
    gone = frozenset({op(1)})
    assert "did not answer" in refusal(find(make_order(), serving_at(1, 0, 30), excluded=gone)).why


def test_full_machines_are_said_to_be_full() -> None:
    full = serving_at(1, 0, 30, active_requests=16)
    assert "slots" in refusal(find(make_order(), full)).why


def test_requests_that_no_machine_has_kv_room_for_are_refused_and_said_so() -> None:
    small = serving_at(1, 0, 30, kv_free_tokens=41)
    found = refusal(find(TWO, small))
    assert found.details["kv_tokens"] == 42 and "KV cache" in found.why
    assert operators(find(TWO, serving_at(1, 0, 30, kv_free_tokens=42))) == [op(1)]


def test_the_faster_of_two_chains_is_taken_and_load_turns_it_round() -> None:
    fast = serving_at(1, 0, 30, tau_ms_per_layer=1.0)
    slow = serving_at(2, 0, 30, tau_ms_per_layer=1.2)
    assert operators(find(make_order(), fast, slow)) == [op(1)]
    busy = serving_at(1, 0, 30, tau_ms_per_layer=1.0, active_requests=15)
    assert operators(find(make_order(), busy, slow)) == [op(2)]


def test_whole_shards_must_meet_and_parts_need_not() -> None:
    here = (serving_at(1, 0, 20), serving_at(2, 10, 30))
    assert refusal(find(TWO, *here)).details["covered_to"] == 20
    found = found_by(routes_over(*here, partial=True), TWO, NOW_MS)
    assert isinstance(found, Chosen) and operators(found) == [op(1), op(2)]
    assert found.plan[0].layer_to == found.plan[1].layer_from


# --- promises ---


def test_no_machine_stands_twice_in_a_plan() -> None:
    # The fastest way is through 1, 2 and 1 again.
    near = {"rho_ms": {op(2): 0.0}}
    slow = serving_at(1, 0, 30, bandwidth_gb_s=1.0, **near)
    fast = serving_at(2, 10, 20, bandwidth_gb_s=1000.0, tflops=1000.0)
    routes = routes_over(slow, fast, partial=True)
    fastest = routes._router.route(0)
    assert isinstance(fastest, Route)
    assert [shard.machine_id for shard in fastest.stages] == [op(1), op(2), op(1)]
    found = found_by(routes, TWO, NOW_MS)
    assert isinstance(found, Chosen)
    assert [(s.operator, s.layer_from, s.layer_to) for s in found.plan] == [(op(1), 0, 30)]
    assert found.latency_ms > fastest.latency_ms
    assert [chain.plan for chain in routes.disjoint(NOW_MS)] == [found.plan]


def test_a_promise_counts_at_once_and_ends_with_its_lease_or_release() -> None:
    here = (serving_at(1, 0, 30, max_requests=1), serving_at(2, 0, 30, max_requests=1))
    routes = routes_over(*here)
    taken = [operators(routes.take(f"job {n}", TWO, NOW_MS))[0] for n in range(2)]
    assert set(taken) == {op(1), op(2)}
    assert "taken" in refusal(routes.take("job 3", TWO, NOW_MS)).why
    routes.book.release("job 0", NOW_MS + 1)
    assert operators(routes.take("job 3", TWO, NOW_MS + 1)) == taken[:1]
    assert "taken" in refusal(routes.take("job 4", TWO, NOW_MS + LEASE_MS)).why
    assert operators(routes.take("job 4", TWO, NOW_MS + LEASE_MS + 1)) == taken[1:]


def test_a_job_is_promised_a_slot_and_what_more_it_may_use_makes_nobody_full() -> None:
    here = (serving_at(1, 0, 30, max_requests=20), serving_at(2, 0, 30, max_requests=20))
    routes = routes_over(*here)
    many = make_order(requests=50, max_tokens_in=1000, max_tokens_out=1000)  # 40 tokens each
    taken = [operators(routes.take(f"job {n}", many, NOW_MS))[0] for n in range(4)]
    lease = routes.book.lease("job 0")
    assert lease is not None
    assert lease.needs == {taken[0]: Need(1, 40, JOB_SLOTS - 1)}
    assert sorted(taken) == sorted([op(1), op(2)] * 2), "where less may come is faster"
    assert [offer.used_slots for offer in routes.offers(NOW_MS)] == [2, 2]
    for n in range(4, 40):
        assert operators(routes.take(f"job {n}", many, NOW_MS))
    assert "taken" in refusal(routes.take("job 40", many, NOW_MS)).why


def test_telemetry_adds_what_others_use_and_does_not_count_our_promise_twice() -> None:
    routes = routes_over(serving_at(1, 0, 30, active_requests=3))
    assert routes.offers(NOW_MS)[0].used_slots == 3
    routes.take("job", TWO, NOW_MS)
    assert routes.offers(NOW_MS)[0].used_slots == 4
    later = {"seen_ms": NOW_MS + 2000, "sent_at_ms": NOW_MS + 2000}
    see(routes, serving_at(1, 0, 30, active_requests=5, **later), now_ms=NOW_MS + 2000)
    assert routes.offers(NOW_MS + 2000)[0].used_slots == 5
    routes.book.release("job", NOW_MS + 2001)
    assert routes.offers(NOW_MS + 2001)[0].used_slots == 4, "until the machine says otherwise"


def test_a_restarted_matcher_holds_what_unfinished_jobs_were_promised() -> None:
    job = make_job(sign_order(TWO), [(1, 0, 30)])
    routes = LiveRoutes(SPEC, SHAPE)
    routes.restore([job, replace(job, job_id="0xother", finished_at_s=7)], NOW_MS)
    see(routes, serving_at(1, 0, 30))
    assert routes.offers(NOW_MS)[0].used_slots == 1
    assert routes.book.promised(NOW_MS) == {op(1): 1}


# --- staying current ---


def test_what_changes_by_the_second_makes_no_new_router() -> None:
    rho = {op(2): 10.0}
    here = (serving_at(1, 0, 15, rho_ms=rho), serving_at(2, 15, 30), serving_at(3, 0, 15))
    routes = routes_over(*here)
    made = routes.routers
    first = found_by(routes, TWO, NOW_MS)
    assert found_by(routes, TWO, NOW_MS) == first
    now = NOW_MS + ANEW_MS
    slower = serving_at(
        1, 0, 15, rho_ms={op(2): 10.9}, tau_ms_per_layer=9.0, active_requests=4, seen_ms=now
    )
    see(routes, slower, *here[1:], now_ms=now)
    assert operators(found_by(routes, TWO, now)) == [op(3), op(2)]
    see(routes, *here[1:], now_ms=now)  # the slow one left
    assert routes.routers == made
    assert refusal(found_by(routes, TWO, now, {op(3)})).why
    see(routes, replace(here[0], seen_ms=now + 1), *here[1:], now_ms=now + 1)
    assert routes.routers == made, "and came back as it was"
    assert operators(found_by(routes, TWO, now + 1, {op(3)})) == [op(1), op(2)]


@pytest.mark.parametrize(
    "change",
    [
        {"layers": LayerRange(0, 14)},
        {"rho_ms": {op(2): 13.0}},
        {"link_mb_s": {op(2): 0.9}},
        {"max_requests": 99},
    ],
)
def test_other_shards_links_or_hardware_make_a_new_router(change: dict[str, object]) -> None:
    links = {"rho_ms": {op(2): 10.0}, "link_mb_s": {op(2): 2.0}}
    here = (serving_at(1, 0, 15, **links), serving_at(2, 15, 30))
    routes = routes_over(*here)
    before = routes.routers
    later = NOW_MS + ANEW_MS
    record = {**links, **change, "seen_ms": later}
    layers = record.pop("layers", LayerRange(0, 15))
    assert isinstance(layers, LayerRange)
    see(routes, serving_at(1, layers.start, layers.end, **record), here[1], now_ms=later)
    assert routes.routers == before + 1


def test_latencies_that_move_all_the_time_make_few_routers() -> None:
    routes = LiveRoutes(SPEC, SHAPE)
    for tick in range(20):
        now = NOW_MS + tick * 1000
        rho = {op(2): 10.0 * (1 + tick)}
        see(
            routes,
            serving_at(1, 0, 15, rho_ms=rho, seen_ms=now, sequence=tick),
            serving_at(2, 15, 30),
            now_ms=now,
        )
    assert routes.routers <= 2 + 20_000 // ANEW_MS


def test_live_answers_equal_routing_from_nothing_over_any_life() -> None:
    """Machines come, go, slow down and fill up; the kept router says what a fresh one says."""
    for seed in range(12):
        draw = random.Random(seed)
        partial = seed % 2 == 0
        routes, now = LiveRoutes(SPEC, SHAPE, partial=partial), NOW_MS
        cuts = [(0, 10), (10, 20), (20, 30), (0, 15), (15, 30), (5, 20)]
        for _ in range(25):
            now += draw.choice([100, 6_000])
            here = [
                serving_at(
                    n,
                    *cuts[n % len(cuts)],
                    tau_ms_per_layer=draw.choice([0.5, 1.0, 2.0]),
                    active_requests=draw.choice([0, 3, 15, 16]),
                    kv_free_tokens=draw.choice([30, 10_000]),
                    rho_ms={op((n * 7) % 9): 5.0 + n},
                    seen_ms=now,
                    sent_at_ms=now,
                    sequence=now,
                )
                for n in range(9)
                if draw.random() < 0.85
            ]
            see(routes, *here, now_ms=now)
            gone = frozenset(op(n) for n in range(9) if draw.random() < 0.15)
            found = found_by(routes, TWO, now, gone)
            shards = [Shard(s.operator, s.record.layers) for s in here if s.record.layers]
            fresh = route(
                prepare(fleet_of(here), SHAPE, shards),
                RouteQuery(
                    partial=partial,
                    excluded=gone,
                    in_flight={s.operator: s.record.active_requests for s in here},
                    kv_needed_tokens=42,
                    kv_free_tokens={s.operator: s.record.kv_free_tokens for s in here},
                ),
            )
            assert isinstance(found, Chosen) == isinstance(fresh, Route)
            if isinstance(found, Chosen) and isinstance(fresh, Route):
                assert found.latency_ms == pytest.approx(fresh.latency_ms)


# --- standing in ---

REPLICAS = (
    serving_at(1, 0, 10),
    serving_at(2, 10, 20),
    serving_at(3, 20, 30),
    serving_at(4, 0, 10),
    serving_at(5, 10, 20),
    serving_at(6, 20, 30),
    serving_at(7, 10, 15),
    serving_at(8, 15, 20),
)


def test_disjoint_chains_share_no_machine() -> None:
    routes = routes_over(*REPLICAS)
    first, second = (operators(chain) for chain in routes.disjoint(NOW_MS))
    assert first == operators(found_by(routes, TWO, NOW_MS))
    assert not set(first) & set(second)


def test_who_stands_in_for_a_stage_fits_between_those_that_stay() -> None:
    routes = routes_over(*REPLICAS)
    chain = operators(found_by(routes, TWO, NOW_MS))
    span, dead = LayerRange(10, 20), chain[1]
    found = routes.stand_in(
        TWO, span, NOW_MS, before=chain[0], after=chain[2], excluded={dead, chain[0], chain[2]}
    )
    assert isinstance(found, Chosen) and dead not in operators(found)
    assert (found.plan[0].layer_from, found.plan[-1].layer_to) == (10, 20)
    both = routes.stand_in(TWO, span, NOW_MS, before=chain[0], excluded={op(2), op(5)})
    assert operators(both) == [op(7), op(8)]
    nobody = refusal(routes.stand_in(TWO, span, NOW_MS, excluded={op(2), op(5), op(7)}))
    assert nobody.details["layers"] == [10, 20]
    assert operators(found_by(routes, TWO, NOW_MS)) == chain, "asking changes nothing"


def test_only_machines_that_may_ever_serve_an_order_are_waited_for() -> None:
    here = (
        serving_at(1, 0, 30, active_requests=16),
        serving_at(2, 0, 30, price_in=10**9),
        serving_at(3, 0, 30, kv_free_tokens=10),
    )
    routes = routes_over(*here)
    assert routes.would_do(TWO) == {op(1)}
    assert routes.would_do(TWO, {op(1)}) == frozenset()


# --- a chain that broke ---


def mend(routes: LiveRoutes, *gone: int, order: Order = TWO) -> Chosen | HeadraceError:
    """For a chain of machines 1 (0–10), 2 (10–20) and 3 (20–30) of which these are gone."""
    plan = make_job(sign_order(order), [(1, 0, 10), (2, 10, 20), (3, 20, 30)]).plan
    return routes.mend("goes on", order, plan, NOW_MS, frozenset(map(op, gone)))


def three(*more: Sighting) -> LiveRoutes:
    return routes_over(serving_at(1, 0, 10), serving_at(2, 10, 20), serving_at(3, 20, 30), *more)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_whoever_is_left_of_a_broken_chain_stays_in_its_place(stage: int) -> None:
    spare = serving_at(7, 10 * stage, 10 * stage + 10, tau_ms_per_layer=0.001)
    found = mend(three(spare), stage + 1)
    assert operators(found) == [op(7) if s == stage else op(s + 1) for s in range(3)]
    assert isinstance(found, Chosen)
    assert len(found.endpoints) == 3


def test_a_faster_machine_does_not_push_out_one_that_remembers() -> None:
    fast = [serving_at(n, 10 * (n - 7), 10 * (n - 6), tau_ms_per_layer=0.001) for n in (7, 8, 9)]
    assert operators(mend(three(*fast), 2)) == [op(1), op(8), op(3)]


def test_two_gaps_are_filled_and_by_two_machines() -> None:
    found = mend(three(serving_at(7, 0, 10), serving_at(8, 20, 30)), 1, 3)
    assert operators(found) == [op(7), op(2), op(8)]


def test_one_gap_may_be_filled_by_several_machines() -> None:
    found = mend(three(serving_at(7, 10, 15), serving_at(8, 15, 20)), 2)
    assert operators(found) == [op(1), op(7), op(8), op(3)]


def test_who_holds_other_layers_by_now_is_no_more_left_of_the_chain() -> None:
    moved = routes_over(
        serving_at(1, 0, 10), serving_at(2, 0, 10), serving_at(3, 20, 30), serving_at(7, 10, 20)
    )
    assert operators(mend(moved)) == [op(1), op(7), op(3)]


def test_a_gap_that_nobody_fills_is_no_chain() -> None:
    refusal(mend(three(serving_at(7, 10, 19)), 2))
    refusal(mend(three(), 1, 2, 3))


def test_a_mended_chain_is_promised_its_room_and_a_full_one_is_none() -> None:
    routes = three(serving_at(7, 10, 20))
    assert isinstance(mend(routes, 2), Chosen)
    lease = routes.book.lease("goes on")
    assert lease is not None
    assert set(lease.needs) == {op(1), op(7), op(3)}
    full = routes_over(
        serving_at(1, 0, 10),
        serving_at(3, 20, 30, active_requests=16),
        serving_at(7, 10, 20),
        serving_at(2, 10, 20),
    )
    assert "no room" in refusal(mend(full, 2)).why


def test_an_order_whose_price_a_stage_has_left_behind_goes_on_without_it() -> None:
    dearer = serving_at(3, 20, 30, price_out=10**9)
    routes = routes_over(serving_at(1, 0, 10), serving_at(2, 10, 20), dearer, serving_at(7, 20, 30))
    assert operators(mend(routes)) == [op(1), op(2), op(7)]
