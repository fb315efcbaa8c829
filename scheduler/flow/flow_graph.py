"""Which network does a placement make of a cluster? (Helix §4.3)

Vertex 0 is the source and vertex 1 the sink, both the coordinator; machine number i of the
placement is the pair c_i^in = 2 + 2i and c_i^out = 3 + 2i. One unit of flow is one token a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from scheduler.fleet.costs import (
    hop_ms,
    link_tokens_per_s,
    prefill_ms_per_layer,
    tau_ms_per_layer,
    tokens_per_s,
)
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Coordinator, Fleet, Machine, ModelShape, Placement, Shard
from scheduler.flow.valid import check_shards

SOURCE, SINK = 0, 1
#: Flows are counted in whole 2^-24 tokens/s: exact sums, and exact as floats up to 2^29 tokens/s.
UNITS_PER_TOKEN = 2**24


@dataclass(frozen=True)
class FlowGraph:
    """A network of arcs (tail, head, capacity in 2^-24 tokens/s).

    The first ``len(placement)`` arcs are (c_i^in, c_i^out), the rest are connections; ``ends``
    names both ends of each arc, a machine's own arc by its id twice. A connection that is faster
    than its machines counts as one unit faster than the slower of them: never infinite, and never
    in a minimum cut.
    """

    fleet: Fleet
    model: ModelShape
    placement: Placement
    coordinator_id: str
    arcs: tuple[tuple[int, int, int], ...]
    ends: tuple[tuple[str, str], ...]

    @property
    def vertices(self) -> int:
        return 2 + 2 * len(self.placement)

    @cached_property
    def latency_ms(self) -> tuple[float, ...]:
        """What a token pays on each arc: the hop, and on its way in the layers it needs there."""
        return self._paid_ms(tau_ms_per_layer, 1)

    def prompt_ms(self, tokens: int) -> tuple[float, ...]:
        """The same for a prompt of that many tokens, the time to put it on links left out."""
        return self._paid_ms(lambda m, model: prefill_ms_per_layer(m, model, tokens), 0)

    def _paid_ms(
        self, ms_per_layer: Callable[[Machine, ModelShape], float], sent_tokens: int
    ) -> tuple[float, ...]:
        of, links = self.fleet.by_id, self.fleet.links
        shards, coordinator = self.placement, self.fleet.coordinator
        per_layer = [ms_per_layer(of[shard.machine_id], self.model) for shard in shards]
        paid = [0.0] * len(shards)
        for (tail, head, _), (a, b) in zip(
            self.arcs[len(shards) :], self.ends[len(shards) :], strict=True
        ):
            start = 0 if tail == SOURCE else shards[(tail - 3) // 2].layers.end
            from_ = coordinator if tail == SOURCE else of[a]
            to = coordinator if head == SINK else of[b]
            hop = hop_ms(links, from_, to, self.model, sent_tokens) if from_ and to else 0.0
            if head != SINK:
                at = (head - 2) // 2
                hop += per_layer[at] * (shards[at].layers.end - start)
            paid.append(hop)
        return tuple(paid)


def flow_graph(
    fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
) -> FlowGraph:
    """The flow graph of a placement; its maximum flow is the throughput that Helix plans for.

    A connection is valid from the coordinator to a machine with layer 0, from a machine with layer
    L − 1 to the coordinator, and from c_i to c_j where c_j's first layer is the one after c_i's
    last (s_j = e_i), or with ``partial`` where c_j holds it anywhere (s_j ≤ e_i < e_j). Without a
    coordinator both ends are free and unlimited.

    Raises PlanError on a machine that is unknown or placed twice, or on layers outside the model.
    """
    coordinator = fleet.coordinator
    coordinator_id = (coordinator or Coordinator()).id
    if coordinator_id in fleet.by_id:
        raise FleetError(f"machine {coordinator_id} has the coordinator's id")
    check_shards(placement, fleet, model)
    machines = [fleet.by_id[shard.machine_id] for shard in placement]
    passes = [
        _units(tokens_per_s(machine, model, len(shard.layers)))
        for machine, shard in zip(machines, placement, strict=True)
    ]
    arcs = [(2 + 2 * i, 3 + 2 * i, passes[i]) for i in range(len(placement))]
    ends = [(machine.id, machine.id) for machine in machines]

    def connect(tail: int, head: int, a: Machine | None, b: Machine | None, machines: int) -> None:
        from_, to, most = a or coordinator, b or coordinator, machines + 1
        if from_ is not None and to is not None:
            most = min(most, _units(link_tokens_per_s(fleet.links, from_, to, model), most))
        if most:
            arcs.append((tail, head, most))
            ends.append((a.id if a else coordinator_id, b.id if b else coordinator_id))

    for i, (machine, shard) in enumerate(zip(machines, placement, strict=True)):
        if shard.layers.start == 0:
            connect(SOURCE, 2 + 2 * i, None, machine, passes[i])
    for i, follows in enumerate(_successors(placement, model.layers, partial)):
        for j in follows:
            slower = min(passes[i], passes[j])
            connect(3 + 2 * i, 2 + 2 * j, machines[i], machines[j], slower)
        if placement[i].layers.end == model.layers:
            connect(3 + 2 * i, SINK, machines[i], None, passes[i])
    return FlowGraph(fleet, model, placement, coordinator_id, tuple(arcs), tuple(ends))


def _successors(placement: Sequence[Shard], layers: int, partial: bool) -> list[list[int]]:
    """For each shard, those that hold the layer right after its last, in order of the placement."""
    holding: list[list[int]] = [[] for _ in range(layers + 1)]
    for j, (_, held) in enumerate(placement):
        for layer in range(held.start, held.end) if partial else (held.start,):
            holding[layer].append(j)
    return [holding[shard.layers.end] for shard in placement]


def _units(rate: float, otherwise: int = 0) -> int:
    """Rounded down, so that a flow is never above what the true capacities allow."""
    return otherwise if rate == float("inf") else int(rate * UNITS_PER_TOKEN)
