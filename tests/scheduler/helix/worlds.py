"""Small clusters with unequal links and measured T(k), and the best placement by trying all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations, product

from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.costs import Position, capacity, position_of, tokens_per_s
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
from scheduler.flow.max_flow import max_flow

ACTIVATION_BYTES = 1000
#: A link of this many Mbit/s carries one token a second.
MBIT_PER_TOKEN = ACTIVATION_BYTES * 8 / 1e6


def model_of(layers: int, embedding_bytes: int = 0) -> ModelShape:
    return ModelShape(
        layers=layers,
        layer_bytes=100,
        embedding_bytes=embedding_bytes,
        head_bytes=embedding_bytes,
        tied=False,
        hidden=8,
        flops_per_layer_per_token=1e9,
        activation_bytes_per_token=ACTIVATION_BYTES,
        token_bytes=4,
    )


def measured(machine_id: str, *rates: float, region: str = "", kind: str = "") -> Machine:
    """A machine whose T(1), T(2), … are these."""
    many = len(rates)
    profile = Profile(
        Curve.of([(0, 0.0), (1000, 10.0)]),
        Curve.of([(0, 1.0), (100, 2.0)]),
        tuple(1000 * (many - i) for i in range(many)),
        (1,) * many,
        (100,) * many,
        tuple(rates),
    )
    return Machine(machine_id, 10**6, 1.0, 1.0, region, kind=kind, profile=profile)


def carrying(tokens_per_s: float, latency_ms: float = 1.0) -> Link:
    """A link that carries that many activations a second."""
    return Link(latency_ms, tokens_per_s * MBIT_PER_TOKEN)


@st.composite
def clusters(
    draw: st.DrawFn, most_machines: int = 5, most_layers: int = 6, most_held: int = 3
) -> tuple[Fleet, ModelShape]:
    """Machines with falling T(k); links that bind, that do not, of unknown bandwidth, and missing
    ones.
    """
    n, layers = draw(st.integers(1, most_machines)), draw(st.integers(2, most_layers))
    machines = []
    for i in range(n):
        held = draw(st.integers(1, min(most_held, layers)))
        rates = draw(st.lists(st.integers(1, 400), min_size=held, max_size=held))
        machines.append(
            measured(f"m{i}", *(r / 4 for r in sorted(rates, reverse=True)), kind=f"k{i % 2}")
        )
    at = Coordinator() if draw(st.booleans()) else None
    link = st.one_of(
        st.builds(carrying, st.integers(1, 120), st.integers(0, 40)),
        st.just(Link(5.0)),
        st.just(Link(5.0)),
        st.just(Link(20.0)),
        st.just(Link(math.inf)),
    )
    ends = [m.id for m in machines] + ([at.id] if at else [])
    pairs = {pair: draw(link) for pair in permutations(ends, 2)}
    return Fleet(tuple(machines), Links(pairs), at), model_of(layers)


@st.composite
def placed(
    draw: st.DrawFn, most_machines: int = 8, most_layers: int = 7
) -> tuple[Fleet, ModelShape, Placement]:
    """A cluster and any shards on it, whether or not they cover the model."""
    fleet, model = draw(clusters(most_machines, most_layers, 4))
    shards = list[Shard]()
    for machine in draw(st.permutations(fleet.machines)):
        most = capacity(machine, model, Position.PLAIN)
        held = draw(st.integers(1, most))
        behind = [s.layers.end for s in shards if s.layers.end < model.layers]
        starts = st.integers(0, model.layers - 1)
        start = draw(st.one_of(st.just(0), *map(st.just, behind[-2:]), starts))
        shards.append(Shard(machine.id, LayerRange(start, min(model.layers, start + held))))
    return fleet, model, tuple(shards)


def all_placements(fleet: Fleet, model: ModelShape) -> Iterator[Placement]:
    """Every way to give each machine a range that it holds."""
    choices = [
        [
            Shard(machine.id, layers)
            for start in range(model.layers)
            for end in range(start + 1, model.layers + 1)
            if len(layers := LayerRange(start, end))
            <= capacity(machine, model, position_of(layers, model))
        ]
        for machine in fleet.machines
    ]
    yield from product(*(choice for choice in choices if choice))


def best_by_force(fleet: Fleet, model: ModelShape, partial: bool) -> float:
    """The largest max flow of any placement; only those whose weakest layer could pass more are
    worked out.
    """
    best = 0.0
    for placement in all_placements(fleet, model):
        there = [0.0] * model.layers
        for machine_id, layers in placement:
            rate = tokens_per_s(fleet.by_id[machine_id], model, len(layers))
            for layer in range(layers.start, layers.end):
                there[layer] += rate
        if min(there) > best:
            flow = max_flow(fleet, model, placement, partial=partial)
            best = max(best, flow.tokens_per_s)
    return best
