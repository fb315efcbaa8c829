"""Which hops does a placement allow?"""

from __future__ import annotations

from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Coordinator, Fleet, Located, ModelShape, Placement, Shard

#: Vertex of the coordinator, at both ends of every route.
HOME = 0


@dataclass(frozen=True, slots=True)
class Hop:
    """A directed link that a request may take. ``stage`` is what it runs there, None at home."""

    id: int
    source: int
    target: int
    source_id: str
    target_id: str
    stage: Shard | None


@dataclass(frozen=True)
class Topology:
    """Vertex 0 is the coordinator, then come machines; ``out`` has the hops that leave a vertex."""

    ids: tuple[str, ...]
    hops: tuple[Hop, ...]
    out: tuple[tuple[Hop, ...], ...]
    layers: int

    @classmethod
    def of(
        cls, fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
    ) -> Topology:
        """The hops of a placement between machines that reach each other.

        A hop leads where the next range begins exactly at the end of the last one, or with
        ``partial`` also into the middle of a range that goes beyond it.
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
                stage = _stage(reached, target, model, partial)
                if a == b or (stage is None and (b != HOME or reached < model.layers)):
                    continue
                at_home = HOME in (a, b) and fleet.coordinator is None
                if at_home or fleet.links.between(at[a], at[b]) is not None:
                    hops.append(Hop(len(hops), a, b, ids[a], ids[b], stage))
            out.append(tuple(hops[first:]))
        return cls(ids, tuple(hops), tuple(out), model.layers)


def _stage(reached: int, shard: Shard | None, model: ModelShape, partial: bool) -> Shard | None:
    """What a request that has run `reached` layers runs at a shard; None: it cannot go there."""
    if shard is None or reached == model.layers:
        return None
    layers = shard.layers
    if layers.start == reached:
        return shard
    if partial and layers.start < reached < layers.end:
        return Shard(shard.machine_id, LayerRange(reached, layers.end))
    return None
