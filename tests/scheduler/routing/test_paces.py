"""Looked-up times are the cost formulas' own, at any batch, and their least is a bound."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scheduler.worlds import cluster, mixed
from scheduler.fleet.costs import head_ms, tau_ms_per_layer
from scheduler.fleet.fleet import Machine, ModelShape
from scheduler.routing.paces import WIDTH, Paces

MOE = ModelShape(
    4,
    9000,
    10,
    500,
    False,
    8,
    1e9,
    experts=8,
    experts_per_token=2,
    expert_bytes=1000,
    head_flops_per_token=1e6,
    kv_bytes_per_token_per_layer=2,
)


def worlds() -> list[tuple[tuple[Machine, ...], ModelShape]]:
    fleet, model = mixed(16, "32b")
    measured, profiled = cluster("single24")
    tau = Machine("t", 1000, 2.0, 3.0, tau_ms_per_layer=7.0, tau_batch=4)
    return [
        ((*fleet.machines, tau), model),
        (measured.machines, profiled),
        ((tau, Machine("u", 1000, 2.0, 3.0)), MOE),
    ]


@pytest.mark.parametrize("world", range(3))
def test_every_batch_is_the_formula(world: int) -> None:
    machines, model = worlds()[world]
    paces = Paces(machines, model, 1024)
    least_tau, least_head = paces.least()
    for batch in (1, 2, 16, 100, WIDTH, WIDTH + 1, 5000):
        tau, head = paces.all(np.full(len(machines), batch))
        for g, machine in enumerate(machines):
            expected = (tau_ms_per_layer(machine, model, batch), head_ms(machine, model, batch))
            assert paces.one(g, batch) == pytest.approx(expected, rel=1e-12)
            assert (tau[g], head[g]) == pytest.approx(expected, rel=1e-12)
            assert least_tau[g] <= expected[0] * (1 + 1e-12)
            assert least_head[g] <= expected[1] * (1 + 1e-12)
