"""Parallax's own tests as a checklist: 33 guarantees that any successor must keep.

Where ours is another way to the same guarantee, the test says so. Items held elsewhere:

| item | held by |
|---|---|
| 1 capacity with embedding ≤ without | test_costs: test_ends_are_charged_by_position,
  test_more_memory_never_lowers_a_capacity |
| 2 seven exact splits | test_water_fill: test_known_splits_in_proportion_to_compute (positions:
  here) |
| 3 lightest layer tracked, join adds, leave restores | test_rebalance:
  test_join_starts_at_the_layer_with_least_ram_capacity,
  test_join_respects_capacity_and_leave_restores_the_loads_exactly |
| 9 leftovers never duplicated | test_allocate:
  test_every_allocation_validates_and_ignores_input_order |
| 16 one, two and three machines | test_parallax_route:
  test_one_two_and_three_machine_chains_cost_stages_plus_hops |
| 17 latency missing both ways | test_parallax_route: test_missing_latency_both_ways_means_no_route
  |
| 18 full range beats a useless overlap | test_parallax_route:
  test_full_range_machine_beats_a_useless_overlap |
| 31 three machines of 22 of 28 layers | test_rebalance:
  test_three_machines_keep_coverage_through_every_leave_and_rejoin |
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from benchmarks.scheduler.routers.fixed import FixedRouter
from core.protocol.types import LayerRange
from scheduler.fleet.costs import Position, capacity, kv_tokens, position_of
from scheduler.fleet.fleet import Fleet, Links, Machine, ModelShape
from scheduler.fleet.kinds import pool_of
from scheduler.live.rebalance import (
    coefficient_of_variation,
    layer_loads,
    should_rebalance,
)
from scheduler.live.standby import Rules
from scheduler.parallax.allocate import AllocateOptions, Allocation, allocate, pipeline_ms
from scheduler.parallax.assemble import split
from scheduler.parallax.greedy_cover import greedy_patterns
from scheduler.routing.parallax_route import NoRoute, Route, RouteQuery, disjoint_backups, route
from scheduler.routing.routing_table import prepare
from scheduler.simulate.dispatch.estimate import KvEstimate
from tests.papers.index import check
from tests.papers.swarm import ALL, HALF, Swarm, operator
from tests.scheduler.worlds import fleet_of, holding, leave, shard, toy_model

KV_MODEL = ModelShape(6, 100, 0, 0, False, 8, 1e9, kv_bytes_per_token_per_layer=1)


def sizes(plan: Allocation, fleet: Fleet) -> list[list[int]]:
    """Layers that the machines of each pipeline could hold."""
    model = toy_model(10**4)
    return sorted(
        sorted(
            (capacity(fleet.by_id[s.machine_id], model, Position.PLAIN) for s in p), reverse=True
        )
        for p in plan.pipelines
    )


def counts(plan: Allocation) -> list[list[int]]:
    """Layers that the stages of each pipeline were given."""
    return [[len(s.layers) for s in pipeline] for pipeline in plan.pipelines]


# --- allocation --------------------------------------------------------------------------------


def test_item_02_a_split_respects_what_each_position_holds() -> None:
    model = toy_model(21, embedding_bytes=250)
    machines = [holding(f"m{i}", c, tflops=t) for i, (c, t) in enumerate(((13, 9), (9, 4), (6, 2)))]
    pipeline = split(machines, model, "tflops")
    assert sum(len(s.layers) for s in pipeline) == 21
    for (_, layers), machine in zip(pipeline, machines, strict=True):
        assert 1 <= len(layers) <= capacity(machine, model, position_of(layers, model))
    assert len(pipeline[0].layers) == 10  # 13 less the embedding's 2.5, rounded down


@pytest.mark.parametrize("method", ["dp", "patterns", "greedy"])
def test_item_04_six_equal_nodes_make_two_pipelines_of_twelve(method: str) -> None:
    plan = allocate(fleet_of(*[12] * 6), toy_model(36), AllocateOptions(method=method))
    assert counts(plan) == [[12, 12, 12], [12, 12, 12]]


def test_item_05_twenty_two_layers_make_two_triples_or_one_pair_as_alpha_asks() -> None:
    """Theirs: greedy one pair, DP two 13/6/3. Ours: the one that Z(k) prefers, both proven; greedy
    finds two pipelines too.
    """
    fleet = fleet_of(13, 13, 6, 6, 3, 3)
    two = allocate(fleet, toy_model(22), AllocateOptions(alpha=2.0, t_comp_ms=0.0, r_rtt_ms=1.0))
    assert sizes(two, fleet) == [[13, 6, 3], [13, 6, 3]]
    one = allocate(fleet, toy_model(22), AllocateOptions(alpha=0.5, t_comp_ms=0.0, r_rtt_ms=1.0))
    assert sizes(one, fleet) == [[13, 13]]
    assert two.gap == one.gap == 0


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(14, [[13, 3], [13, 3]]), (7, [[6, 3], [6, 3], [13], [13]])],
)
def test_item_05_greedy_answers_are_fixed(layers: int, expected: list[list[int]]) -> None:
    pool = pool_of(fleet_of(13, 13, 6, 6, 3, 3).machines, toy_model(layers))
    found = [[pool.kinds[t].plain for t in pattern] for pattern in greedy_patterns(pool)]
    full = [[min(c, layers) for c in pattern] for pattern in expected]
    assert sorted(found) == sorted(full)


def test_item_06_one_strong_node_takes_all_layers() -> None:
    plan = allocate(fleet_of(30), toy_model(28, embedding_bytes=100))
    assert counts(plan) == [[28]] and plan.standby == ()


def test_item_07_a_strong_node_alone_and_two_weak_ones_beside_it() -> None:
    plan = allocate(fleet_of(28, 14, 14), toy_model(28))
    assert sorted(counts(plan)) == [[14, 14], [28]]


def test_item_08_mid_range_nodes_alone_make_a_pipeline() -> None:
    plan = allocate(fleet_of(9, 8, 7, 6), toy_model(28))
    assert len(plan.pipelines) == 1 and len(plan.pipelines[0]) == 4
    assert sum(counts(plan)[0]) == 28


# --- registry ----------------------------------------------------------------------------------


def test_item_10_as_many_disjoint_chains_are_routed_as_pipelines_planned() -> None:
    """We keep no registry of chains; the router must find every planned pipeline again."""
    fleet, model = fleet_of(*[12] * 9, 40), toy_model(36)
    plan = allocate(fleet, model)
    assert len(plan.pipelines) == 4
    table = prepare(fleet, model, plan.shards)
    first = route(table)
    assert isinstance(first, Route)
    assert 1 + len(disjoint_backups(table, first, 99)) == 4


def test_item_11_only_machines_that_have_loaded_count() -> None:
    swarm = Swarm()
    swarm.join(1, 2, mib=ALL)
    assert swarm.pipelines() == 2
    swarm.loading = {1}
    assert swarm.pipelines() == 1
    found = swarm.route()
    assert isinstance(found, Route) and found.machine_ids == {operator(2)}


def test_item_12_illegal_ranges_raise_and_unallocated_machines_are_ignored() -> None:
    for start, end in ((5, 3), (3, 3), (-1, 2)):
        with pytest.raises(ValueError, match=r"layer|range"):
            LayerRange(start, end)
    fleet, model = fleet_of(6, 6, 6), toy_model(6)
    table = prepare(fleet, model, (shard("m01", 0, 6),))
    assert [machine.id for machine in table.machines] == ["m01"]
    assert isinstance(route(table), Route)


def test_item_13_a_pipeline_takes_as_many_requests_as_its_fullest_stage_and_totals_add_up() -> None:
    machines = tuple(
        holding(f"m{i}", 3, max_concurrent=slots) for i, slots in enumerate((4, 2, 5, 7))
    )
    fleet, model = Fleet(machines), toy_model(6)
    shards = (shard("m0", 0, 3), shard("m1", 3, 6), shard("m2", 0, 2), shard("m3", 2, 6))

    def admitted(excluded: frozenset[str] = frozenset()) -> int:
        table, in_flight = prepare(fleet, model, shards), dict.fromkeys(fleet.by_id, 0)
        for taken in range(100):
            found = route(table, RouteQuery(in_flight=in_flight, excluded=excluded))
            if isinstance(found, NoRoute):
                assert found.reason in ("masked", "disconnected")
                return taken
            for machine_id in found.machine_ids:
                in_flight[machine_id] += 1
        raise AssertionError("never full")

    assert admitted() == min(4, 2) + min(5, 7)
    assert admitted(frozenset({"m3"})) == 2  # a pipeline that is not ready counts 0 now …
    assert admitted() == 7  # … and stays in the total


def test_item_14_removing_a_member_ends_its_chain_and_leaves_the_others_alone() -> None:
    """Theirs clears the other members' layers; ours keeps them, so that a newcomer only has to fill
    the hole.
    """
    fleet, model = fleet_of(3, 3, 3, 3), toy_model(6)
    plan = allocate(fleet, model)
    gone = plan.pipelines[0][0].machine_id
    left = leave(plan.shards, gone)
    assert set(left) == {s for s in plan.shards if s.machine_id != gone}
    table = prepare(fleet, model, left)
    first = route(table)
    assert isinstance(first, Route) and disjoint_backups(table, first, 9) == ()


def test_item_15_keys_and_values_of_different_sizes_count_by_their_sum() -> None:
    """Heads of 192 for keys and 128 for values, 8 of them, in 16 bits."""
    per_layer = 8 * (192 + 128) * 2
    model = ModelShape(4, 100, 0, 0, False, 8, 1e9, kv_bytes_per_token_per_layer=per_layer)
    machine = Machine("a", 10**6, 1.0, 1.0, weight_fraction=0.5, kv_fraction=0.5)
    assert kv_tokens(machine, model, 4) == 500_000 // (4 * per_layer)
    assert kv_tokens(machine, model, 1) == 500_000 // per_layer


# --- routing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tau", "expected"),
    [
        ({"slow": 0.5, "tail": 2.0}, [("slow", 0, 4), ("tail", 4, 6)]),
        ({"slow": 0.5, "head": 2.0}, [("head", 0, 2), ("slow", 2, 6)]),
        ({"slow": 2.0}, [("slow", 0, 6)]),
    ],
    ids=["tail", "head", "none"],
)
def test_item_19_turning_points_at_tail_head_and_none(
    tau: dict[str, float], expected: list[tuple[str, int, int]]
) -> None:
    """Theirs trims weights where the best path leaves a shard early; ours leaves it early per
    request and trims nothing.
    """
    ranges = {"slow": (0, 6), "tail": (4, 6), "head": (0, 2)}
    machines = tuple(holding(name, 6, tflops=speed) for name, speed in sorted(tau.items()))
    fleet = Fleet(machines, Links(default_ms=0.1))
    shards = tuple(shard(name, *ranges[name]) for name in tau)
    found = route(prepare(fleet, toy_model(6), shards), RouteQuery(partial=True))
    assert isinstance(found, Route)
    assert [(s.machine_id, s.layers.start, s.layers.end) for s in found.stages] == expected


def two_fixed(kv_room: int = 10_000) -> tuple[FixedRouter, KvEstimate]:
    machines = tuple(holding(f"m{i}", 3, kv_tokens=kv_room) for i in range(4))
    fleet = Fleet(machines)
    shards = tuple(shard(f"m{i}", 3 * (i % 2), 3 * (i % 2) + 3) for i in range(4))
    kv = KvEstimate(fleet, KV_MODEL, shards, high_water=1.0, output_tokens=0)
    return FixedRouter((shards[:2], shards[2:]), kv), kv


def test_item_20_fixed_pipelines_alternate_strictly() -> None:
    router, _ = two_fixed()
    taken = []
    for _ in range(6):
        found = router.choose(10)
        assert found is not None
        taken.append(found.stages[0].machine_id)
    assert taken == ["m0", "m2"] * 3


def test_item_21_a_full_pipeline_is_passed_over_and_all_full_is_a_refusal() -> None:
    """Theirs answers with an empty path and infinite latency; ours with None, and the request keeps
    its place in the queue.
    """
    router, kv = two_fixed(kv_room=100)
    kv.add([shard("m1", 3, 6)], 100)
    answers = [router.choose(50) for _ in range(3)]
    assert [a and a.stages[0].machine_id for a in answers] == ["m2", "m2", None]
    assert answers[0] is not None
    router.finish(answers[0])
    assert router.choose(50) is not None

    fleet, model = fleet_of(6), toy_model(6)
    full = route(prepare(fleet, model, (shard("m00", 0, 6),)), RouteQuery(in_flight={"m00": 16}))
    assert isinstance(full, NoRoute) and full.reason == "masked"


def test_item_22_every_combination_of_overlapping_heads_and_tails_is_found() -> None:
    heads, tails = ("h0", "h1", "h2"), ("t0", "t1")
    fleet = Fleet(tuple(holding(name, 6) for name in (*heads, *tails)))
    shards = [*(shard(h, 0, 3) for h in heads), *(shard(t, 3, 6) for t in tails)]
    table = prepare(fleet, toy_model(6), shards)
    for head in heads:
        for tail in tails:
            others = frozenset({*heads, *tails} - {head, tail})
            found = route(table, RouteQuery(excluded=others))
            assert isinstance(found, Route) and found.machine_ids == {head, tail}


def test_item_23_disjoint_chains_come_best_first() -> None:
    machines = tuple(holding(f"m{i}", 3, tflops=8.0 - i) for i in range(6))
    shards = [shard(f"m{i}", 3 * (i % 2), 3 * (i % 2) + 3) for i in range(6)]
    fleet, model = Fleet(machines), toy_model(6)
    table = prepare(fleet, model, shards)
    first = route(table)
    assert isinstance(first, Route) and first.stages[0].machine_id == "m0"
    chains = [first, *disjoint_backups(table, first, 9)]
    used = [machine_id for chain in chains for machine_id in chain.machine_ids]
    assert len(chains) == 3 and len(set(used)) == len(used)
    latencies = [chain.latency_ms for chain in chains]
    assert latencies == sorted(latencies)


def test_item_24_twenty_four_nodes_make_six_pipelines_that_use_all_of_them() -> None:
    """Theirs registers 6 of 756 enumerated chains. Ours plans the 6 and enumerates none of the 6⁴
    that the router may take.
    """
    fleet, model = fleet_of(*[9] * 24), toy_model(36)
    plan = allocate(fleet, model)
    assert counts(plan) == [[9, 9, 9, 9]] * 6
    assert plan.standby == () and plan.gap == 0
    table = prepare(fleet, model, plan.shards)
    first = route(table)
    assert isinstance(first, Route)
    chains = [first, *disjoint_backups(table, first, 99)]
    assert len(chains) == 6
    assert len({m for chain in chains for m in chain.machine_ids}) == 24


def test_item_25_three_heads_and_three_tails_make_three_disjoint_chains() -> None:
    fleet = fleet_of(*[6] * 6)
    shards = [shard(f"m{i:02}", 3 * (i // 3), 3 * (i // 3) + 3) for i in range(6)]
    table = prepare(fleet, toy_model(6), shards)
    first = route(table)
    assert isinstance(first, Route)
    assert 1 + len(disjoint_backups(table, first, 9)) == 3


# --- orchestration -----------------------------------------------------------------------------


def test_item_26_planned_then_dispatched_gives_a_path_and_its_latency() -> None:
    fleet, model = fleet_of(4, 4, rho_ms=7.0), toy_model(8)
    plan = allocate(fleet, model)
    found = route(prepare(fleet, model, plan.shards))
    assert isinstance(found, Route)
    assert found.stages == plan.pipelines[0]
    assert found.latency_ms == pytest.approx(pipeline_ms(plan.pipelines[0], fleet, model))


def test_item_27_a_join_gets_layers_and_a_leave_removes_from_both_states() -> None:
    swarm = Swarm()
    swarm.join(1, 2, mib=ALL)
    assert swarm.join(3, mib=ALL) is not None and 3 in swarm.told
    swarm.join(4, mib=50)  # holds two layers: serves somewhere or stands by
    swarm.leave(3)
    swarm.leave(4)
    assert swarm.placement is not None
    for number in (3, 4):
        assert operator(number) not in swarm.placement.assignments
        assert operator(number) not in swarm.placement.standby
    assert isinstance(swarm.route(), Route)


def test_item_28_bootstrap_waits_for_the_minimum_and_then_every_join_is_assigned_at_once() -> None:
    swarm = Swarm(Rules(partial=False, min_machines=2))
    first = swarm.join(1, mib=ALL)
    assert first is not None and not first.assignments and "waits for 2" in first.reason
    assert swarm.join(2, mib=ALL) is not None
    swarm.join(3, mib=ALL)
    before = dict(swarm.told)
    assert set(before) == {1, 2, 3}
    swarm.leave(3)  # a spare one: nobody else is told anything new
    assert swarm.told == {n: before[n] for n in (1, 2)}
    swarm.leave(2)
    swarm.leave(1)  # the last one: no exception, and nothing is served
    assert swarm.shards == () and isinstance(swarm.route(), NoRoute)
    swarm.join(5, mib=ALL)
    swarm.join(6, mib=ALL)
    assert isinstance(swarm.route(), Route)


def test_item_29_a_snapshot_without_allocations_divides_by_nothing() -> None:
    fleet, model = fleet_of(2, 2), toy_model(6)
    assert layer_loads(fleet, model, ()) == (0.0,) * 6
    assert coefficient_of_variation(layer_loads(fleet, model, ())) == 0.0
    nothing = allocate(fleet, model)
    assert nothing.pipelines == () and nothing.standby == ("m00", "m01")
    assert should_rebalance(fleet, model, ()).coefficient_of_variation == 0.0
    swarm = Swarm()
    swarm.join(1, 2, mib=100)
    assert swarm.standby == {1, 2} and swarm.pipelines() == 0


def test_item_30_the_sole_node_leaves_and_gets_layers_again_when_it_rejoins() -> None:
    swarm = Swarm()
    swarm.join(1, mib=ALL)
    swarm.leave(1)
    assert swarm.shards == () and isinstance(swarm.route(), NoRoute)
    swarm.join(1, mib=ALL)
    assert swarm.told == {1: LayerRange(0, 30)}
    assert isinstance(swarm.route(), Route)


def test_item_32_two_standby_nodes_that_suffice_become_a_second_pipeline() -> None:
    """The planner never waits for a fixed set: it grows from one pipeline to two as soon as
    machines suffice.
    """
    swarm = Swarm()
    swarm.join(1, 2, mib=HALF)
    assert swarm.pipelines() == 1
    first = dict(swarm.told)
    swarm.join(3, 4, mib=HALF)
    assert swarm.pipelines() == 2
    assert {n: swarm.told[n] for n in (1, 2)} == first


def test_item_33_join_waits_for_a_partner_leave_and_rejoin_rebuild_and_survivors_serve() -> None:
    """Theirs keeps a lone newcomer on standby; ours lets it serve beside the others where it fits,
    and moves nobody.
    """
    swarm = Swarm()
    swarm.join(1, 2, mib=HALF)
    first = dict(swarm.told)
    swarm.join(3, mib=HALF)  # no partner yet
    assert {n: swarm.told[n] for n in (1, 2)} == first
    swarm.join(4, mib=HALF)
    assert isinstance(swarm.route(), Route)
    swarm.leave(2)
    assert isinstance(swarm.route(), Route)  # the others still hold the model
    swarm.join(2, mib=HALF)
    assert set(swarm.told) == {1, 2, 3, 4}
    holders = swarm.told
    gone = [
        next(n for n in holders if holders[n].start == 0),
        next(n for n in holders if holders[n].end == 30),
    ]
    before = swarm.decisions
    swarm.leave(*gone)  # one of each end, at once
    assert swarm.decisions <= before + 1
    found = swarm.route()
    assert isinstance(found, Route)
    assert math.isfinite(found.latency_ms)
    covered = [s.layers for s in found.stages]
    assert covered[0].start == 0 and covered[-1].end == 30
    assert all(a.end == b.start for a, b in pairwise(covered))


def test_every_item_is_here_or_in_the_index() -> None:
    """Each of the 33 is a test of this file or a row of the index, whose tests exist."""
    here = {int(name[10:12]) for name in globals() if name.startswith("test_item_")}
    check(__doc__ or "", here, 33)
