"""A simulated stage that queues as miners do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scheduler.measure.fit import FittedCost
from benchmarks.scheduler.measure.miner_simulation import MinerSimulation, line_of
from benchmarks.scheduler.routers.fixed import FixedRouter
from core.protocol.types import LayerRange
from scheduler.fleet.errors import FleetError
from scheduler.fleet.workload import Arrival
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.options import SimOptions
from scheduler.simulate.passes import make_worker
from scheduler.simulate.world import RunningRequest, SimLink, Visit, Worker
from tests.scheduler.simulate.toy import MODEL, fleet_of, machine, placed

MINERS = SimOptions(
    warmup_s=0.0,
    duration_s=100.0,
    chunk_tokens=128,
    frames=True,
    decode_first=False,
)


def worker(start: int, end: int) -> Worker:
    made = make_worker(machine("a"), MODEL, LayerRange(start, end), MINERS, {})
    made.former = line_of(start == 0, MINERS)
    return made


def visit(worker: Worker, number: int, first: int = 1, end: int = 2) -> Visit:
    running = RunningRequest(number, 0.0, 300, 5)
    base = Visit(running, worker, SimLink("home", "a", 0.0, 0.0, 0.0), None, 1, 2)
    running.visits = [base]
    return base if first == 1 and end == 2 else base.prompt(first, end)


def test_one_chunk_of_a_prompt_is_in_line_at_a_time():
    stage = worker(0, 4)
    line = stage.former
    prompt = visit(stage, 1, 0, 300)
    line.add_prefill(prompt)
    spans = []
    while (batch := line.form()) is not None:
        spans += [(chunk.first, chunk.end) for chunk in batch.prefills]
        assert line.form() is None
        for chunk in line.after(batch):
            line.add_prefill(chunk)
    assert spans == [(0, 128), (128, 256), (256, 300)]
    assert len(line) == 0


def test_chunks_that_arrive_while_one_runs_wait_for_it():
    stage = worker(2, 4)
    line = stage.former
    whole = visit(stage, 1, 0, 300)
    for first, end in ((0, 128), (128, 256), (256, 300)):
        line.add_prefill(whole.base.prompt(first, end))
    batch = line.form()
    assert batch is not None and [chunk.end for chunk in batch.prefills] == [128]
    (following,) = line.after(batch)
    assert (following.first, following.end) == (128, 256)


def test_prompts_of_several_requests_share_a_batch_while_nobody_decodes():
    stage = worker(0, 4)
    line = stage.former
    for number in range(6):
        line.add_prefill(visit(stage, number, 0, 128))
    batch = line.form()
    assert batch is not None and len(batch.prefills) == 4


def test_a_cancelled_request_leaves_nothing_behind():
    stage = worker(0, 4)
    line = stage.former
    line.add_prefill(visit(stage, 1, 0, 300))
    batch = line.form()
    assert batch is not None
    line.cancel(1)
    assert line.after(batch) == []
    assert line.form() is None and len(line) == 0


def served(
    stages: int,
    requests: int,
    *,
    latency_ms: float = 0.0,
    pass_ms: float = 10.0,
    step_ms: float = 0.0,
):
    machines = [machine(f"m{i}") for i in range(stages)]
    fleet = fleet_of(*machines, latency_ms=latency_ms, mbit_s=None)
    layers = 4 // stages
    placement = placed(**{f"m{i}": (i * layers, (i + 1) * layers) for i in range(stages)})
    kv = KvEstimate(fleet, MODEL, placement, high_water=1.0, output_tokens=0)
    costs = {
        f"m{i}": FittedCost(pass_ms / layers, 0.0, step_ms / layers, 0.0) for i in range(stages)
    }
    trace = [Arrival(0.0, 10, 401)] * requests
    options = replace(MINERS, duration_s=2.0)
    router = FixedRouter([placement], kv)
    return MinerSimulation(fleet, MODEL, placement, router, trace, options, costs).run()


def test_one_request_goes_round_in_the_time_of_its_passes_and_links():
    report = served(2, 1, latency_ms=5.0)
    assert report.decode.mean_s == pytest.approx(0.010 * 2 + 0.005 * 3, rel=0.01)


def test_two_microbatches_keep_two_equal_stages_busy():
    """Steps of 2 ms each: all eight together would take 36 ms a round, and each stage would stand
    idle for half of it.
    """
    report = served(2, 8, pass_ms=2.0, step_ms=2.0)
    assert report.decode.mean_s == pytest.approx(0.020, rel=0.02)
    assert report.decode_tokens_per_s == pytest.approx(8 / 0.020, rel=0.05)
    assert all(node.utilisation > 0.95 for node in report.nodes)


def test_rules_of_miners_want_chunks_frames_and_plain_links():
    for wrong in ({"frames": False}, {"chunk_tokens": None}, {"decode_first": True}):
        fleet, placement = fleet_of(machine("a")), placed(a=(0, 4))
        router = FixedRouter([placement], KvEstimate(fleet, MODEL, placement))
        with pytest.raises(FleetError, match="miners"):
            MinerSimulation(fleet, MODEL, placement, router, [], replace(MINERS, **wrong))


def test_the_same_arguments_give_the_same_report():
    assert served(2, 8) == served(2, 8)
