"""Localities follow what was measured; the declared region only stands in."""

from __future__ import annotations

import random
from itertools import combinations

from benchmarks.scheduler.worlds import mixed
from scheduler.fleet.fleet import Fleet, Link, Links
from scheduler.utility.localities import localities
from tests.scheduler.worlds import holding


def test_the_four_regions_of_a_mixed_fleet_are_its_localities() -> None:
    fleet, _ = mixed(64, "32b")
    groups = localities(fleet.machines, fleet.links)
    assert len(groups) == 4
    assert all(len({m.region for m in group}) == 1 for group in groups)


def test_measured_pairs_beat_a_declared_region_that_lies() -> None:
    fleet, _ = mixed(64, "32b")
    draw = random.Random(2)
    pairs = {
        (a.id, b.id): Link(fleet.links.rho_ms(a, b) * draw.uniform(0.9, 1.1))
        for a, b in combinations(fleet.machines, 2)
        if draw.random() < 0.7
    }
    lying = [holding(m.id, 1, region="everywhere") for m in fleet.machines]
    groups = localities(lying, Links(pairs, {}, 50.0))
    assert len(groups) == 4
    assert all(len({fleet.by_id[m.id].region for m in group}) == 1 for group in groups)


def test_regions_near_each_other_are_one_locality() -> None:
    machines = [holding(f"{region}{i}", 1, region=region) for region in "abc" for i in range(2)]
    inside = {(r, r): Link(4.0) for r in "abc"}
    links = Links(
        {}, {**inside, ("a", "b"): Link(6.0), ("a", "c"): Link(60.0), ("b", "c"): Link(60.0)}
    )
    groups = localities(machines, links)
    assert [{m.region for m in group} for group in groups] == [{"a", "b"}, {"c"}]


def test_without_any_measurement_the_declared_region_is_a_prior() -> None:
    machines = [holding(f"{region}{i}", 1, region=region) for region in "ab" for i in range(2)]
    assert len(localities(machines, Links(default_ms=50.0))) == 2
    assert len(localities(machines[:2], Links(default_ms=50.0))) == 1
    assert localities([], Links()) == ()


def test_machines_cut_off_from_each_other_are_apart() -> None:
    machines = [holding(m, 1) for m in "abcd"]
    links = Links({("a", "b"): Link(1.0), ("c", "d"): Link(1.0)})
    groups = localities(Fleet(tuple(machines), links).machines, links)
    assert [[m.id for m in group] for group in groups] == [["a", "b"], ["c", "d"]]
