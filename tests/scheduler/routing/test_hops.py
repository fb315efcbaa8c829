"""Hops equal the cost formula pair by pair, and the factored form never exceeds them."""

from __future__ import annotations

import random

import numpy as np
import pytest

import scheduler.routing.hops as hops_module
from scheduler.fleet.costs import hop_ms
from scheduler.fleet.fleet import Fleet, Link, Links, Machine, ModelShape
from scheduler.routing.routing_table import prepare
from tests.scheduler.routing.worlds import world
from tests.scheduler.worlds import links_of, shard


@pytest.mark.parametrize("measured", ["none", "few", "half", "all"])
@pytest.mark.parametrize("matrix_machines", [2048, 2])
def test_hops_are_the_formula_and_the_form_lies_beneath(
    monkeypatch: pytest.MonkeyPatch, measured: str, matrix_machines: int
) -> None:
    monkeypatch.setattr(hops_module, "MATRIX_MACHINES", matrix_machines)
    for seed in range(20):
        draw = random.Random(seed)
        fleet, model, shards = world(draw, draw.choice([2, 7, 26]), 4, measured)
        table = prepare(fleet, model, shards)
        hops, machines = table.hops, table.machines
        form = hops.base[np.ix_(hops.locality, hops.locality)]
        form = form + hops.access[:, None] + hops.access[None, :]
        everyone = np.arange(len(machines))
        block = hops.block(everyone, everyone)
        for a, one in enumerate(machines):
            for b, other in enumerate(machines):
                expected = hop_ms(fleet.links, one, other, model)
                assert hops.between(a, b) == pytest.approx(expected, rel=1e-12)
                assert block[a, b] == pytest.approx(expected, rel=1e-12)
                if a != b:
                    assert form[a, b] <= expected + 1e-9
                    if not hops.loose[hops.locality[a], hops.locality[b]]:
                        assert form[a, b] == pytest.approx(expected, rel=1e-9)


def test_latencies_by_region_are_factored_exactly_with_their_bandwidth() -> None:
    machines = tuple(Machine(f"m{i}", 1000, 1.0, 1e6, f"r{i % 2}", access_ms=i) for i in range(6))
    links = Links(
        {}, {("r0", "r0"): Link(5.0), ("r0", "r1"): Link(40.0, 8.0), ("r1", "r1"): Link(5.0)}
    )
    model = ModelShape(2, 100, 0, 0, False, 8, 1e9, activation_bytes_per_token=1000)
    table = prepare(Fleet(machines, links), model, [shard(m.id, 0, 2) for m in machines])
    assert table.hops.is_exact and table.hops.is_metric
    assert table.hops.base[0, 1] == 40.0 + 1.0
    assert [m.region for m in table.machines] == ["r0"] * 3 + ["r1"] * 3


def test_pairs_that_nobody_measured_take_the_time_of_a_usual_link() -> None:
    machines = tuple(Machine(f"m{i}", 1000, 1.0, 1e6) for i in range(3))
    links = Links({("m0", "m1"): Link(5.0, 80.0)}, default_ms=50.0, default_mbit_s=8.0)
    model = ModelShape(2, 100, 0, 0, False, 8, 1e9, activation_bytes_per_token=1000)
    table = prepare(Fleet(machines, links), model, [shard(m.id, 0, 2) for m in machines])
    found = table.hops.between(0, 1), table.hops.between(1, 2)
    assert found == pytest.approx((5.0 + 0.1, 50.0 + 1.0))


def test_measured_pairs_without_regions_fall_into_localities() -> None:
    near, far = 2.0, 60.0
    machines = tuple(Machine(f"m{i:02}", 1000, 1.0, 1e6) for i in range(30))
    pairs = {
        (a.id, b.id): near if i % 3 == j % 3 else far
        for i, a in enumerate(machines)
        for j, b in enumerate(machines)
        if i < j
    }
    table = prepare(
        Fleet(machines, links_of(pairs)),
        ModelShape(2, 100, 0, 0, False, 8, 1e9),
        [shard(m.id, 0, 2) for m in machines],
    )
    assert len(table.hops.base) == 3
    assert table.hops.is_exact
