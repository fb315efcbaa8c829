"""Links: one message at a time, then latency; decode steps pass waiting prompts when they
go first.
"""

from __future__ import annotations

import pytest

from benchmarks.scheduler.measure.fit import FittedCost
from core.batching import BatchFormer, KvLedger
from core.protocol.types import LayerRange
from scheduler.fleet.errors import FleetError
from scheduler.simulate.network import FREE, Network
from scheduler.simulate.options import SimOptions
from scheduler.simulate.world import RunningRequest, Visit, Worker
from tests.scheduler.simulate.toy import MODEL, fleet_of, machine


def arrivals(*, decode_first: bool) -> dict[str, float]:
    """Two prompts of 100 ms each set out at 0, a decode step of 1 ms at 10 ms; latency 5 ms."""
    network = Network(
        fleet_of(machine("a"), machine("b")), MODEL, SimOptions(decode_first=decode_first)
    )
    worker = Worker("b", LayerRange(2, 4), BatchFormer(), KvLedger(9), FittedCost(1, 0, 0, 0), None)
    link = network.link("a", "b")
    visits = {
        name: Visit(RunningRequest(i, 0.0, 100, 1), worker, link, None)
        for i, name in enumerate(("first", "second", "decode"))
    }
    before = Visit(visits["decode"].running, worker, link, None)
    before.next = visits["decode"]
    network.send_prompt(visits["first"].prompt(0, 100), 0.0)
    network.send_prompt(visits["second"].prompt(0, 100), 0.0)
    network.send_decodes([before], 0.010)
    for at_s, _, kind, freed, _ in sorted(network.heap, key=lambda event: event[:2]):
        if kind == FREE:
            network.link_is_free(freed, at_s)
    while link.prompts:
        network.link_is_free(link, link.free_at)
    arrived = {("first", "second")[v.running.id]: at_s for at_s, _, v in worker.prompts_in}
    return arrived | {"decode": worker.decodes_in[0][0]}


def test_decode_steps_pass_prompts_that_wait_but_not_the_one_on_the_link():
    assert arrivals(decode_first=True) == pytest.approx(
        {"first": 0.105, "decode": 0.106, "second": 0.206}
    )


def test_without_preference_messages_keep_their_order():
    assert arrivals(decode_first=False) == pytest.approx(
        {"first": 0.105, "second": 0.205, "decode": 0.206}
    )


def test_a_link_that_does_not_exist_is_an_error():
    network = Network(fleet_of(machine("a", region="x"), machine("b")), MODEL, SimOptions())
    with pytest.raises(FleetError, match="a → b"):
        network.link("a", "b")
