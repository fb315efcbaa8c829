"""Which machines and links hold a flow back: those of any minimum cut, and of every one?

Minimum cuts are often many: in a chain of equal stages each stage is one. Picard and Queyranne
(1980): an arc that is full lies in some minimum cut exactly when no residual path leads round it,
and in every one exactly when the source reaches its tail and its head reaches the sink, over
residual arcs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.arc_flow import largest
from scheduler.flow.flow_graph import SINK, SOURCE, flow_graph


@dataclass(frozen=True, slots=True)
class Short:
    """Ends as in `Flow.cut`: links, and machines as (id, id).

    One token/s less of any of ``some`` costs the flow one token/s; one more of any of ``every``
    alone adds one.
    """

    some: tuple[tuple[str, str], ...]
    every: tuple[tuple[str, str], ...]


def short_of(
    fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
) -> Short:
    """What is short for the maximum flow, if anything flows. Raises PlanError as that does."""
    graph = flow_graph(fleet, model, placement, partial=partial)
    found = largest(graph.vertices, graph.arcs, SOURCE, SINK)
    if not found.value:
        return Short((), ())
    ahead = [(t, h) for (t, h, c), f in zip(graph.arcs, found.on_arc, strict=True) if f < c]
    back = [(h, t) for (t, h, _), f in zip(graph.arcs, found.on_arc, strict=True) if f > 0]
    tails, heads = np.array(ahead + back, dtype=np.int64).T
    shape = (graph.vertices, graph.vertices)
    residual = csr_matrix((np.ones(len(tails), dtype=np.int8), (tails, heads)), shape=shape)
    _, component = connected_components(residual, connection="strong")
    before = set(breadth_first_order(residual, SOURCE, return_predecessors=False).tolist())
    after = set(breadth_first_order(residual.T.tocsr(), SINK, return_predecessors=False).tolist())
    some, every = list[tuple[str, str]](), list[tuple[str, str]]()
    for ends, (tail, head, capacity), amount in zip(
        graph.ends, graph.arcs, found.on_arc, strict=True
    ):
        if amount == capacity and component[tail] != component[head]:
            some.append(ends)
            if tail in before and head in after:
                every.append(ends)
    return Short(tuple(some), tuple(every))
