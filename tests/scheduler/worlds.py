"""Small fleets and models that planner tests share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import combinations

from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.costs import Capacities
from scheduler.fleet.fleet import Fleet, Link, Links, Machine, ModelShape, Shard

LAYER_BYTES = 100


def toy_model(
    layers: int, embedding_bytes: int = 0, head_bytes: int | None = None, tied: bool = False
) -> ModelShape:
    """Layers of 100 bytes; a layer takes 1 ms on a machine of 1 Tflop/s."""
    return ModelShape(
        layers=layers,
        layer_bytes=LAYER_BYTES,
        embedding_bytes=embedding_bytes,
        head_bytes=embedding_bytes if head_bytes is None else head_bytes,
        tied=tied,
        hidden=8,
        flops_per_layer_per_token=1e9,
    )


def holding(
    machine_id: str, layers: int, tflops: float = 1.0, region: str = "", **more: object
) -> Machine:
    """A machine with room for that many toy layers and nothing else."""
    return Machine(
        machine_id,
        layers * LAYER_BYTES,
        tflops,
        1e6,
        region,
        weight_fraction=1.0,
        kv_fraction=0.0,
        **more,  # type: ignore[arg-type]
    )


def links_of(rho_ms: Mapping[tuple[str, str], float], default_ms: float | None = None) -> Links:
    """Links of these one-way latencies; ``math.inf`` marks a pair that is cut off."""
    return Links({pair: Link(ms) for pair, ms in rho_ms.items()}, {}, default_ms)


def fleet_of(*layers: int, rho_ms: float = 1.0, **more: object) -> Fleet:
    """Machines m00, m01, … that hold these numbers of toy layers, all equally far apart."""
    machines = tuple(holding(f"m{i:02}", c, **more) for i, c in enumerate(layers))
    return Fleet(machines, Links(default_ms=rho_ms))


def shard(machine_id: str, start: int, end: int) -> Shard:
    return Shard(machine_id, LayerRange(start, end))


@st.composite
def models(draw: st.DrawFn, most_layers: int = 12) -> ModelShape:
    embedding = draw(st.sampled_from([0, 30, 100, 250]))
    tied = draw(st.booleans())
    head = embedding if tied else draw(st.sampled_from([0, 40, embedding, 120]))
    return toy_model(draw(st.integers(1, most_layers)), embedding, head, tied)


@st.composite
def fleets(draw: st.DrawFn, most_machines: int = 8, regions: int = 1) -> Fleet:
    """Unequal machines; some pairs measured, some cut off, the rest by region or by default."""
    n = draw(st.integers(1, most_machines))
    machines = tuple(
        Machine(
            f"m{i:02}",
            draw(st.integers(50, 1500)),
            draw(st.sampled_from([1.0, 2.0, 3.5])),
            1.0,
            f"r{draw(st.integers(0, regions - 1))}",
            weight_fraction=1.0,
            kv_fraction=0.0,
            tau_ms_per_layer=draw(st.sampled_from([None, 0.5, 4.0])),
            access_ms=draw(st.sampled_from([0.0, 1.5])),
        )
        for i in range(n)
    )
    rho = st.sampled_from([1.0, 5.0, 40.0, math.inf])
    pairs = {
        (a.id, b.id): Link(draw(rho))
        for a, b in combinations(machines, 2)
        if draw(st.integers(0, 3)) == 0
    }
    between = {
        (f"r{i}", f"r{j}"): Link(2.0 if i == j else 30.0)
        for i in range(regions)
        for j in range(i, regions)
    }
    return Fleet(machines, Links(pairs, between, draw(st.sampled_from([None, 10.0]))))


def holds_pipeline(stages: list[Capacities], layers: int) -> bool:
    """By trying every choice of ends: can these machines hold the model, one layer each at
    least?
    """
    if len(stages) == 1:
        return stages[0].both >= layers
    return len(stages) <= layers and any(
        stages[a].first >= 1
        and stages[b].last >= 1
        and stages[a].first
        + stages[b].last
        + sum(c.plain for i, c in enumerate(stages) if i not in (a, b))
        >= layers
        for a in range(len(stages))
        for b in range(len(stages))
        if a != b
    )


def fewest_stages_by_force(stages: list[Capacities], layers: int, k: int) -> int | None:
    """s*(k) by trying every way to pick k disjoint groups of machines."""
    n = len(stages)
    groups = [
        mask
        for mask in range(1, 1 << n)
        if holds_pipeline([stages[i] for i in range(n) if mask >> i & 1], layers)
    ]

    def best(used: int, more: int, start: int) -> float:
        if more == 0:
            return 0
        return min(
            (
                groups[g].bit_count() + best(used | groups[g], more - 1, g + 1)
                for g in range(start, len(groups))
                if not groups[g] & used
            ),
            default=math.inf,
        )

    found = best(0, k, 0)
    return None if math.isinf(found) else int(found)


def leave(shards: Iterable[Shard], machine_id: str) -> tuple[Shard, ...]:
    """What is left when a machine goes (Parallax §3.4 ii)."""
    return tuple(shard for shard in shards if shard.machine_id != machine_id)
