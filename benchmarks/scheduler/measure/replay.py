"""What do the requests of a trace wait on one replica (LLMFabric §3.3, simulator stage 2, iteration
by iteration)?

Continuous batching: every iteration takes the prompts that fit into the token budget and the KV
room, first come first served, and one step of everything that runs. The closed form of `replica` is
the mean of this.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.fabric.place import FabricPlan
from scheduler.fabric.replica import ModelReplica, replica
from scheduler.fabric.world import Efficiency
from scheduler.fleet.errors import PlanError
from scheduler.fleet.workload import Arrival


@dataclass(frozen=True, slots=True)
class Replayed:
    """Times of each request in order of arrival, and what the replica did in all."""

    first_token_ms: tuple[float, ...]
    total_ms: tuple[float, ...]
    output_tokens: int
    ended_s: float
    iterations: int


def replay(
    replica: ModelReplica, requests: Sequence[Arrival], max_sequences: int = 256
) -> Replayed:
    """Serve every request to its end. Requests must be in order of arrival and fit the KV room
    alone.
    """
    room = replica.kv_room_tokens
    first, done = [0.0] * len(requests), [0.0] * len(requests)
    waiting: deque[int] = deque()
    running: list[tuple[int, int]] = []  # iteration of the last token, request; soonest first
    held, context, now_ms, iteration, at = 0.0, 0.0, 0.0, 0, 0
    while at < len(requests) or waiting or running:
        if not waiting and not running:
            now_ms = max(now_ms, requests[at].at_s * 1e3)
        while at < len(requests) and requests[at].at_s * 1e3 <= now_ms:
            waiting.append(at)
            at += 1
        prompts, tokens = list[int](), 0
        while waiting:
            new = requests[waiting[0]]
            whole = new.input_tokens + new.output_tokens
            over = tokens + new.input_tokens > replica.token_budget and tokens > 0
            busy = len(running) + len(prompts) >= max_sequences
            if over or busy or (held + whole > room and held > 0):
                break
            tokens, held = tokens + new.input_tokens, held + whole
            prompts.append(waiting.popleft())
        decodes = len(running)
        now_ms += float(
            replica.operators.iteration_ms(
                np.asarray(float(decodes)),
                np.asarray(float(tokens)),
                np.asarray(context / decodes if decodes else 0.0),
                tokens / len(prompts) if prompts else replica.demand.workload.input_tokens,
            )
        )
        iteration += 1
        context += decodes
        while running and running[0][0] <= iteration:
            _, ended = running.pop(0)
            whole = requests[ended].input_tokens + requests[ended].output_tokens
            held, context, done[ended] = held - whole, context - whole, now_ms
        for new_at in prompts:
            new, first[new_at] = requests[new_at], now_ms
            if new.output_tokens <= 1:
                done[new_at], held = now_ms, held - new.input_tokens - new.output_tokens
            else:
                insort(running, (iteration + new.output_tokens - 1, new_at))
                context += new.input_tokens + 1
    starts = [request.at_s * 1e3 for request in requests]
    return Replayed(
        tuple(f - s for f, s in zip(first, starts, strict=True)),
        tuple(d - s for d, s in zip(done, starts, strict=True)),
        sum(request.output_tokens for request in requests),
        now_ms / 1e3,
        iteration,
    )


def replay_plan(
    plan: FabricPlan, traces: Sequence[Sequence[Arrival]], efficiency: Efficiency = Efficiency()
) -> tuple[tuple[Replayed, ...], ...]:
    """For each model in order, what each of its replicas did with its share of the model's trace.

    Requests go round in proportion to capacity. Raises PlanError for models that share GPUs, which
    only the closed form knows, and for a model without replicas.
    """
    types = {gpu.name: gpu for gpu in plan.types}
    found = []
    for part, demand, trace in zip(plan.parts, plan.demands, traces, strict=True):
        if any(part.model in pair for pair in plan.shared):
            raise PlanError("machine-twice", f"{demand.name} shares its GPUs")
        replicas = list[ModelReplica]()
        for group in part.groups:
            one = replica(types[group.gpu], group.tensor, demand, efficiency)
            if one is not None:
                replicas += [one] * group.replicas
        if not replicas:
            raise PlanError("empty", f"{demand.name} is served by nothing")
        shares = _dealt(trace, [one.capacity_per_s for one in replicas])
        found.append(
            tuple(
                replay(one, share, efficiency.max_sequences)
                for one, share in zip(replicas, shares, strict=True)
            )
        )
    return tuple(found)


def _dealt(trace: Sequence[Arrival], capacities: Sequence[float]) -> list[list[Arrival]]:
    """Each request to the replica that is furthest behind its share."""
    shares: list[list[Arrival]] = [[] for _ in capacities]
    for request in trace:
        behind = min(range(len(shares)), key=lambda r: ((len(shares[r]) + 1) / capacities[r], r))
        shares[behind].append(request)
    return shares
