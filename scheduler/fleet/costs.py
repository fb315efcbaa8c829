"""How many layers does a machine hold, and how long does it take over them?

The only capacity formula of the product: planner, splitter, validator and join rules all call
`capacity`.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Coordinator, Fleet, Links, Located, Machine, ModelShape, Pipeline

PPM = 1_000_000
#: Context assumed where the caller has no better number; the reference figures use the same.
CONTEXT_TOKENS = 1024
#: Batch at which a machine's rate is stated, as in the reference figures.
RATE_BATCH = 32


class Position(Enum):
    """Where a stage stands in its pipeline: the ends also hold the embedding or the head."""

    PLAIN = "plain"
    FIRST = "first"
    LAST = "last"
    BOTH = "both"


class Capacities(NamedTuple):
    """c_i in each position, at most L. Larger memory never lowers any of the four."""

    plain: int
    first: int
    last: int
    both: int

    def at(self, start: int, end: int, total: int) -> int:
        """Most layers of a stage that begins at `start` and ends at `end` of `total` layers."""
        if start == 0:
            return self.both if end == total else self.first
        return self.last if end == total else self.plain


def position_of(layers: LayerRange, model: ModelShape) -> Position:
    """Which ends of the model a range touches."""
    starts, ends = layers.start == 0, layers.end == model.layers
    if starts and ends:
        return Position.BOTH
    if starts:
        return Position.FIRST
    return Position.LAST if ends else Position.PLAIN


def end_bytes(model: ModelShape, position: Position) -> int:
    """Bytes of embedding and head tables that a stage in this position loads besides its layers."""
    if position is Position.PLAIN:
        return 0
    if position is Position.FIRST:
        return model.embedding_bytes
    if position is Position.LAST:
        return model.head_bytes
    return model.embedding_bytes + (0 if model.tied else model.head_bytes)


def weight_bytes(machine: Machine) -> int:
    """Memory for weights: their share, or what KV reserve and overhead leave if that is less."""
    by_share = machine.memory_bytes * round(machine.weight_fraction * PPM) // PPM
    return max(0, min(by_share, machine.memory_bytes - kv_bytes(machine) - machine.overhead_bytes))


def kv_bytes(machine: Machine) -> int:
    """Memory reserved for KV cache."""
    return machine.memory_bytes * round(machine.kv_fraction * PPM) // PPM


def capacity(machine: Machine, model: ModelShape, position: Position) -> int:
    """c_i: how many layers fit in this position (Parallax §3.2), 0 to L, measured values first."""
    if machine.profile is not None:
        return min(model.layers, machine.profile.max_layers)
    room = weight_bytes(machine) - end_bytes(model, position)
    return min(model.layers, max(0, room) // model.layer_bytes)


def capacities(machine: Machine, model: ModelShape) -> Capacities:
    """`capacity` in all four positions."""
    if machine.profile is not None:
        most = min(model.layers, machine.profile.max_layers)
        return Capacities(most, most, most, most)
    return _capacities_of_room(weight_bytes(machine), model)


@lru_cache(maxsize=4096)
def _capacities_of_room(room_bytes: int, model: ModelShape) -> Capacities:
    def fits(position: Position) -> int:
        room = max(0, room_bytes - end_bytes(model, position))
        return min(model.layers, room // model.layer_bytes)

    return Capacities(*(fits(position) for position in Position))


def kv_tokens(machine: Machine, model: ModelShape, layers: int) -> int:
    """Tokens of KV cache that fit beside this many layers (RAM capacity, Parallax §3.3)."""
    if machine.kv_tokens is not None:
        return machine.kv_tokens
    if machine.profile is not None:
        by_layers = machine.profile.kv_tokens_by_layers
        return by_layers[min(max(1, layers), len(by_layers)) - 1]
    per_token = layers * model.kv_bytes_per_token_per_layer
    return kv_bytes(machine) // per_token if per_token else 2**31


def weights_read_bytes(model: ModelShape, tokens: float) -> float:
    """Bytes of a layer's weights that `tokens` tokens read; of experts the expected ones."""
    if not model.experts:
        return model.layer_bytes
    missed = math.pow(1 - model.experts_per_token / model.experts, max(1.0, tokens))
    return model.layer_bytes - model.experts * model.expert_bytes * missed


def roofline_ms_per_layer(
    machine: Machine, model: ModelShape, batch: int = 1, context_tokens: int = CONTEXT_TOKENS
) -> float:
    """Time of a layer for a decode step of `batch` sequences: compute or memory, the larger."""
    flops = (
        model.flops_per_layer_per_token + model.attention_flops_per_context_token * context_tokens
    )
    kv_read = batch * context_tokens * model.kv_bytes_per_token_per_layer
    return max(
        batch * flops / (machine.tflops * 1e9),
        (weights_read_bytes(model, batch) + kv_read) / (machine.bandwidth_gb_s * 1e6),
    )


def prior_ms_per_layer(
    machine: Machine, model: ModelShape, batch: int = 1, context_tokens: int = CONTEXT_TOKENS
) -> float:
    """τ(g, ℓ) before live measurement: the profile's decode curve, or the roofline."""
    if machine.profile is not None:
        return max(1e-9, machine.profile.decode_ms_per_layer(batch))
    return roofline_ms_per_layer(machine, model, batch, context_tokens)


