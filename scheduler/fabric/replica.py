"""How long does a request take on a replica under load (LLMFabric §3.3, stage 2)?

Continuous batching in steady state. With B requests decoding on average, a request sees B + 1 of
them, and p = B / μ_out prompts per iteration (as many begin as end). Prompts come whole, so most
iterations have none and wait for weights, and one with a prompt takes Δ longer: T(B) = f(B + 1, 0)
+ p Δ(B), the interference of prefill. Little's law gives the load λ(B) = B / (μ_out T(B)), which
never falls with B, so the fixed point for a given load is one bisection, and the capacity is λ at
the batch that fills the KV room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scheduler.fabric.roofline import Operators, operators
from scheduler.fabric.world import Demand, Efficiency, GpuType
from scheduler.fleet.arrays import Floats

BISECTIONS = 45


@dataclass(frozen=True, slots=True)
class Times:
    """Mean times of a request: waiting for room, until the first token, per further one, in all."""

    queue_ms: Floats
    first_token_ms: Floats
    token_ms: Floats
    total_ms: Floats


@dataclass(frozen=True, slots=True)
class ModelReplica:
    """One copy of a model over `tensor` GPUs. ``most_running`` is the mean batch that fills it."""

    tensor: int
    demand: Demand
    token_budget: int
    operators: Operators
    kv_room_tokens: float
    most_running: float

    @property
    def context(self) -> float:
        """Tokens behind a running request on average: its prompt and half of its answer."""
        return self.demand.workload.input_tokens + self.demand.workload.output_tokens / 2

    def _step_ms(self, running: Floats, prompt_tokens: Floats) -> Floats:
        return self.operators.iteration_ms(
            running + 1.0,
            prompt_tokens,
            np.asarray(self.context),
            self.demand.workload.input_tokens,
        )

    def _prompts(self, running: Floats) -> tuple[Floats, Floats, Floats]:
        """p, an iteration without prompts, what each prompt adds; several share one above p = 1."""
        work = self.demand.workload
        prompts: Floats = running / work.output_tokens
        at_once = np.maximum(1.0, prompts)
        without = self._step_ms(running, np.zeros_like(running))
        with_some = self._step_ms(running, at_once * work.input_tokens)
        return prompts, without, (with_some - without) / at_once

    def iteration_ms(self, running: Floats) -> Floats:
        """T(B), as a request in the batch sees it."""
        prompts, without, each = self._prompts(running)
        total: Floats = without + prompts * each
        return total

    def requests_per_s(self, running: Floats) -> Floats:
        """λ(B) by Little's law."""
        work = self.demand.workload
        rate: Floats = 1e3 * running / (work.output_tokens * self.iteration_ms(running))
        return rate

    @property
    def capacity_per_s(self) -> float:
        """The load above which requests pile up."""
        return float(self.requests_per_s(np.asarray(self.most_running)))

    def running_at(self, load_per_s: Floats) -> Floats:
        """B for a load below capacity."""
        low, high = np.zeros_like(load_per_s), np.full_like(load_per_s, self.most_running)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            enough = self.requests_per_s(middle) >= load_per_s
            high, low = np.where(enough, middle, high), np.where(enough, low, middle)
        return high

    def times(self, load_per_s: Floats) -> Times:
        """Mean times at each load; infinite at or above capacity."""
        load = np.asarray(load_per_s, dtype=np.float64)
        served = load < self.capacity_per_s
        running = self.running_at(np.where(served, load, 0.0))
        found = self.times_at(running, self.iteration_ms(running))
        endless = np.where(served, 0.0, math.inf)
        return Times(
            found.queue_ms + endless,
            found.first_token_ms + endless,
            found.token_ms + endless,
            found.total_ms + endless,
        )

    def times_at(self, running: Floats, iteration_ms: Floats) -> Times:
        """Mean times when `running` requests share iterations of that many ms.

        A prompt waits for the rest of an iteration and is computed in as many as the token budget
        makes of it. Waiting for room is that of a queue with `most_running` servers (Sakasegawa
        1977).
        """
        work = self.demand.workload
        prompts, without, each = self._prompts(running)
        alone = without + prompts * each
        between = iteration_ms - alone  # iterations of others, where they share the GPUs
        often = np.minimum(1.0, prompts)
        longer = np.where(prompts > 1, alone, without + each)
        squared = (1 - often) * (without + between) ** 2 + often * (longer + between) ** 2
        chunks = math.ceil(work.input_tokens / self.token_budget)
        first = squared / (2 * iteration_ms) + chunks * iteration_ms + each
        served = first + (work.output_tokens - 1) * iteration_ms
        busy = np.minimum(running / self.most_running, 1 - 1e-9)
        exponent = math.sqrt(2 * (self.most_running + 1)) - 1
        queue = served * np.power(busy, exponent) / (self.most_running * (1 - busy))
        return Times(queue, queue + first, iteration_ms, queue + served)


def replica(
    gpu: GpuType,
    tensor: int,
    demand: Demand,
    efficiency: Efficiency,
    memory_bytes: float | None = None,
) -> ModelReplica | None:
    """One copy over `tensor` GPUs, or None where it breaks C2: Σ mem_n ≥ M_m (§3.3, equation 3).

    Stricter than printed: every replica must hold the weights and one request of mean length at its
    end, not only all GPUs of the type together. ``memory_bytes`` is what it may use of each GPU, by
    default the engine's share.
    """
    shape, work = demand.shape, demand.workload
    usable = gpu.memory_bytes * efficiency.memory if memory_bytes is None else memory_bytes
    split = min(tensor, demand.kv_heads or tensor)
    per_token = shape.layers * shape.kv_bytes_per_token_per_layer / split
    room_bytes = usable - demand.weight_bytes / tensor
    if room_bytes < 0:
        return None
    room = efficiency.kv_high_water * room_bytes / per_token if per_token else math.inf
    held = (
        work.input_tokens + work.output_tokens
    )  # reserved to its end, so that nothing is ever preempted
    if room < held:
        return None
    return ModelReplica(
        tensor,
        demand,
        efficiency.token_budget,
        operators(gpu, tensor, demand, efficiency),
        room,
        min(room / held, float(efficiency.max_sequences)),
    )
