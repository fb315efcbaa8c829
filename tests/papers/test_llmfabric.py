"""What the LLMFabric paper prints about placement (§3.3, §5) holds in `scheduler.fabric`.

Figure 6's ratio of RTX 3090 to H100 is in tests/scheduler/fabric/test_roofline.py.
"""

from __future__ import annotations

import math

import pytest

from benchmarks.scheduler.fabric import PAPER, TYPES, models, traces
from benchmarks.scheduler.measure.replay import replay_plan
from benchmarks.scheduler.peers.memory_proportional import evaluate_allocation, memory_proportional
from scheduler.fabric.place import FabricPlan, place
from scheduler.fabric.world import GpuType, Overloaded
from scheduler.fleet.errors import PlanError
from tests.scheduler.fabric.checking import check_plan
from tests.scheduler.fabric.worlds import demand, gpu


def test_memory_proportional_is_table_1() -> None:
    """§5: GPUs ∝ rate × parameters. 4 A100 | 16 A100 | 32 GH200 + 4 A100."""
    assert memory_proportional(TYPES, models(1.0)) == {
        "13B": {"A100": 4},
        "34B": {"A100": 16},
        "70B": {"A100": 4, "GH200": 32},
    }
    assert memory_proportional(TYPES, models(1 / 60)) == memory_proportional(TYPES, models(1.0))


def test_printed_rates_exceed_the_peak_of_the_printed_gpus() -> None:
    """Two operations per parameter and token alone need more than every tensor core gives, so the
    rates are scaled.
    """
    asked = sum(
        d.requests_per_s
        * (d.workload.input_tokens + d.workload.output_tokens)
        * d.shape.layers
        * d.shape.flops_per_layer_per_token
        for d in models(1.0)
    )
    peak = sum(card.count * card.tflops * 1e12 for card in TYPES)
    assert asked > 1.5 * peak
    with pytest.raises(Overloaded, match="more than these GPUs serve") as refused:
        place(TYPES, models(1.0))
    assert 0.15 < refused.value.load_factor < 0.3


@pytest.mark.parametrize("scale", [1 / 60, 0.05, 0.1, 0.12])
def test_placement_is_proven_best_and_beats_memory_proportional(scale: float) -> None:
    """§5, Figure 5, with the printed rates per minute (1/60) and at larger shares."""
    demands = models(scale)
    ours = place(TYPES, demands)
    check_plan(ours)
    assert ours.gap == 0.0
    mem = evaluate_allocation(TYPES, demands, memory_proportional(TYPES, demands))
    paper = evaluate_allocation(TYPES, demands, PAPER)
    for other in (mem, paper):
        check_plan(other)
        assert ours.value < other.value < math.inf
    weighted = place(TYPES, demands, "weighted")
    assert weighted.mean_latency_ms < mem.mean_latency_ms


def test_memory_proportional_gives_up_where_placement_still_serves() -> None:
    """§5: "a resource imbalance that starves the 34B model"."""
    demands = models(0.18)
    mem = evaluate_allocation(TYPES, demands, memory_proportional(TYPES, demands))
    assert [math.isinf(part.latency_ms) for part in mem.parts] == [False, True, False]
    assert math.isinf(mem.value)
    assert math.isfinite(place(TYPES, demands).value)


def test_replay_of_both_placements_orders_them_as_the_closed_form_does() -> None:
    """§3.3: the simulator drives the decision; iteration by iteration it agrees with the form that
    decided.
    """
    demands = models(0.15)
    work = traces(demands, 30.0, seed=3)

    def mean_ms(plan: FabricPlan) -> list[float]:
        served = replay_plan(plan, work)
        return [
            sum(sum(one.total_ms) for one in replicas) / sum(len(one.total_ms) for one in replicas)
            for replicas in served
        ]

    ours, mem = (
        place(TYPES, demands),
        evaluate_allocation(TYPES, demands, memory_proportional(TYPES, demands)),
    )
    served, starved = mean_ms(ours), mean_ms(mem)
    assert sum(served) < sum(starved)
    assert starved[1] > 1.5 * served[1]  # the 34B model
    for replayed, part in zip(served, ours.parts, strict=True):
        assert replayed == pytest.approx(part.latency_ms, rel=0.25)


def test_replay_refuses_what_it_cannot_know() -> None:
    together = place([gpu(count=1, gib=12)], [demand("a", 0.01), demand("b", 0.01)], sharing=True)
    with pytest.raises(PlanError, match="shares"):
        replay_plan(together, [[], []])
    types, asked = [gpu(count=1, gib=1.0)], [demand()]
    nowhere = evaluate_allocation(types, asked, {"m": {"big": 1}})
    with pytest.raises(PlanError, match="nothing"):
        replay_plan(nowhere, [[]])


def test_memory_proportional_of_few_gpus_leaves_one_for_each() -> None:
    types = [GpuType("a", 2, 10, 1.0, 1.0), GpuType("b", 1, 20, 1.0, 1.0)]
    asked = [demand("small", 0.1), demand("large", 900.0), demand("mid", 800.0)]
    given = memory_proportional(types, asked)
    assert {name: sum(gpus.values()) for name, gpus in given.items()} == {
        "small": 1,
        "mid": 1,
        "large": 1,
    }
    assert given["large"] == {"b": 1}
    with pytest.raises(PlanError):
        memory_proportional(types[:1], asked)
