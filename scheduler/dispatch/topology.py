"""Which hops does a placement allow, and how much flow does each carry?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.errors import FleetError
from scheduler.fleet import Coordinator, Fleet, Located, ModelShape, Placement, Shard

#: Vertex of the coordinator, at both ends of every route.
HOME = 0


@dataclass(frozen=True, slots=True)
class Hop:
    """One directed link that a request may take. ``stage`` is what it runs at the far end, None at home."""

    id: int
    source: int
    target: int
    source_id: str
    target_id: str
    stage: Shard | None
    weight: float


@dataclass(frozen=True)
class Topology:
    """Vertex 0 is the coordinator, then the placement's machines; ``out`` lists the hops that leave a vertex."""

    ids: tuple[str, ...]
    hops: tuple[Hop, ...]
    out: tuple[tuple[Hop, ...], ...]
    layers: int

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        model: ModelShape,
        placement: Placement,
        flow: Mapping[tuple[str, str], float] | None = None,
        *,
        partial: bool = False,
    ) -> Topology:
        """The hops of a placement: those that carry ``flow``, or without it all that are possible, weight 1.

        A hop is possible where the next range begins exactly at the end of the last one, or with ``partial`` also in
        the middle of a range that goes beyond it. Refuses a flow over a hop that is not possible.
        """
        home: Located = fleet.coordinator or Coordinator()
        ids = (home.id, *(shard.machine_id for shard in placement))
        at: list[Located] = [home, *(fleet.by_id[shard.machine_id] for shard in placement)]
        hops: list[Hop] = []
        out: list[tuple[Hop, ...]] = []
        for a, source in enumerate((None, *placement)):
            reached = 0 if source is None else source.layers.end
            first = len(hops)
            for b, target in enumerate((None, *placement)):
                stage = _stage(reached, target, model, partial or flow is not None)
                if a == b or (stage is None and (b != HOME or reached < model.layers)):
                    continue
                weight = 1.0 if flow is None else flow.get((ids[a], ids[b]), 0.0)
                at_home = HOME in (a, b) and fleet.coordinator is None
                if weight > 0 and (at_home or fleet.links.between(at[a], at[b]) is not None):
                    hops.append(Hop(len(hops), a, b, ids[a], ids[b], stage, weight))
            out.append(tuple(hops[first:]))
        if flow is not None:
            known = {(hop.source_id, hop.target_id) for hop in hops}
            for pair, tokens_per_s in flow.items():
                if tokens_per_s > 0 and pair not in known:
                    raise FleetError(f"flow over {pair[0]} → {pair[1]}, where no request can go")
        return cls(ids, tuple(hops), tuple(out), model.layers)


def _stage(reached: int, shard: Shard | None, model: ModelShape, partial: bool) -> Shard | None:
    """What a request that has run `reached` layers runs at a shard; None when it cannot go there."""
    if shard is None or reached == model.layers:
        return None
    layers = shard.layers
    if layers.start == reached:
        return shard
    if partial and layers.start < reached < layers.end:
        return Shard(shard.machine_id, LayerRange(reached, layers.end))
    return None
