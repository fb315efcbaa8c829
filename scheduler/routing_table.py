"""What does the router look up, prepared once per snapshot of τ, ρ and placement?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress

import numpy as np

from scheduler.costs import CONTEXT_TOKENS, correction, kv_tokens
from scheduler.fleet import Fleet, Links, Machine, ModelShape, Shard

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """Arrays over the machines that hold a shard (g, in order of id) and over shards (s, in order of layers, id)."""

    model: ModelShape
    machines: tuple[Machine, ...]
    index: Mapping[str, int]
    shards: tuple[Shard, ...]
    dropped: tuple[Shard, ...]
    shard_machine: Ints  # [s]
    shard_layers: Ints  # [s]
    starting_at: Mapping[int, Ints]  # layer: shards that start there
    ending_at: Mapping[int, Ints]
    boundaries: tuple[int, ...]  # every layer where some shard starts or ends
    holders: tuple[Ints, ...]  # machines that hold the segment after each boundary but the last
    hop_ms: Floats  # [g, g′], infinite where unreachable
    compute_ms: Floats  # [g] roofline of one layer and one sequence, by compute
    read_ms: Floats  # [g] reading one layer's weights
    read_kv_ms: Floats  # [g] reading one sequence's KV
    correction: Floats  # [g] measured over roofline
    head_compute_ms: Floats  # [g]
    head_read_ms: Floats  # [g]
    slots: Ints  # [g] concurrent requests
    kv_tokens: Ints  # [g] room when empty

    def tau_ms(self, batch: Ints) -> Floats:
        """τ(g, ℓ) at each machine's own batch, as `costs.tau_ms_per_layer`."""
        return self.correction * np.maximum(
            batch * self.compute_ms, self.read_ms + batch * self.read_kv_ms
        )

    def head_ms(self, batch: Ints) -> Floats:
        """Time of the head on each machine at its own batch, as `costs.head_ms`."""
        return self.correction * np.maximum(batch * self.head_compute_ms, self.head_read_ms)


def prepare(
    fleet: Fleet,
    model: ModelShape,
    shards: Iterable[Shard],
    *,
    context_tokens: int = CONTEXT_TOKENS,
    hop_tokens: int = 1,
) -> RoutingTable:
    """The routing table of a snapshot. `hop_tokens` activations cross each hop at once.

    A shard of a machine outside the fleet, or beyond the model, is a stranger's claim: it ends up in ``dropped``.
    """
    claimed = sorted(set(shards), key=lambda shard: (shard.layers, shard.machine_id))
    credible = [s.machine_id in fleet.by_id and s.layers.end <= model.layers for s in claimed]
    ordered = tuple(compress(claimed, credible))
    held: dict[str, int] = {}
    for machine_id, layers in ordered:
        held[machine_id] = held.get(machine_id, 0) + len(layers)
    machines = tuple(machine for machine in fleet.machines if machine.id in held)
    index = {machine.id: g for g, machine in enumerate(machines)}
    shard_machine = np.array([index[shard.machine_id] for shard in ordered], dtype=np.int64)
    edges = sorted({edge for s in ordered for edge in (s.layers.start, s.layers.end)})
    holders = []
    for start in edges[:-1]:
        on = {index[shard.machine_id] for shard in ordered if start in shard.layers}
        holders.append(np.array(sorted(on), dtype=np.int64))
    bandwidth = np.array([machine.bandwidth_gb_s * 1e6 for machine in machines])  # bytes per ms
    flops = (
        model.flops_per_layer_per_token + model.attention_flops_per_context_token * context_tokens
    )
    return RoutingTable(
        model=model,
        machines=machines,
        index=index,
        shards=ordered,
        dropped=tuple(compress(claimed, (not ok for ok in credible))),
        shard_machine=shard_machine,
        shard_layers=np.array([len(shard.layers) for shard in ordered], dtype=np.int64),
        starting_at=_grouped(shard.layers.start for shard in ordered),
        ending_at=_grouped(shard.layers.end for shard in ordered),
        boundaries=tuple(edges),
        holders=tuple(holders),
        hop_ms=_hop_matrix(machines, fleet.links, model, hop_tokens),
        compute_ms=np.array([flops / (machine.tflops * 1e9) for machine in machines]),
        read_ms=model.layer_bytes / bandwidth,
        read_kv_ms=context_tokens * model.kv_bytes_per_token_per_layer / bandwidth,
        correction=np.array([correction(machine, model, context_tokens) for machine in machines]),
        head_compute_ms=np.array(
            [model.head_flops_per_token / (machine.tflops * 1e9) for machine in machines]
        ),
        head_read_ms=model.head_bytes / bandwidth,
        slots=np.array([machine.max_concurrent for machine in machines], dtype=np.int64),
        kv_tokens=np.array(
            [kv_tokens(machine, model, held[machine.id]) for machine in machines], dtype=np.int64
        ),
    )


def _grouped(layers: Iterable[int]) -> Mapping[int, Ints]:
    groups: dict[int, list[int]] = {}
    for s, layer in enumerate(layers):
        groups.setdefault(layer, []).append(s)
    return {layer: np.array(group, dtype=np.int64) for layer, group in groups.items()}


def _hop_matrix(
    machines: tuple[Machine, ...], links: Links, model: ModelShape, tokens: int
) -> Floats:
    """`costs.hop_ms` for every ordered pair, by region at once and then pair by pair where measured."""
    n = len(machines)
    bits = tokens * model.activation_bytes_per_token * 8
    names = sorted({machine.region for machine in machines})
    by_region = np.full((len(names), len(names)), np.inf)
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            link = links.regions.get((a, b)) or links.regions.get((b, a))
            if link is not None:
                mbit_s = link.bandwidth_mbit_s
                by_region[i, j] = link.latency_ms + (bits / (mbit_s * 1e3) if mbit_s else 0.0)
    of = np.array([names.index(machine.region) for machine in machines], dtype=np.int64)
    access = np.array([machine.access_ms for machine in machines])
    hop: Floats = by_region[np.ix_(of, of)] + access[:, None] + access[None, :]
    if links.default_ms is not None:
        known = np.array(
            [[(a, b) in links.regions or (b, a) in links.regions for b in names] for a in names]
        )
        if n:
            hop = np.where(known[np.ix_(of, of)], hop, links.default_ms)
    index = {machine.id: g for g, machine in enumerate(machines)}
    for reverse in (True, False):  # the pair itself overrides its reverse
        for (a, b), link in links.pairs.items():
            if a in index and b in index:
                mbit_s = link.bandwidth_mbit_s
                time_ms = link.latency_ms + (bits / (mbit_s * 1e3) if mbit_s else 0.0)
                hop[(index[b], index[a]) if reverse else (index[a], index[b])] = time_ms
    np.fill_diagonal(hop, 0.0)
    return hop
