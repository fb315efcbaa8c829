"""Which hops a placement allows."""

from __future__ import annotations

import math

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, Link, Links
from scheduler.simulate.dispatch.topology import Topology
from tests.scheduler.simulate.toy import MODEL, fleet_of, machine, placed


def pairs(topology: Topology) -> set[tuple[str, str]]:
    return {(hop.source_id, hop.target_id) for hop in topology.hops}


HOME = "coordinator"
FLEET = fleet_of(machine("a"), machine("b"), machine("c"))


def test_a_hop_leads_where_the_next_range_begins():
    topology = Topology.of(FLEET, MODEL, placed(a=(0, 2), b=(2, 4), c=(1, 4)))
    assert pairs(topology) == {(HOME, "a"), ("a", "b"), ("b", HOME), ("c", HOME)}


def test_with_partial_slices_a_hop_leads_into_a_range_too():
    topology = Topology.of(FLEET, MODEL, placed(a=(0, 2), b=(2, 4), c=(1, 4)), partial=True)
    assert ("a", "c") in pairs(topology)
    (hop,) = [hop for hop in topology.hops if (hop.source_id, hop.target_id) == ("a", "c")]
    assert hop.stage is not None and hop.stage.layers == LayerRange(2, 4)


def test_machines_that_cannot_reach_each_other_are_not_joined():
    cut = {("a", "b"): Link(math.inf)}
    fleet = fleet_of(machine("a"), machine("b"), pairs=cut)
    assert ("a", "b") not in pairs(Topology.of(fleet, MODEL, placed(a=(0, 2), b=(2, 4))))


def test_without_a_coordinator_everybody_reaches_home():
    fleet = Fleet((machine("a"), machine("b")), Links(default_ms=1.0))
    topology = Topology.of(fleet, MODEL, placed(a=(0, 2), b=(2, 4)))
    assert pairs(topology) == {(HOME, "a"), ("a", "b"), ("b", HOME)}
