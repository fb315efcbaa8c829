"""The flow over partial slices equals a plain linear program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacity, position_of
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard
from scheduler.flow.flow_lp import rate_of, solve_flow_lp
from tests.scheduler.worlds import fleet_of, fleets, models, shard, toy_model


@st.composite
def placed(draw: st.DrawFn) -> tuple[Fleet, ModelShape, Placement]:
    fleet, model = draw(fleets(6)), draw(models(9))
    shards = []
    for machine in fleet.machines:
        start = draw(st.integers(0, model.layers - 1))
        shards.append(
            Shard(machine.id, LayerRange(start, draw(st.integers(start + 1, model.layers))))
        )
    return fleet, model, tuple(shards)


def by_plain_lp(
    fleet: Fleet, model: ModelShape, placement: Placement, flow: float | None
) -> float | None:
    """Layer by layer and machine by machine: the largest T, or the fewest entries at a given T."""
    cells = [(i, x) for i, s in enumerate(placement) for x in range(s.layers.start, s.layers.end)]
    n, layers = len(cells), model.layers
    cover = np.zeros((layers, 2 * n + 1))
    work = np.zeros((len(placement), 2 * n + 1))
    enter = np.zeros((n, 2 * n + 1))
    for v, (i, x) in enumerate(cells):
        cover[x, v] = 1
        work[i, v] = 1
        enter[v, v], enter[v, n + v] = 1, -1
        if (i, x - 1) in cells:
            enter[v, cells.index((i, x - 1))] = -1
    cover[:, 2 * n] = -1
    rates = [rate_of(fleet.by_id[s.machine_id], model, len(s.layers)) for s in placement]
    cost = np.zeros(2 * n + 1)
    bounds: list[tuple[float, float | None]] = [(0, None)] * (2 * n + 1)
    if flow is None:
        cost[2 * n] = -1
    else:
        cost[n : 2 * n] = 1
        bounds[2 * n] = (flow, flow)
    found = linprog(
        cost, np.vstack([work, enter]), [*rates, *[0.0] * n], cover, np.zeros(layers), bounds
    )
    if found.status != 0:
        return None
    return float(-found.fun if flow is None else found.fun)


@settings(max_examples=120, deadline=None)
@given(placed())
def test_largest_flow_equals_a_linear_program(world: tuple[Fleet, ModelShape, Placement]) -> None:
    fleet, model, placement = world
    flow = solve_flow_lp(fleet, model, placement)
    assert flow.tokens_per_s == pytest.approx(by_plain_lp(fleet, model, placement, None), abs=1e-6)
    if all(
        len(s.layers) <= capacity(fleet.by_id[s.machine_id], model, position_of(s.layers, model))
        for s in placement
    ):
        assert flow.tokens_per_s <= flow.ub * (1 + 1e-9)
    for layer in flow.segments:
        served = sum(share for (_, segment), share in flow.shares.items() if segment == layer)
        assert served == pytest.approx(flow.tokens_per_s, abs=1e-6)
    for machine_id, layers in placement:
        used = sum(
            share * len(segment)
            for (owner, segment), share in flow.shares.items()
            if owner == machine_id
        )
        rate = rate_of(fleet.by_id[machine_id], model, len(layers))
        assert used <= rate * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(placed(), st.integers(0, 5))
def test_prices_say_what_more_rate_and_fewer_layers_would_bring(
    world: tuple[Fleet, ModelShape, Placement], which: int
) -> None:
    """A bound of the dual: T ≤ Σ price · rate, with equality, and layer prices sum to one."""
    fleet, model, placement = world
    flow = solve_flow_lp(fleet, model, placement)
    dual = sum(
        flow.machine_price[s.machine_id] * rate_of(fleet.by_id[s.machine_id], model, len(s.layers))
        for s in placement
    )
    assert dual == pytest.approx(flow.tokens_per_s, rel=1e-6, abs=1e-6)
    assert sum(flow.layer_price) == pytest.approx(1.0)
    for machine_id, layers in placement:
        dearest = max(flow.layer_price[layers.start : layers.end])
        assert flow.machine_price[machine_id] >= dearest - 1e-12


def test_two_halves_and_one_whole_share_by_hand() -> None:
    fleet, model = fleet_of(2, 2, 4), toy_model(4)
    placement = (shard("m00", 0, 2), shard("m01", 2, 4), shard("m02", 0, 4))
    flow = solve_flow_lp(fleet, model, placement)
    rate = rate_of(fleet.by_id["m00"], model, 1)
    assert flow.tokens_per_s == pytest.approx(3 * rate / 4)
    assert flow.bottleneck == flow.segments


def test_an_uncovered_layer_passes_nothing_and_is_the_bottleneck() -> None:
    fleet, model = fleet_of(2, 2), toy_model(5)
    flow = solve_flow_lp(fleet, model, (shard("m00", 0, 2), shard("m01", 3, 5)))
    assert flow.tokens_per_s == 0 and flow.bottleneck == (LayerRange(2, 3),)


@settings(max_examples=80, deadline=None)
@given(placed(), st.data())
def test_more_machines_never_lower_the_flow(
    world: tuple[Fleet, ModelShape, Placement], data: st.DataObject
) -> None:
    fleet, model, placement = world
    left_out = data.draw(st.integers(0, len(placement) - 1))
    fewer = tuple(s for i, s in enumerate(placement) if i != left_out)
    before = solve_flow_lp(fleet, model, fewer).tokens_per_s
    after = solve_flow_lp(fleet, model, placement).tokens_per_s
    assert after >= before * (1 - 1e-9)


@pytest.mark.parametrize(
    ("placement", "problem"),
    [
        ((("m09", 0, 2),), "unknown-machine"),
        ((("m00", 0, 9),), "gap"),
        ((("m00", 0, 2), ("m00", 2, 4)), "machine-twice"),
    ],
)
def test_absurd_placements_are_refused(
    placement: tuple[tuple[str, int, int], ...], problem: str
) -> None:
    with pytest.raises(PlanError) as refused:
        solve_flow_lp(fleet_of(4, 4), toy_model(4), tuple(shard(*s) for s in placement))
    assert refused.value.problem == problem
