"""Helix's clusters served by Helix's placement: the published behaviour in a short window.

The full windows are rows of `benchmarks.scheduler.simulator`; the reference values here are those
of other simulators of the same machines, so the margins are wide.
"""

from __future__ import annotations

import pytest

from benchmarks.scheduler.worlds import cluster, shipped_placement
from matcher.planning.pictures import mean_utilisation
from scheduler.flow.max_flow import max_flow
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.traces import poisson
from scheduler.simulate.work import ClosedLoop

LENGTHS = poisson(0, 3000)


def served(name: str, *, chunk_tokens: int | None, seconds: float) -> SimReport:
    fleet, model = cluster(name)
    placement, _ = shipped_placement(name, "helix", model)
    router = IwrrRouter.of(fleet, model, placement, max_flow(fleet, model, placement).links)
    options = SimOptions(
        60,
        seconds,
        chunk_tokens=chunk_tokens,
        decode_first=chunk_tokens is not None,
        helix_rules=True,
    )
    work = ClosedLoop(LENGTHS, drops_refused=True)
    return simulate(fleet, model, placement, router, work, options)


@pytest.fixture(scope="module")
def whole_prompts() -> SimReport:
    return served("single24", chunk_tokens=None, seconds=100)


def test_helix_serves_what_it_published_on_one_region(whole_prompts):
    assert whole_prompts.decode_tokens_per_s == pytest.approx(253, rel=0.15)
    assert whole_prompts.decode.mean_s == pytest.approx(1.44, rel=0.15)


def test_its_machines_idle_most_of_the_time(whole_prompts):
    assert 0.2 < mean_utilisation(whole_prompts) < 0.58


def test_chunks_end_the_convoy(whole_prompts):
    chunked = served("single24", chunk_tokens=256, seconds=100)
    assert chunked.decode.mean_s < 0.9 * whole_prompts.decode.mean_s
    assert chunked.decode.p95_s < 0.7 * whole_prompts.decode.p95_s
    assert chunked.decode_tokens_per_s > 1.1 * whole_prompts.decode_tokens_per_s
    assert mean_utilisation(chunked) > mean_utilisation(whole_prompts)


def test_helix_waits_for_its_slow_links_between_regions():
    report = served("geo24", chunk_tokens=None, seconds=200)
    assert report.decode_tokens_per_s == pytest.approx(110, rel=0.25)
    assert report.decode.mean_s == pytest.approx(2.2, rel=0.2)
    regions = {machine.id: machine.region for machine in cluster("geo24")[0].machines}
    for link in report.links[:3]:
        assert regions[link.source_id] != regions[link.target_id]
        assert link.max_wait_s > 1.0
