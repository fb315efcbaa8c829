"""What the Parallax paper states in formulas holds in our phase 1 and 2, symbol by symbol."""

from __future__ import annotations

from itertools import pairwise

import pytest

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, Link, Links, Machine
from scheduler.fleet.kinds import pool_of
from scheduler.fleet.water_fill import water_fill
from scheduler.live.rebalance import join, layer_loads, should_rebalance
from scheduler.parallax.allocate import AllocateOptions, allocate
from scheduler.parallax.column_generation import PatternLimits, allocate_by_patterns
from scheduler.parallax.parallax_allocate import Dp1, Objective, allocate_by_dp
from scheduler.routing.parallax_route import NoRoute, Route, RouteQuery, route
from scheduler.routing.routing_table import prepare
from tests.scheduler.worlds import fleet_of, holding, links_of, shard, toy_model


def test_p1_initialization_sorts_capacities_and_bounds_k() -> None:
    """§3.2 i: c sorted in non-increasing order, k_max = min(N, ⌊Σ c_i / L⌋)."""
    pool = pool_of(fleet_of(3, 9, 6, 6).machines, toy_model(10))
    assert [kind.plain for kind in pool.kinds] == [9, 6, 3]
    assert pool.k_max == 24 // 10
    assert pool_of(fleet_of(9, 9).machines, toy_model(2)).k_max == 2  # N binds


def test_p1_dp_by_hand() -> None:
    """§3.2 ii on c = (5, 4, 3, 2), L = 5: s*(1) starts and completes at once, s*(2) extends a
    partial pipeline.
    """
    dp = Dp1(pool_of(fleet_of(5, 4, 3, 2).machines, toy_model(5)), 10**5)
    assert dp.fewest_stages(1) == 1
    assert dp.fewest_stages(2) == 3  # {5}, {4, 3} or {4, 2} or {3, 2}
    assert dp.fewest_stages(3) is None


def test_p1_skip_is_used_where_the_largest_machines_would_waste() -> None:
    """§3.2 ii: three transitions; with k = 1 the machines after the first complete pipeline are
    skipped.
    """
    pool = pool_of(fleet_of(5, 5, 5).machines, toy_model(5))
    dp = Dp1(pool, 10**5)
    assert dp.fewest_stages(1) == 1
    assert dp.reconstruct(1) == ((0,),)


def test_z_of_k_is_the_printed_formula() -> None:
    """§3.2 iii: Z(k) = k^α / (T_comp + (s*(k)/k) r_RTT)."""
    assert Objective(1.5, 20.0, 10.0).z(4, 10) == pytest.approx(4**1.5 / (20 + 10 / 4 * 10))


def test_larger_alpha_never_chooses_fewer_replications() -> None:
    """§3.2 iii: α controls how strongly the score favours additional replications."""
    pool = pool_of(fleet_of(13, 13, 6, 6, 3, 3).machines, toy_model(22))
    chosen = [
        len(allocate_by_dp(pool, Objective(alpha, 5.0, 10.0), 10**5).patterns)
        for alpha in (0.05, 0.3, 1.0, 2.0)
    ]
    assert chosen == sorted(chosen) and chosen[0] < chosen[-1]


def test_more_hop_latency_never_chooses_more_stages_per_replica() -> None:
    """Latency-dominant heuristic: a dearer hop favours solutions with fewer stages."""
    pool = pool_of(fleet_of(13, 13, 6, 6, 3, 3).machines, toy_model(22))
    per_replica = []
    for r_rtt_ms in (0.1, 1.0, 10.0, 1000.0):
        cover = allocate_by_dp(pool, Objective(0.6, 20.0, r_rtt_ms), 10**5)
        per_replica.append(sum(map(len, cover.patterns)) / len(cover.patterns))
    assert per_replica == sorted(per_replica, reverse=True)


def test_k_hat_is_the_argmax_over_every_k() -> None:
    pool = pool_of(fleet_of(13, 13, 6, 6, 3, 3).machines, toy_model(22))
    objective = Objective(1.0, 3.0, 2.0)
    cover = allocate_by_dp(pool, objective, 10**5)
    assert cover.z == max(scored.z for scored in cover.scores)
    assert [scored.k for scored in cover.scores] == [1, 2]
    assert allocate_by_patterns(pool, objective, PatternLimits()).z == cover.z


def test_region_heuristic_keeps_pipelines_inside_regions() -> None:
    """§3.2: inter-region links are slow, phase 1 works region by region."""
    machines = tuple(holding(f"{r}{i}", 5, region=r) for r in ("eu", "us") for i in range(2))
    links = Links(regions={("eu", "eu"): Link(5), ("us", "us"): Link(5), ("eu", "us"): Link(95)})
    plan = allocate(Fleet(machines, links), toy_model(10), AllocateOptions(scope="region"))
    assert [{s.machine_id[:2] for s in p} for p in plan.pipelines] == [{"eu"}, {"us"}]


