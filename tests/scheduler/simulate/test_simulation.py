"""The simulator: times worked out by hand, nothing lost, same seed same report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.measure.fit import FittedCost
from benchmarks.scheduler.routers.fixed import FixedRouter
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, Links
from scheduler.fleet.workload import Arrival
from scheduler.flow.max_flow import max_flow
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.options import FleetChange, SimOptions
from scheduler.simulate.simulation import Simulation, simulate
from scheduler.simulate.traces import poisson
from scheduler.simulate.work import ClosedLoop
from tests.scheduler.simulate.toy import MODEL, fleet_of, machine, placed

WHOLE = SimOptions(warmup_s=0, duration_s=10, chunk_tokens=None)
CHAIN = placed(a=(0, 2), b=(2, 4))
TWICE = placed(a=(0, 2), b=(2, 4), c=(0, 2), d=(2, 4))


def fixed(fleet, *pipelines, **marks):
    placement = tuple(shard for pipeline in pipelines for shard in pipeline)
    return FixedRouter(pipelines, KvEstimate(fleet, MODEL, placement, **marks))


def run(fleet, work, options=WHOLE, pipelines=(CHAIN,), costs=None, **marks):
    placement = tuple(dict.fromkeys(shard for pipeline in pipelines for shard in pipeline))
    router = fixed(fleet, *pipelines, **marks)
    return simulate(fleet, MODEL, placement, router, work, options, costs)


def chain(**options):
    return fleet_of(machine("a", **options), machine("b", **options))


def test_one_request_takes_the_time_worked_out_by_hand():
    report = run(chain(), [Arrival(0.0, 100, 3)])
    # home 1 + 5, two layers 20, hop 100 + 5, two layers 20, home 0.01 + 5
    assert report.prompt.mean_s == pytest.approx(0.15601)
    # 0.01 + 5, 20, 1 + 5, 20, 0.01 + 5
    assert report.decode.mean_s == pytest.approx(0.05602)
    assert (report.decode.count, report.finished_requests) == (2, 1)
    assert report.decode_tokens_per_s == pytest.approx(0.2)
    assert report.prompt_tokens_per_s == pytest.approx(10)


def test_chunks_of_a_prompt_overlap_on_their_way():
    report = run(chain(), [Arrival(0.0, 100, 1)], replace(WHOLE, chunk_tokens=50))
    # the second chunk leaves the first machine at 116 ms, arrives at 121, is done at 131
    assert report.prompt.mean_s == pytest.approx(0.13601)


def test_without_a_coordinator_the_way_home_costs_nothing():
    fleet = Fleet((machine("a"), machine("b")), Links(default_ms=5.0))
    report = run(fleet, [Arrival(0.0, 100, 2)])
    assert report.prompt.mean_s == pytest.approx(0.045)
    assert report.decode.mean_s == pytest.approx(0.045)


def test_a_fixed_time_per_message_and_per_step_is_charged():
    options = replace(WHOLE, message_s=0.001, coordinator_s=0.01)
    report = run(chain(), [Arrival(0.0, 100, 2)], options)
    assert report.prompt.mean_s == pytest.approx(0.15601 + 3 * 0.001)
    assert report.decode.mean_s == pytest.approx(0.05602 + 3 * 0.001 + 0.01)


def test_helix_rules_double_a_lone_decode_step_and_charge_copies():
    copy_s = 1000 / 4e9 + 1000 / 5e9
    report = run(chain(), [Arrival(0.0, 100, 2)], replace(WHOLE, helix_rules=True))
    assert report.prompt.mean_s == pytest.approx(0.15601 + 2 * 100 * copy_s)
    assert report.decode.mean_s == pytest.approx(0.05602 + 0.04 + 2 * copy_s)
    assert report.decode.count == 2


def test_a_model_without_profile_uses_its_roofline_and_its_head():
    model = replace(MODEL, head_bytes=1000, head_flops_per_token=0.0)
    one = fleet_of(replace(machine("a"), profile=None, bandwidth_gb_s=1e-6), mbit_s=None)
    placement = placed(a=(0, 4))
    router = FixedRouter([placement], KvEstimate(one, model, placement))
    report = simulate(one, model, placement, router, [Arrival(0.0, 8, 2)], WHOLE)
    # 1 byte a layer at 1 kB/s and 1,000 bytes of head: 4 ms + 1 s, twice 5 ms of latency
    assert report.decode.mean_s == pytest.approx(1.014)


def test_a_fitted_cost_may_replace_a_machines_own():
    cost = FittedCost(a_ms=1.0, b_ms=0.0, c_ms=2.0, d_ms=0.01)
    report = run(chain(), [Arrival(0.0, 99, 2)], costs={"a": cost})
    # two layers × (1 + 2 + 0.01 × 100) ms instead of 20
    assert report.decode.mean_s == pytest.approx(0.05602 - 0.02 + 0.008)


def test_a_request_may_enter_a_slice_in_the_middle():
    pipelines = (placed(a=(0, 3)), placed(b=(1, 4)))
    placement = placed(a=(0, 3), b=(1, 4))
    fleet = chain()
    route = (placed(a=(0, 3))[0], placed(b=(3, 4))[0])
    router = FixedRouter([route], KvEstimate(fleet, MODEL, placement))
    report = simulate(fleet, MODEL, placement, router, [Arrival(0.0, 100, 2)], WHOLE)
    # 30 ms on a, one layer of 10 ms on b
    assert report.decode.mean_s == pytest.approx(0.05602)
    assert pipelines


def test_steps_over_different_layers_of_one_slice_share_its_pass():
    placement = placed(a=(0, 4))
    fleet = chain()
    routes = [(placed(a=(0, 2))[0], placed(b=(2, 4))[0]), placed(a=(0, 4))]
    router = FixedRouter(routes, KvEstimate(fleet, MODEL, (*placement, placed(b=(2, 4))[0])))
    both = (*placement, placed(b=(2, 4))[0])
    trace = [Arrival(0.0, 10, 50), Arrival(0.0, 10, 50)]
    report = simulate(fleet, MODEL, both, router, trace, WHOLE)
    assert report.finished_requests == 2


@pytest.mark.parametrize("chunk", [None, 64])
def test_everything_offered_is_served_and_every_page_given_back(chunk):
    fleet = fleet_of(*(machine(name, decode_ms=0.5, prefill_ms=0.01) for name in "abcd"))
    flow = max_flow(fleet, MODEL, TWICE).links
    router = IwrrRouter.of(fleet, MODEL, TWICE, flow)
    trace = poisson(5, 60, requests_per_s=4.0)
    sim = Simulation(fleet, MODEL, TWICE, router, trace, SimOptions(0, 300, chunk_tokens=chunk))
    report = sim.run()
    assert report.finished_requests == 60
    assert report.prompt.count == 60
    assert report.decode.count == sum(arrival.output_tokens - 1 for arrival in trace)
    assert all(worker.ledger.used_pages == 0 for worker in sim.workers.values())
    assert all(len(worker.former) == 0 for worker in sim.workers.values())
    assert not sim.coordinator.running and not sim.network.heap
    assert set(router.kv.used.values()) == {0}


def test_an_open_loop_below_capacity_serves_what_is_offered():
    fleet = fleet_of(*(machine(n, decode_ms=0.5, prefill_ms=0.01) for n in "ab"), mbit_s=None)
    trace = poisson(1, 600, requests_per_s=4.0)
    report = run(fleet, trace, SimOptions(30, 80, chunk_tokens=256))
    offered = [a for a in trace if 30 <= a.at_s < 110]
    assert report.prompt_tokens_per_s == pytest.approx(
        sum(a.input_tokens for a in offered) / 80, rel=0.05
    )
    assert report.mean_in_flight == pytest.approx(
        (report.finished_requests / 80) * (report.prompt.mean_s + 231 * report.decode.mean_s),
        rel=0.15,
    )


def test_same_seed_same_report_and_other_seed_another():
    lengths = poisson(0, 50)
    reports = [
        run(chain(), ClosedLoop(lengths), SimOptions(5, 20, seed=seed)) for seed in (1, 1, 2)
    ]
    assert reports[0] == reports[1] != reports[2]


def test_a_closed_loop_keeps_the_caches_filled_to_the_mark():
    fleet = fleet_of(*(machine(n, decode_ms=1, kv_tokens=20_000) for n in "ab"), mbit_s=None)
    router = fixed(fleet, CHAIN, high_water=1.0)
    options = SimOptions(30, 60, chunk_tokens=256)
    sim = Simulation(fleet, MODEL, CHAIN, router, ClosedLoop(poisson(0, 200), fill=0.5), options)
    sim.run()
    assert router.kv.bottleneck() == pytest.approx(0.5, abs=0.15)


def test_requests_wait_in_order_of_arrival_and_are_never_dropped():
    fleet = chain(kv_tokens=1000)
    trace = [Arrival(0.0, 600, 5), Arrival(0.01, 600, 5), Arrival(0.02, 10, 5)]
    report = run(fleet, trace, high_water=1.0, output_tokens=10)
    assert (report.finished_requests, report.dropped) == (3, 0)
    assert report.refusals > 0
    assert report.first_token.max_s > report.prompt.max_s


def test_a_request_that_fits_nowhere_is_dropped_and_does_not_block_the_others():
    report = run(chain(kv_tokens=1000), [Arrival(0.0, 1500, 5), Arrival(0.0, 10, 5)])
    assert (report.finished_requests, report.dropped) == (1, 1)


def test_want_of_pages_starts_a_request_again_and_loses_no_token():
    # both are let in on their estimate of 1 token, and outgrow the cache together
    fleet = chain(kv_tokens=160)
    trace = [Arrival(0.0, 48, 60), Arrival(0.0, 48, 60)]
    report = run(fleet, trace, high_water=1.0, output_tokens=1)
    assert report.restarts > 0
    assert report.finished_requests == 2
    assert report.decode.count == 2 * 59
    assert max(node.kv_peak for node in report.nodes) <= 1.0


def test_a_crash_moves_its_requests_elsewhere_and_they_end_with_all_their_tokens():
    fleet = fleet_of(*(machine(name) for name in "abcd"))
    pipelines = (CHAIN, placed(c=(0, 2), d=(2, 4)))
    trace = [Arrival(i * 0.05, 50, 40) for i in range(20)]
    for at_s in (0.1, 0.5, 0.77, 1.3):
        options = replace(WHOLE, duration_s=60, changes=(FleetChange(at_s, "b", "crash"),))
        report = run(fleet, trace, options, pipelines)
        assert report.restarts > 0
        assert report.finished_requests == 20
        assert report.decode.count == 20 * 39
        assert report.prompt.count == 20


def test_a_machine_that_leaves_ends_what_it_has_and_gets_nothing_new():
    fleet = fleet_of(*(machine(name) for name in "abcd"))
    pipelines = (CHAIN, placed(c=(0, 2), d=(2, 4)))
    trace = [Arrival(i * 0.1, 50, 30) for i in range(20)]
    options = replace(WHOLE, duration_s=60, changes=(FleetChange(0.5, "a", "leave"),))
    report = run(fleet, trace, options, pipelines)
    assert (report.restarts, report.finished_requests) == (0, 20)
    by_id = {node.machine_id: node for node in report.nodes}
    prompts = {name: by_id[name].passes * by_id[name].mean_prefill_tokens / 50 for name in "ac"}
    assert prompts["a"] == pytest.approx(3) and prompts["c"] == pytest.approx(17)


def test_requests_wait_for_a_machine_that_joins():
    options = replace(WHOLE, changes=(FleetChange(2.0, "b", "join"),))
    report = run(chain(), [Arrival(0.0, 100, 1)], options)
    assert report.first_token.mean_s == pytest.approx(2.15601)
    assert report.prompt.mean_s == pytest.approx(0.15601)


def test_new_weights_after_a_crash_reach_machines_that_had_no_flow():
    fleet = fleet_of(*(machine(name) for name in "abcd"))
    only_ab = {("coordinator", "a"): 1.0, ("a", "b"): 1.0, ("b", "coordinator"): 1.0}
    router = IwrrRouter.of(fleet, MODEL, TWICE, only_ab)

    def replan(present: frozenset[str]) -> None:
        left = tuple(shard for shard in TWICE if shard.machine_id in present)
        router.reweigh(max_flow(fleet, MODEL, left).links)

    options = replace(WHOLE, changes=(FleetChange(0.3, "b", "crash"),))
    report = simulate(fleet, MODEL, TWICE, router, [Arrival(0.0, 100, 20)], options, replan=replan)
    assert (report.finished_requests, report.restarts, report.decode.count) == (1, 1, 19)
    assert {node.machine_id for node in report.nodes if node.passes} >= {"a", "b", "d"}


def test_a_machine_may_crash_and_come_back():
    options = replace(
        WHOLE,
        changes=(FleetChange(0.3, "b", "crash"), FleetChange(2.0, "b", "join")),
        duration_s=20,
    )
    report = run(chain(), [Arrival(0.0, 100, 50)], options)
    assert (report.finished_requests, report.restarts, report.decode.count) == (1, 1, 49)
    assert report.decode.max_s > 1.7


def test_a_machine_that_slows_down_takes_longer():
    options = replace(WHOLE, changes=(FleetChange(0.0, "a", "speed", 0.5),))
    report = run(chain(), [Arrival(0.0, 100, 2)], options)
    assert report.decode.mean_s == pytest.approx(0.05602 + 0.02)


def test_only_what_ends_after_the_warm_up_is_counted():
    trace = [Arrival(0.0, 100, 21)]
    report = run(chain(), trace, replace(WHOLE, warmup_s=0.15601 + 0.05602 * 10 + 0.01))
    assert (report.prompt.count, report.decode.count) == (0, 10)


def test_goodput_counts_tokens_in_time_of_requests_in_time():
    trace = [Arrival(0.0, 100, 11)]
    for limits, good in (
        ({}, 10),
        ({"decode_limit_s": 0.05}, 0),
        ({"prompt_limit_s": 0.1}, 0),
        ({"prompt_limit_s": 0.2, "decode_limit_s": 0.06}, 10),
    ):
        report = run(chain(), trace, replace(WHOLE, **limits))
        assert report.goodput_tokens_per_s * 10 == pytest.approx(good)


def test_frames_let_steps_of_a_batch_arrive_together():
    trace = [Arrival(0.0, 10, 200) for _ in range(20)]
    slow = fleet_of(machine("a"), machine("b"), mbit_s=80.0)
    apart, together = (
        run(slow, trace, replace(WHOLE, duration_s=60, frames=frames)) for frames in (False, True)
    )
    assert together.decode.count == apart.decode.count == 20 * 199
    assert together.messages < apart.messages / 3
    assert together.decode.mean_s <= apart.decode.mean_s


def test_the_report_says_who_was_busy_and_where_messages_waited():
    trace = [Arrival(0.0, 100, 2), Arrival(0.0, 100, 2)]
    report = run(chain(), trace)
    by_id = {node.machine_id: node for node in report.nodes}
    assert by_id["a"].utilisation * 10 == pytest.approx(0.02 * 2 + 0.02 * 2)
    assert by_id["a"].kv_peak == pytest.approx(2 * 112 / 100_000)
    worst = report.links[0]
    assert (worst.source_id, worst.target_id) == ("a", "b")
    # the second prompt is done 20 ms after the first and waits 80 ms for the link
    assert worst.max_wait_s == pytest.approx(0.08)
    assert by_id["b"].utilisation == pytest.approx(by_id["a"].utilisation, rel=0.2)


CHANGES = st.lists(
    st.builds(
        FleetChange,
        st.floats(0.0, 20.0),
        st.sampled_from("abcd"),
        st.sampled_from(["join", "leave", "crash", "speed"]),
        st.floats(0.2, 4.0),
    ),
    max_size=8,
)


@given(CHANGES, st.integers(0, 5), st.sampled_from([None, 16]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_comes_and_goes_nothing_is_lost_or_counted_twice(changes, seed, chunk, frames):
    fleet = fleet_of(*(machine(n, decode_ms=1, prefill_ms=0.02, kv_tokens=1500) for n in "abcd"))
    trace = [
        Arrival(a.at_s, 1 + a.input_tokens % 300, 1 + a.output_tokens % 40)
        for a in poisson(seed, 25, requests_per_s=3.0)
    ]
    back = tuple(FleetChange(30.0 + i, name, "join") for i, name in enumerate("abcd"))
    options = SimOptions(0, 120, chunk_tokens=chunk, frames=frames, changes=(*changes, *back))
    flow = max_flow(fleet, MODEL, TWICE).links
    router = IwrrRouter.of(fleet, MODEL, TWICE, flow, output_tokens=10)
    sim = Simulation(fleet, MODEL, TWICE, router, trace, options)
    report = sim.run()
    assert (report.finished_requests, report.dropped, report.waiting_at_end) == (25, 0, 0)
    assert report.prompt.count == 25
    assert report.decode.count == sum(a.output_tokens - 1 for a in trace)
    assert all(worker.ledger.used_pages == 0 for worker in sim.workers.values())
    assert set(router.kv.used.values()) == {0}


def test_absurd_options_are_errors():
    for wrong in (
        {"warmup_s": -1.0},
        {"duration_s": 0.0},
        {"duration_s": float("inf")},
        {"message_s": float("nan")},
        {"decode_limit_s": 0.0},
        {"page_tokens": 0},
    ):
        with pytest.raises(FleetError):
            SimOptions(**wrong)
    for wrong in ({"at_s": -1.0}, {"factor": 0.0}):
        with pytest.raises(FleetError):
            FleetChange(**({"at_s": 0.0, "machine_id": "a", "kind": "speed"} | wrong))
    for wrong in ({"lengths": []}, {"fill": 0.0}, {"initial": 0}, {"pause_s": 0.0}):
        with pytest.raises(FleetError):
            ClosedLoop(**({"lengths": [Arrival(0, 1, 1)]} | wrong))
