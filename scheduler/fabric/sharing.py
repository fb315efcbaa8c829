"""Can two models take turns on the same GPUs? Small loads then need no GPU each (not in the paper).

Both engines run on every GPU of the group; an iteration of one waits for an iteration of the other
whenever that has a request running. Running requests are Poisson, so the other is busy with
probability 1 − exp(−B).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from scheduler.fabric.columns import Column, Options, Part
from scheduler.fabric.replica import ModelReplica, replica
from scheduler.fabric.world import Demand, Efficiency, GpuType, Group
from scheduler.fleet.arrays import Floats

ROUNDS = 500
SETTLED = 1e-9


def shared_columns(options: Sequence[Options], efficiency: Efficiency) -> list[Column]:
    """Every pair of models on the same replicas of one type, where memory and load allow it."""
    found = list[Column]()
    for one, other in combinations(options, 2):
        for n, gpu in enumerate(one.types):
            for tensor in gpu.tensor_degrees:
                both = shared_replicas(one.demand, other.demand, gpu, tensor, efficiency)
                if both is not None:
                    found += _columns(one, other, n, tensor, both)
    return found


def shared_replicas(
    one: Demand, other: Demand, gpu: GpuType, tensor: int, efficiency: Efficiency
) -> tuple[ModelReplica, ModelReplica] | None:
    """Both models on one group, KV room split by what each asks for; None if it is too small."""
    usable = gpu.memory_bytes * efficiency.memory
    room = usable - (one.weight_bytes + other.weight_bytes) / tensor
    wanted = []
    for demand in (one, other):
        work, shape = demand.workload, demand.shape
        tokens = (
            demand.requests_per_s
            * work.output_tokens
            * (work.input_tokens + work.output_tokens / 2)
        )
        wanted.append(tokens * shape.layers * shape.kv_bytes_per_token_per_layer)
    if room <= 0:
        return None
    replicas = []
    for demand, want in zip((one, other), wanted, strict=True):
        share = want / sum(wanted) if sum(wanted) else 0.5
        own = demand.weight_bytes / tensor + room * share
        replicas.append(replica(gpu, tensor, demand, efficiency, own))
    first, second = replicas
    return None if first is None or second is None else (first, second)


def shared_latency_ms(
    both: tuple[ModelReplica, ModelReplica], loads_per_s: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Mean latency of each model at elementwise loads on one group; infinite where overloaded.

    The least fixed point of T_a = f_a(B_a) + (1 − exp(−B_b)) f_b(B_b), B_a = λ_a μ_out T_a, and the
    same for b, from below.
    """
    outputs = [r.demand.workload.output_tokens for r in both]
    running = [np.zeros_like(loads_per_s[0]), np.zeros_like(loads_per_s[1])]
    times = [np.zeros_like(loads_per_s[0]), np.zeros_like(loads_per_s[1])]
    full = np.zeros(loads_per_s[0].shape, dtype=np.bool_)
    moving = ~full
    for _ in range(ROUNDS):
        alone = [r.iteration_ms(b) for r, b in zip(both, running, strict=True)]
        busy = [1.0 - np.exp(-b) for b in running]
        after = [alone[0] + busy[1] * alone[1], alone[1] + busy[0] * alone[0]]
        moving = np.abs(after[0] - times[0]) + np.abs(after[1] - times[1]) > SETTLED * after[0]
        times = after
        for i in (0, 1):
            grown = loads_per_s[i] * outputs[i] * times[i] / 1e3
            full |= grown >= both[i].most_running
            running[i] = np.minimum(grown, both[i].most_running)
        if not bool((moving & ~full).any()):
            break
    refused = np.where(full | moving, np.inf, 0.0)
    first, second = (
        r.times_at(b, t).total_ms + refused for r, b, t in zip(both, running, times, strict=True)
    )
    return first, second


def _columns(
    one: Options, other: Options, n: int, tensor: int, both: tuple[ModelReplica, ModelReplica]
) -> list[Column]:
    gpu = one.types[n]
    replicas = np.arange(1, gpu.count // tensor + 1)
    rates = (one.demand.requests_per_s, other.demand.requests_per_s)
    latencies = shared_latency_ms(both, (rates[0] / replicas, rates[1] / replicas))
    found = []
    for at, many in enumerate(replicas):
        group = Group(gpu.name, tensor, int(many))
        gpus = tuple(group.gpus if i == n else 0 for i in range(len(one.types)))
        parts = tuple(
            Part(of.model, (group,), float(ms[at]), rate / float(many) / r.capacity_per_s)
            for of, ms, rate, r in zip((one, other), latencies, rates, both, strict=True)
        )
        if all(np.isfinite(part.latency_ms) for part in parts):
            found.append(Column(gpus, parts))
    return found