def test_blocks_are_contiguous_and_gap_free() -> None:
    """§3.2 iii: contiguous layer blocks in pipeline order by a write cursor."""
    plan = allocate(fleet_of(7, 5, 4, 4, 3), toy_model(11))
    for pipeline in plan.pipelines:
        assert pipeline[0].layers.start == 0 and pipeline[-1].layers.end == 11
        assert all(a.layers.end == b.layers.start for a, b in pairwise(pipeline))


def test_water_filling_by_hand() -> None:
    """L = 12, c = (4, 8, 8), F = (3, 2, 1): λF = (4 capped, 5⅓, 2⅔) → Hamilton gives the rest to
    2⅔.
    """
    assert water_fill(12, (4, 8, 8), (3.0, 2.0, 1.0)) == (4, 5, 3)


def test_phase_2_chain_by_hand() -> None:
    """§3.3: dp₂ takes the slower machine where the faster one is further away."""
    machines = (holding("a", 2), holding("b", 2, tflops=2.0), holding("c", 2))
    links = links_of({("a", "b"): 9.0, ("a", "c"): 1.0})
    shards = (shard("a", 0, 2), shard("b", 2, 4), shard("c", 2, 4))
    found = route(prepare(Fleet(machines, links), toy_model(4), shards))
    assert isinstance(found, Route)
    assert [s.machine_id for s in found.stages] == ["a", "c"]
    assert found.latency_ms == pytest.approx(2 + 1 + 2)


def test_phase_2_stitches_layers_of_different_replicas() -> None:
    """Figure 2: a chain may begin in one replica and end in another."""
    machines = tuple(holding(m, 2, tflops=t) for m, t in zip("abcd", (4, 1, 1, 4), strict=True))
    shards = (shard("a", 0, 2), shard("b", 2, 4), shard("c", 0, 2), shard("d", 2, 4))
    found = route(prepare(Fleet(machines), toy_model(4), shards))
    assert isinstance(found, Route)
    assert [s.machine_id for s in found.stages] == ["a", "d"]


def test_every_layer_exactly_once_or_no_chain() -> None:
    """§3.3 pipeline chain selection constraint."""
    fleet = fleet_of(4, 4)
    overlap = (shard("m00", 0, 3), shard("m01", 2, 4))
    table = prepare(fleet, toy_model(4), overlap)
    assert isinstance(route(table), NoRoute)
    partial = route(table, RouteQuery(partial=True))
    assert isinstance(partial, Route)
    assert sum(len(s.layers) for s in partial.stages) == 4


def test_newcomer_starts_at_the_bottleneck_layer() -> None:
    """§3.4 i: contiguous slice from ℓ*, the layer of minimum RAM capacity, up to c_new."""
    machines = (
        holding("a", 2, kv_tokens=80),
        holding("b", 2, kv_tokens=20),
        holding("new", 1, kv_tokens=50),
    )
    shards = (shard("a", 0, 2), shard("b", 2, 4))
    fleet = Fleet(machines)
    assert join(machines[2], fleet, toy_model(4), shards, partial=True) == LayerRange(2, 3)


def test_load_is_the_printed_footnote() -> None:
    """Footnote 2: α · kv / total memory + (1 − α) · FLOPs / total FLOPs, α = 0.5 by default."""
    machines = (
        Machine("a", 1000, 3.0, 1.0, kv_fraction=0.25),
        Machine("b", 3000, 1.0, 1.0, kv_fraction=0.5),
    )
    shards = (shard("a", 0, 2), shard("b", 1, 2))
    loads = layer_loads(Fleet(machines), toy_model(2), shards)
    assert loads == pytest.approx(
        (0.5 * 250 / 4000 + 0.5 * 3 / 4, 0.5 * (250 + 1500) / 4000 + 0.5 * 4 / 4)
    )
    kv_only = layer_loads(Fleet(machines), toy_model(2), shards, alpha=1.0)
    assert kv_only == pytest.approx((250 / 4000, 1750 / 4000))


def test_global_rebalance_on_lost_coverage_or_variation() -> None:
    """§3.4 iii, conditions 1 and 2."""
    fleet, model = fleet_of(2, 2, 2), toy_model(4)
    assert should_rebalance(fleet, model, (shard("m00", 0, 2),)).rebalance
    lopsided = (shard("m00", 0, 2), shard("m01", 2, 4), shard("m02", 2, 4))
    assert not should_rebalance(fleet, model, lopsided, threshold=0.5).rebalance
    assert should_rebalance(fleet, model, lopsided, threshold=0.2).rebalance


def test_single_digit_milliseconds_are_not_claimed_for_dp_but_states_stay_bounded() -> None:
    """§4.3 claims milliseconds at 256 machines; dp₁'s table grows with k, ours stops and hands
    over.
    """
    fleet = fleet_of(*[13, 9, 6, 4] * 64)
    plan = allocate(fleet, toy_model(32), AllocateOptions(method="dp", dp_states=500))
    assert plan.method == "patterns" and plan.gap == 0
