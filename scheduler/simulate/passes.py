"""How long does a worker take for a batch, and what is a worker made of?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from core.batching import BatchFormer, KvLedger, StepBatch
from core.protocol.types import LayerRange
from scheduler.fleet.costs import kv_tokens
from scheduler.fleet.fleet import Machine, ModelShape
from scheduler.simulate.options import SimOptions
from scheduler.simulate.pass_cost import PassCost, cost_of, head_seconds
from scheduler.simulate.world import Visit, Worker


def make_worker(
    machine: Machine,
    model: ModelShape,
    layers: LayerRange,
    options: SimOptions,
    costs: Mapping[str, PassCost],
) -> Worker:
    """A machine with its slice and limits; `costs` may replace its cost model."""
    many = len(layers)
    cost = costs.get(machine.id) or cost_of(machine, model, helix_rules=options.helix_rules)
    head = head_seconds(machine, model) if layers.end == model.layers else None
    return Worker(
        machine.id,
        layers,
        _former(machine, many, options),
        KvLedger.of_tokens(kv_tokens(machine, model, many), many, options.page_tokens),
        cost,
        head if head is not None and any(head) else None,
    )


def _former(machine: Machine, many: int, options: SimOptions) -> BatchFormer[Visit]:
    profile, chunk = machine.profile, options.chunk_tokens
    return BatchFormer[Visit](
        chunk_tokens=chunk,
        budget_tokens=options.budget_tokens or chunk,
        max_decodes=(
            max(1, machine.max_concurrent)
            if profile is None
            else profile.max_decode_requests_by_layers[many - 1]
        ),
        max_prefills=(
            profile.max_prefill_requests_by_layers[many - 1]
            if profile is not None and chunk is None
            else None
        ),
    )


def pass_seconds(worker: Worker, batch: StepBatch[Visit], copy_s_per_token: float) -> float:
    """Layers, output projection at the model's end, and copies of inputs by Helix's rules."""
    decodes, prefill = len(batch.decodes), batch.prefill_tokens
    if worker.mixed:
        seconds = _mixed_seconds(worker, batch)
    elif worker.cost.needs_context:
        context, attended = _contexts(batch.decodes, batch.prefills)
        seconds = worker.cost.seconds(worker.many_layers, prefill, decodes, context, attended)
    else:
        seconds = worker.cost.seconds(worker.many_layers, prefill, decodes, 0, 0)
    if worker.head is not None:
        ending = sum(visit.end == visit.running.prompt_tokens for visit in batch.prefills)
        if decodes + ending:
            seconds += max((decodes + ending) * worker.head[0], worker.head[1])
    if copy_s_per_token:
        seconds += copy_s_per_token * (prefill + decodes)
    return seconds * worker.slowness


def _contexts(decodes: list[Visit], prefills: list[Visit]) -> tuple[int, float]:
    """KV tokens that a batch reads, and the pairs of tokens that attend to each other."""
    context = sum(visit.running.context for visit in decodes)
    attended = float(context)
    for visit in prefills:
        tokens = visit.end - visit.first
        context += visit.first
        attended += tokens * (visit.first + tokens / 2)
    return context, attended


def _mixed_seconds(worker: Worker, batch: StepBatch[Visit]) -> float:
    """A pass that requests enter or leave inside the slice: layer by layer, over who is there."""
    whole = worker.layers
    steps = [(v.layers or whole, v) for v in (*batch.decodes, *batch.prefills)]
    ends = sorted({edge for layers, _ in steps for edge in (layers.start, layers.end)})
    decoding, seconds = len(batch.decodes), 0.0
    for first, end in pairwise(ends):
        here = [layers.start <= first < layers.end for layers, _ in steps]
        decodes = [v for (_, v), is_here in zip(steps[:decoding], here, strict=False) if is_here]
        prefills = [
            v for (_, v), is_here in zip(steps[decoding:], here[decoding:], strict=True) if is_here
        ]
        tokens = sum(visit.end - visit.first for visit in prefills)
        if decodes or tokens:
            context, attended = _contexts(decodes, prefills)
            seconds += worker.cost.seconds(end - first, tokens, len(decodes), context, attended)
    return seconds
