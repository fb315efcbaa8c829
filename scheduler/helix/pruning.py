"""Which connections does Helix leave out to make its program smaller? (§4.5)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scheduler.fleet.costs import link_tokens_per_s
from scheduler.fleet.fleet import Fleet, Link, ModelShape, Placement
from scheduler.flow.flow_graph import flow_graph

#: The average degree that Helix prunes to.
DEGREE = 12


def prune_links(
    fleet: Fleet,
    model: ModelShape,
    degree: int = DEGREE,
    keep: Sequence[Placement] = (),
    *,
    partial: bool = False,
) -> Fleet:
    """The fleet with the ``degree`` fastest links of each machine, and those of the placements.

    A connection stays when either end wants it, both directions together; links to and from the
    coordinator all stay (there are only 2 N, and without one a machine cannot hold the first
    layer). Equal links are chosen nearest first round the circle of ids, so that a cluster of equal
    links stays connected and every machine ends at the degree; the shipped pruning kept those last
    by name, and lost the warm start's.
    """
    machines = fleet.machines
    n = len(machines)
    kept = {
        frozenset(pair) for placement in keep for pair in _used(fleet, model, placement, partial)
    }
    for i, machine in enumerate(machines):
        nearest = sorted(
            (j for j in range(n) if j != i),
            key=lambda j: (
                -link_tokens_per_s(fleet.links, machine, machines[j], model),
                fleet.links.rho_ms(machine, machines[j]),
                min((i - j) % n, (j - i) % n),
                j,
            ),
        )
        kept.update(frozenset((machine.id, machines[j].id)) for j in nearest[:degree])
    cut = {
        (a.id, b.id): Link(math.inf)
        for a in machines
        for b in machines
        if a.id != b.id and frozenset((a.id, b.id)) not in kept
    }
    links = replace(fleet.links, pairs={**fleet.links.pairs, **cut})
    return Fleet(machines, links, fleet.coordinator)


def _used(
    fleet: Fleet, model: ModelShape, placement: Placement, partial: bool
) -> list[tuple[str, str]]:
    """All connections valid in a placement, not only those of one flow: its value cannot fall."""
    graph = flow_graph(fleet, model, placement, partial=partial)
    return [(a, b) for a, b in graph.ends if a != b and graph.coordinator_id not in (a, b)]
