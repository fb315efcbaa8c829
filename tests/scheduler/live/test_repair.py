"""The mildest step that restores coverage is taken, nobody healthy is sent away, and nothing moves
without need.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.measure.events import apply
from benchmarks.scheduler.robustness import Tally, fuzz_cluster, fuzz_stream
from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Links, Machine
from scheduler.live.churn import Cluster, Joined, Left, Member, Reported, Ticked
from scheduler.live.holdings import is_whole
from scheduler.live.migrate import throughput
from scheduler.live.repair import decide
from scheduler.live.standby import Rules
from scheduler.routing.parallax_route import Route, RouteQuery, route
from scheduler.routing.routing_table import prepare
from tests.scheduler.worlds import holding, toy_model

NOW = 1_000_000


def serving(layers: int, *held: tuple[str, int, int, int]) -> Cluster:
    """A cluster whose machines (id, capacity, start, end) serve; end 0 is standby."""
    members = {}
    for machine_id, most, start, end in held:
        told = LayerRange(start, end) if end else None
        members[machine_id] = Member(holding(machine_id, most), 1, NOW - 9, told, told)
    return Cluster(toy_model(layers), Links(default_ms=1.0), members)


def left(cluster: Cluster, machine_id: str) -> Cluster:
    members = {i: m for i, m in cluster.members.items() if i != machine_id}
    return Cluster(cluster.model, cluster.links, members)


def told(cluster: Cluster) -> dict[str, tuple[int, int]]:
    return {i: (layers.start, layers.end) for i, layers in cluster.placement}


@pytest.mark.parametrize("method", ["utility", "score", "helix", "memory"])
def test_whoever_plans_anew_makes_slices_that_are_used_whole(method: str) -> None:
    before = serving(8, ("a", 4, 0, 0), ("b", 4, 0, 0), ("c", 4, 0, 0), ("d", 4, 0, 0))
    after, change = decide(before, NOW, Rules(method=method, partial=False))
    assert change.step == "anew" and change.is_covered
    assert is_whole(after.fleet, after.model, dict(after.placement), False)
    assert decide(after, NOW, Rules(method=method, partial=False))[1].told == ()


def test_a_method_that_finds_no_plan_leaves_it_to_the_utility_plan_and_says_so() -> None:
    before = serving(2, ("a", 2, 0, 0), ("b", 2, 0, 0), ("c", 2, 0, 0))
    after, change = decide(before, NOW, Rules(method="memory", partial=False))
    assert change.is_covered and len(after.placement) == 3
    assert any("method memory finds no plan" in line for line in change.why)


def test_spare_machine_lost_moves_nothing() -> None:
    before = serving(6, ("a", 3, 0, 3), ("b", 3, 3, 6), ("c", 3, 3, 6))
    after, change = apply(before, Left("c", 1, NOW), NOW)
    assert (change.step, change.told, change.is_covered) == ("none", (), True)
    assert told(after) == {"a": (0, 3), "b": (3, 6)}


def test_overlap_covers_a_loss_without_any_move() -> None:
    """Partial slices: whole shards would not meet any more."""
    before = serving(6, ("a", 4, 0, 4), ("b", 4, 2, 6), ("c", 2, 2, 4))
    _, change = apply(before, Left("c", 1, NOW), NOW)
    assert change.step == "none" and change.is_covered


def test_one_machine_is_extended_by_what_is_missing() -> None:
    before = serving(6, ("a", 4, 0, 3), ("b", 2, 3, 4), ("c", 2, 4, 6))
    after, change = apply(before, Left("b", 1, NOW), NOW)
    assert change.step == "extend" and change.is_covered
    assert [(t.machine_id, t.load_bytes) for t in change.told] == [("a", 100)]
    assert told(after) == {"a": (0, 4), "c": (4, 6)}
    assert after.members["a"].serves == LayerRange(0, 3), "told and loaded are two things"


def test_one_machine_gives_up_what_others_hold_to_take_the_hole() -> None:
    before = serving(6, ("a", 3, 0, 3), ("a2", 2, 0, 2), ("b", 3, 3, 6))
    after, change = apply(left(before, ""), Left("b", 1, NOW), NOW)
    assert not change.is_covered and change.step == "impossible"
    assert told(after)["a"] == (0, 3)
    wider = serving(5, ("a", 3, 0, 3), ("a2", 2, 0, 2), ("b", 2, 3, 5))
    after, change = apply(wider, Left("b", 1, NOW), NOW)
    assert change.step == "extend" and change.is_covered
    assert told(after) == {"a": (2, 5), "a2": (0, 2)}


def test_standby_fills_the_hole_where_nobody_can_be_extended() -> None:
    before = serving(6, ("a", 3, 0, 3), ("b", 3, 3, 6))
    before = apply(before, Left("b", 1, NOW), NOW)[0]
    after, change = apply(before, Joined(holding("s", 4), 1, NOW + 1), NOW + 1)
    assert change.step == "standby" and change.is_covered
    assert told(after)["s"] == (2, 6)
    assert [t.machine_id for t in change.told] == ["s"]


def test_several_machines_share_a_large_hole() -> None:
    before = serving(8, ("a", 2, 0, 2), ("b", 6, 2, 8))
    before = apply(before, Left("b", 1, NOW), NOW)[0]
    for i in range(3):
        before, change = apply(before, Joined(holding(f"s{i}", 2), 1, NOW + i), NOW + i)
    assert change.is_covered
    assert told(before)["a"] == (0, 2)


def test_redundant_machines_move_into_the_hole_before_everybody_is_planned_anew() -> None:
    before = serving(6, ("a", 2, 0, 2), ("a2", 2, 0, 2), ("a3", 2, 0, 2), ("b", 4, 2, 6))
    after, change = apply(before, Left("b", 1, NOW), NOW)
    assert change.step == "several" and change.is_covered
    assert sorted(told(after).values()) == [(0, 2), (2, 4), (4, 6)]
    assert len(change.told) == 2


def test_w12_standby_machines_form_a_pipeline_of_their_own_at_once() -> None:
    before = serving(6, ("a", 6, 0, 6))
    after, change = apply(before, Joined(holding("s", 3), 1, NOW), NOW)
    assert change.told, "a machine alone already helps where the model is thinnest"
    both = serving(6, ("a", 6, 0, 6), ("s", 3, 0, 0), ("t", 3, 0, 0))
    after, change = apply(both, Ticked(NOW), NOW)
    ranges = sorted(told(after)[i] for i in "st")
    assert ranges == [(0, 3), (3, 6)] and change.step == "none"


def test_w8_machine_too_small_for_a_layer_stands_by_without_harm() -> None:
    before = serving(6, ("a", 6, 0, 6))
    after, change = apply(before, Joined(Machine("tiny", 10, 1.0, 1.0), 1, NOW), NOW)
    assert change.is_covered and "tiny" not in told(after)


def test_w9_rejoin_with_the_same_id_does_not_lose_coverage_silently() -> None:
    before = serving(6, ("a", 3, 0, 3), ("b", 3, 3, 6))
    after, change = apply(before, Joined(holding("b", 3), 2, NOW), NOW)
    assert change.is_covered
    assert [t.machine_id for t in change.told] == ["b"] and told(after)["b"] == (3, 6)
    assert after.members["b"].serves is None


def test_join_goes_where_supply_is_least() -> None:
    before = serving(6, ("a", 3, 0, 3), ("b", 3, 3, 6), ("c", 3, 0, 3))
    after, _ = apply(before, Joined(holding("n", 2), 1, NOW), NOW)
    start, end = told(after)["n"]
    assert start >= 3 and end <= 6


def test_balance_moves_one_machine_only_if_it_is_worth_it_and_rested() -> None:
    before = serving(4, ("a", 2, 0, 2), ("b", 2, 0, 2), ("c", 2, 0, 2), ("d", 2, 2, 4))
    rules = Rules(load_bytes_per_s=1e6)
    same, change = apply(before, Ticked(NOW), NOW, Rules(worth_share=5.0))
    assert change.told == () and same.placement == before.placement
    after, change = apply(before, Ticked(NOW), NOW, rules)
    assert change.step == "balance" and len(change.told) == 1
    fleet, model = before.fleet, before.model
    gain = throughput(fleet, model, dict(after.placement)) / throughput(
        fleet, model, dict(before.placement)
    )
    assert gain >= 1.15
    again, change = apply(after, Ticked(NOW + 1), NOW + 1, rules)
    assert change.told == () and again.placement == after.placement


def test_balance_never_breaks_what_serves_now() -> None:
    """The second holder of the thin layers has not loaded them yet."""
    before = serving(4, ("a", 2, 0, 2), ("b", 2, 0, 2), ("c", 2, 0, 2), ("d", 2, 2, 4))
    members = {
        i: Member(m.machine, 1, m.joined_ms, m.told, None if i in "bc" else m.serves)
        for i, m in before.members.items()
    }
    loading = Cluster(before.model, before.links, members)
    after, change = apply(loading, Ticked(NOW), NOW, Rules(load_bytes_per_s=1e6))
    assert all(t.machine_id != "a" for t in change.told)
    assert is_whole(after.fleet, after.model, dict(after.serving))


def test_reports_make_layers_serve_and_routes_follow() -> None:
    cluster = Cluster(toy_model(4), Links(default_ms=1.0))
    for i, name in enumerate("ab"):
        cluster, change = apply(cluster, Joined(holding(name, 2), 1, NOW + i), NOW + i)
    assert change.is_covered and cluster.serving == ()
    for name, layers in dict(cluster.placement).items():
        cluster, _ = apply(cluster, Reported(name, 1, NOW + 10, layers), NOW + 10)
    assert cluster.serving == cluster.placement
    found = route(prepare(cluster.fleet, cluster.model, cluster.serving), RouteQuery(partial=True))
    assert isinstance(found, Route)


WHOLE = Rules(partial=False, method="score")


def test_standby_takes_the_hole_before_anybody_who_serves_reloads() -> None:
    before = serving(6, ("a", 6, 0, 3), ("b", 3, 3, 6))
    both = replace(before, members={**before.members, "s": Member(holding("s", 3), 1, NOW)})
    after, change = apply(both, Left("b", 1, NOW), NOW)
    assert change.step == "standby" and [t.machine_id for t in change.told] == ["s"]
    assert told(after)["a"] == (0, 3) and "layers 3-5 were missing" in change.reason


def test_whole_slices_are_filled_so_that_their_ends_meet() -> None:
    """Overlap does not help where a request runs through whole slices."""
    before = serving(6, ("a", 4, 0, 4), ("b", 4, 2, 6), ("c", 2, 0, 2), ("s", 2, 0, 0))
    _, partial = apply(before, Left("c", 1, NOW), NOW)
    assert partial.step == "none"
    after, change = apply(before, Left("c", 1, NOW), NOW, WHOLE)
    assert change.step == "standby" and change.is_covered
    assert told(after)["s"] in {(0, 2), (4, 6)}
    assert told(after)["a"] == (0, 4) and told(after)["b"] == (2, 6)


def test_what_an_owner_fixed_counts_and_is_told_nothing() -> None:
    before = serving(6, ("a", 6, 0, 3), ("b", 3, 3, 6), ("s", 3, 0, 0))
    members = {i: replace(member, fixed=i != "s") for i, member in before.members.items()}
    fixed = replace(before, members=members)
    _, change = apply(fixed, Left("b", 1, NOW), NOW)
    assert change.step == "standby" and [t.machine_id for t in change.told] == ["s"]
    alone, change = apply(
        replace(fixed, members={i: members[i] for i in "ab"}), Left("b", 1, NOW), NOW
    )
    assert change.step == "impossible" and told(alone) == {"a": (0, 3)}, "it could hold all six"


def test_what_is_short_is_said() -> None:
    _, change = apply(serving(9, ("a", 3, 0, 3), ("b", 3, 3, 6)), Ticked(NOW), NOW)
    assert change.step == "impossible" and not change.is_covered
    assert "6 of 9 layers" in change.reason and "300 bytes" in change.reason


def test_the_first_plan_waits_for_the_machines_asked_for_and_nothing_is_told() -> None:
    rules = Rules(min_machines=2)
    first, change = apply(
        Cluster(toy_model(4), Links(default_ms=1.0)), Joined(holding("a", 4), 1, NOW), NOW, rules
    )
    assert change.step == "waiting" and not change.told and not change.is_covered
    _, change = apply(first, Joined(holding("b", 4), 1, NOW), NOW, rules)
    assert change.step == "anew" and len(change.told) == 2 and change.why


def test_least_served_forbids_a_move_that_stops_too_much() -> None:
    before = serving(4, ("a", 2, 0, 2), ("b", 2, 0, 2), ("c", 2, 0, 2), ("d", 2, 2, 4))
    rules = Rules(load_bytes_per_s=1e6, partial=False)
    assert apply(before, Ticked(NOW), NOW, rules)[1].step == "balance"
    even = Rules(load_bytes_per_s=1e6, partial=False, load_spread=0.6)
    assert apply(before, Ticked(NOW), NOW, even)[1].step == "none"
    unserved = Rules(load_bytes_per_s=1e6, partial=False, least_served=1.01)
    assert apply(before, Ticked(NOW), NOW, unserved)[1].step == "none"


def test_planned_anew_machines_that_are_alike_keep_what_they_hold() -> None:
    """Nobody is there for the middle: all must reload something, but nobody changes ends."""
    before = serving(8, ("a", 4, 4, 7), ("b", 4, 0, 3), ("c", 2, 3, 4))
    after, change = apply(before, Left("c", 1, NOW), NOW, WHOLE)
    assert change.is_covered
    assert told(after) == {"a": (4, 8), "b": (0, 4)}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_any_stream_of_events_keeps_every_promise(seed: int) -> None:
    fuzz_stream(seed, Tally())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_any_fleet_is_planned_validated_and_routed(seed: int) -> None:
    fuzz_cluster(seed, Tally())
