"""The closed form obeys Little's law and stays near an iteration-by-iteration replay."""

from __future__ import annotations

import math
import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.measure.replay import replay
from scheduler.fabric.replica import ModelReplica, replica
from scheduler.fabric.world import Demand, Efficiency
from scheduler.fleet.workload import Arrival
from tests.scheduler.fabric.worlds import GIB, demand, gpu, small_shape


def of(asked: Demand, gib: float = 8, tensor: int = 1) -> ModelReplica:
    found = replica(gpu(gib=gib), tensor, asked, Efficiency())
    assert found is not None
    return found


def trace(asked: Demand, load_per_s: float, requests: int, seed: int = 1) -> list[Arrival]:
    """Poisson arrivals, lengths normal about the means (§5, experiment setup)."""
    draw, at, found = random.Random(seed), 0.0, list[Arrival]()
    work = asked.workload
    for _ in range(requests):
        at += draw.expovariate(load_per_s)
        lengths = [
            max(1, round(draw.gauss(mean, mean / 4)))
            for mean in (work.input_tokens, work.output_tokens)
        ]
        found.append(Arrival(at, *lengths))
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(200.0, 100.0), (1000.0, 30.0), (50.0, 400.0)]),
    st.sampled_from([3.0, 8.0, 40.0]),
    st.sampled_from([2, 6]),
)
def test_load_never_falls_with_the_batch_and_the_fixed_point_returns_it(
    tokens: tuple[float, float], gib: float, layers: int
) -> None:
    one = of(demand(tokens=tokens, shape=small_shape(layers)), gib)
    running = np.linspace(0, one.most_running, 200)
    load = one.requests_per_s(running)
    assert (np.diff(load) >= -1e-12).all()
    inside = load[1:-1] * (1 - 1e-9)
    assert one.requests_per_s(one.running_at(inside)) == pytest.approx(inside, rel=1e-6)


def test_time_grows_with_load_and_is_endless_from_capacity_on() -> None:
    one = of(demand())
    shares = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0, 1.5])
    total = one.times(shares * one.capacity_per_s).total_ms
    assert (np.diff(total[:5]) > 0).all()
    assert np.isinf(total[5:]).all()


def test_an_idle_replica_answers_in_one_prefill_and_the_further_tokens() -> None:
    one = of(demand(tokens=(500.0, 100.0)))
    found = one.times(np.array([1e-9]))
    step = float(one.iteration_ms(np.array(0.0)))
    assert found.token_ms[0] == pytest.approx(step)
    assert found.total_ms[0] == pytest.approx(found.first_token_ms[0] + 99 * step)
    assert found.queue_ms[0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("tokens", [(500.0, 100.0), (900.0, 300.0), (100.0, 400.0)])
@pytest.mark.parametrize(("share", "off"), [(0.1, 0.05), (0.5, 0.06), (0.8, 0.15)])
def test_closed_form_is_near_the_replay(
    tokens: tuple[float, float], share: float, off: float
) -> None:
    asked = demand(tokens=tokens)
    one = of(asked, gib=40)
    load = share * one.capacity_per_s
    requests = int(1000 * max(1.0, share * one.most_running / 20))
    served = replay(one, trace(asked, load, min(requests, 5_000)))
    warm = len(served.total_ms) // 5
    closed = float(one.times(np.array([load])).total_ms[0])
    assert closed == pytest.approx(fmean(served.total_ms[warm:]), rel=off)


def test_replay_answers_one_request_exactly() -> None:
    one = of(demand())
    served = replay(one, [Arrival(3.0, 500, 3)])

    def step(decodes: float, prompt: float, context: float) -> float:
        return float(
            one.operators.iteration_ms(
                np.asarray(decodes), np.asarray(prompt), np.asarray(context), 500.0
            )
        )

    prefill = step(0, 500, 0)
    assert served.first_token_ms == (pytest.approx(prefill),)
    assert served.total_ms == (pytest.approx(prefill + step(1, 0, 501) + step(1, 0, 502)),)
    assert served.iterations == 3


def test_replay_never_runs_more_than_the_kv_room_holds() -> None:
    asked = demand(tokens=(500.0, 100.0))
    one = of(asked, gib=2.6)
    assert one.most_running < 12
    crowd = [Arrival(0.0, 500, 100)] * 30
    served = replay(one, crowd)
    at_once = math.floor(one.kv_room_tokens / 600)
    alone = replay(one, crowd[:at_once])
    assert served.ended_s > alone.ended_s * (30 // at_once) * 0.9
    assert replay(one, crowd) == served


def test_c2_refuses_what_does_not_hold_weights_and_one_request() -> None:
    shape = small_shape(8)
    weights = 8 * 256 + 128  # MiB
    enough = (weights * 2**20 + 600 * 8 * 4096 / 0.9) / 0.9 / GIB
    for gib, tensor, held in (
        (enough + 0.01, 1, True),
        (enough - 0.01, 1, False),
        (enough / 2 + 0.01, 2, True),
    ):
        found = replica(gpu(gib=gib), tensor, demand(shape=shape), Efficiency())
        assert (found is not None) == held
