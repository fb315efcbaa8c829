"""T_comp and r_RTT are the fleet's own averages."""

from __future__ import annotations

import math

import pytest

from scheduler.fleet.fleet import Link, Links
from scheduler.parallax.objective import mean_rho_ms, objective_for
from tests.scheduler.worlds import fleet_of, holding, toy_model


def test_objective_constants_come_from_the_fleet() -> None:
    fleet = fleet_of(4, 4, 4, rho_ms=7.0)
    objective = objective_for(fleet.machines, fleet.links, toy_model(8))
    assert objective.t_comp_ms == pytest.approx(8.0)
    assert objective.r_rtt_ms == pytest.approx(7.0)


def test_mean_rho_uses_measured_pairs_and_skips_cut_ones() -> None:
    machines = tuple(holding(m, 1, region="r", access_ms=1.0) for m in "abc")
    regions = {("r", "r"): Link(8.0)}
    assert mean_rho_ms(machines, Links({}, regions)) == pytest.approx(10.0)
    pairs = {("a", "b"): Link(4.0), ("b", "c"): Link(math.inf), ("c", "a"): Link(6.0)}
    assert mean_rho_ms(machines, Links(pairs, regions)) == pytest.approx(5.0)
    assert mean_rho_ms(machines[:1], Links({}, regions)) == 0.0


def test_constants_can_be_overridden() -> None:
    fleet = fleet_of(4, 4)
    objective = objective_for(fleet.machines, fleet.links, toy_model(8), 2.0, 3.0, 0.0)
    assert (objective.alpha, objective.t_comp_ms, objective.r_rtt_ms) == (2.0, 3.0, 0.0)