def prefill_ms_per_layer(
    machine: Machine, model: ModelShape, tokens: int, context_tokens: int = 0
) -> float:
    """Time of a layer for `tokens` prompt tokens after `context_tokens` others, scaled by τ."""
    if machine.profile is not None:
        prior_ms = machine.profile.prefill_ms_per_layer(tokens)
    else:
        attended = context_tokens + tokens / 2
        flops = model.flops_per_layer_per_token + model.attention_flops_per_context_token * attended
        kv_read = context_tokens * model.kv_bytes_per_token_per_layer
        prior_ms = max(
            tokens * flops / (machine.tflops * 1e9),
            (weights_read_bytes(model, tokens) + kv_read) / (machine.bandwidth_gb_s * 1e6),
        )
    return correction(machine, model) * prior_ms


def correction(machine: Machine, model: ModelShape, context_tokens: int = CONTEXT_TOKENS) -> float:
    """Live τ over the prior at the batch it was measured with; 1 before any measurement."""
    if machine.tau_ms_per_layer is None:
        return 1.0
    at_measured = prior_ms_per_layer(machine, model, machine.tau_batch, context_tokens)
    return machine.tau_ms_per_layer / at_measured


def tau_ms_per_layer(
    machine: Machine, model: ModelShape, batch: int = 1, context_tokens: int = CONTEXT_TOKENS
) -> float:
    """τ(g, ℓ): the prior, scaled to pass through the measured point where there is one."""
    prior = prior_ms_per_layer(machine, model, batch, context_tokens)
    return correction(machine, model, context_tokens) * prior


def tokens_per_s(machine: Machine, model: ModelShape, layers: int) -> float:
    """T(k): tokens/s of a machine with `layers` layers; a planner's table where it has one.

    Otherwise τ at a batch of RATE_BATCH. Not proportional to 1/k in measured tables: fewer layers
    leave more KV room.
    """
    if layers < 1:
        return 0.0
    profile = machine.profile
    if profile is not None and profile.tokens_per_s_by_layers is not None:
        rates = profile.tokens_per_s_by_layers
        return rates[layers - 1] if layers <= len(rates) else 0.0
    return RATE_BATCH * 1e3 / (tau_ms_per_layer(machine, model, RATE_BATCH) * layers)


def head_ms(
    machine: Machine, model: ModelShape, batch: int = 1, context_tokens: int = CONTEXT_TOKENS
) -> float:
    """Time of the output projection for one decode step, scaled like τ; paid by the last stage."""
    roofline = max(
        batch * model.head_flops_per_token / (machine.tflops * 1e9),
        model.head_bytes / (machine.bandwidth_gb_s * 1e6),
    )
    return correction(machine, model, context_tokens) * roofline


def stage_ms(
    machine: Machine,
    model: ModelShape,
    layers: LayerRange,
    batch: int = 1,
    context_tokens: int = CONTEXT_TOKENS,
) -> float:
    """Time of a stage for a decode step: τ × layers, and the head where the model ends."""
    time_ms = tau_ms_per_layer(machine, model, batch, context_tokens) * len(layers)
    return time_ms + (
        head_ms(machine, model, batch, context_tokens) if layers.end == model.layers else 0.0
    )


def link_bytes_per_token(a: Located, b: Located, model: ModelShape) -> int:
    """Bytes of a token between two places: an activation, or an id to and from the coordinator."""
    ends = isinstance(a, Coordinator) or isinstance(b, Coordinator)
    return model.token_bytes if ends else model.activation_bytes_per_token


def hop_ms(links: Links, a: Located, b: Located, model: ModelShape, tokens: int = 1) -> float:
    """Time for `tokens` tokens to cross a → b: latency plus transfer; infinite when unreachable."""
    link = links.between(a, b)
    if link is None:
        return float("inf")
    if link.bandwidth_mbit_s is None:
        return link.latency_ms
    bits = tokens * link_bytes_per_token(a, b, model) * 8
    return link.latency_ms + bits / (link.bandwidth_mbit_s * 1e3)


def link_tokens_per_s(links: Links, a: Located, b: Located, model: ModelShape) -> float:
    """Tokens per second that a → b carries: 0 when unreachable, infinite where unknown."""
    link = links.between(a, b)
    if link is None:
        return 0.0
    per_token = link_bytes_per_token(a, b, model)
    if link.bandwidth_mbit_s is None or per_token == 0:
        return math.inf
    return link.bandwidth_mbit_s * 1e6 / (8 * per_token)


def pipeline_ms(pipeline: Pipeline, fleet: Fleet, model: ModelShape) -> float:
    """Time of one token through a pipeline at batch 1: Σ stage times + Σ hops."""
    machines = [fleet.by_id[shard.machine_id] for shard in pipeline]
    stages = sum(
        stage_ms(machine, model, shard.layers)
        for machine, shard in zip(machines, pipeline, strict=True)
    )
    hops = sum(hop_ms(fleet.links, a, b, model) for a, b in pairwise(machines))
    return stages + hops
