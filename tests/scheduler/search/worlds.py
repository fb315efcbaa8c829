"""Small clusters with a table of T(k) of their own, and every placement of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.costs import tokens_per_s
from scheduler.fleet.fleet import (
    Coordinator,
    Fleet,
    Link,
    Links,
    Machine,
    ModelShape,
    Placement,
    Shard,
)
from scheduler.fleet.profile import Curve, Profile
from tests.scheduler.worlds import toy_model

__all__ = ["all_placements", "clusters", "flow_by_coverage", "machine", "toy_model"]


def machine(
    machine_id: str, rates: tuple[float, ...], region: str = "r", **more: object
) -> Machine:
    """A machine that passes rates[k - 1] tokens/s with k layers."""
    n = len(rates)
    curve = Curve.of(((1, 1.0), (100, 2.0)))
    profile = Profile(curve, curve, (10_000,) * n, (8,) * n, (64,) * n, rates)
    return Machine(machine_id, 10**9, 1.0, 1.0, region, profile=profile, **more)


@st.composite
def clusters(
    draw: st.DrawFn, most_machines: int = 4, most_layers: int = 6, slow_links: bool = False
) -> tuple[Fleet, ModelShape]:
    """One or two kinds of machines, T falling with k, that together can hold the model."""
    layers = draw(st.integers(1, most_layers))
    kinds = []
    for _ in range(draw(st.integers(1, 2))):
        most = draw(st.integers(1, layers))
        rates = sorted((float(draw(st.integers(1, 40))) for _ in range(most)), reverse=True)
        kinds.append(tuple(rates))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=most_machines))
    while sum(map(len, chosen)) < layers:
        chosen.append((9.0,) * layers)
    links = Links(default_ms=1.0)
    if slow_links:
        pairs = {
            (f"m{i}", f"m{j}"): Link(1.0, draw(st.sampled_from([0.5, 1.0, 5.0, None])))
            for i in range(len(chosen))
            for j in range(i)
        }
        links = Links(pairs, default_ms=1.0)
    machines = tuple(machine(f"m{i}", rates) for i, rates in enumerate(chosen))
    model = ModelShape(layers, 100, 0, 0, False, 8, 1e9, activation_bytes_per_token=10_000)
    return Fleet(machines, links, Coordinator()), model


def all_placements(fleet: Fleet, model: ModelShape) -> Iterator[Placement]:
    """Every way to give each machine a range or nothing."""
    choices = []
    for m in fleet.machines:
        assert m.profile is not None
        ranges: list[LayerRange | None] = [None]
        for k in range(1, min(m.profile.max_layers, model.layers) + 1):
            ranges += [LayerRange(s, s + k) for s in range(model.layers - k + 1)]
        choices.append(ranges)
    for chosen in product(*choices):
        yield tuple(
            Shard(m.id, layers)
            for m, layers in zip(fleet.machines, chosen, strict=True)
            if layers is not None
        )


def flow_by_coverage(fleet: Fleet, model: ModelShape, placement: Placement) -> float:
    """Least Σ T over the machines that hold a layer: the max flow with partial inference over
    endless links.
    """
    return min(
        sum(
            tokens_per_s(fleet.by_id[machine_id], model, len(layers))
            for machine_id, layers in placement
            if layer in layers
        )
        for layer in range(model.layers)
    )
