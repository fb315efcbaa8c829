"""How long does an iteration take on a tensor-parallel group (LLMFabric §3.3, stage 1)?

Operator by operator max(compute, memory), as LLM-Viewer does, with a share of peak, an overhead per
kernel and the all-reduces of tensor parallelism. All dense projections of a layer have the same
arithmetic intensity, so one roofline over their sum is exact; experts and the two kinds of
attention are operators of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.fabric.world import Demand, Efficiency, GpuType
from scheduler.fleet.arrays import Floats

#: Times a token's activation is read or written by a layer's projections, norms and residuals.
ACTIVATION_PASSES = 8


@dataclass(frozen=True, slots=True)
class Operators:
    """Coefficients in ms on each GPU of the group; times of a layer are already × layers.

    Per token: linears, activations, experts. Per token and token of context: attention. Per prompt
    or decode: head.
    """

    fixed: float
    linear_compute: float
    linear_read: float
    activation: float
    expert_compute: float
    expert_read: float
    expert_miss: float
    attention_compute: float
    attention_read: float
    all_reduce: float
    head_compute: float
    head_read: float

    def iteration_ms(
        self, decodes: Floats, prompt_tokens: Floats, context: Floats, prompt_length: float
    ) -> Floats:
        """Time of an iteration of `decodes` requests of `context` tokens, with these prompt tokens.

        Prompts are `prompt_length` tokens long, so a prompt token sees half of that on average.
        Arrays go elementwise.
        """
        tokens = decodes + prompt_tokens
        linear = np.maximum(
            tokens * self.linear_compute, self.linear_read + tokens * self.activation
        )
        experts = np.maximum(
            tokens * self.expert_compute,
            self.expert_read * (1.0 - np.power(self.expert_miss, tokens)),
        )
        seen = decodes * context
        decode_attention = np.maximum(seen * self.attention_compute, seen * self.attention_read)
        prompt_attention = np.maximum(
            prompt_tokens * (prompt_length / 2) * self.attention_compute,
            prompt_tokens * self.attention_read,
        )
        answers = decodes + prompt_tokens / prompt_length
        head = np.maximum(answers * self.head_compute, self.head_read)
        total: Floats = (
            self.fixed
            + linear
            + experts
            + decode_attention
            + prompt_attention
            + tokens * self.all_reduce
            + head
        )
        return total


def operators(gpu: GpuType, tensor: int, demand: Demand, efficiency: Efficiency) -> Operators:
    """The operators of one model over `tensor` GPUs of one node."""
    shape, layers = demand.shape, demand.shape.layers
    flop_ms = 1.0 / (gpu.tflops * 1e9 * efficiency.compute) / tensor
    byte_ms = 1.0 / (gpu.bandwidth_gb_s * 1e6 * efficiency.bandwidth)
    link_ms = 1.0 / (gpu.interconnect_gb_s * 1e6 * efficiency.interconnect)
    expert_flops = 2.0 * shape.experts_per_token * shape.expert_bytes / demand.bytes_per_parameter
    expert_bytes = shape.experts * shape.expert_bytes
    kv_split = min(tensor, demand.kv_heads or tensor)
    launches = layers * efficiency.kernels_per_layer * efficiency.kernel_us
    exchanged = 0.0  # a ring moves 2(t − 1)/t of the data, after attention and after the MLP
    if tensor > 1:
        launches += layers * 2 * efficiency.all_reduce_us
        exchanged = 2 * 2 * (tensor - 1) / tensor * shape.activation_bytes_per_token
    return Operators(
        fixed=efficiency.step_ms + launches / 1e3,
        linear_compute=layers * max(0.0, shape.flops_per_layer_per_token - expert_flops) * flop_ms,
        linear_read=layers * (shape.layer_bytes - expert_bytes) / tensor * byte_ms,
        activation=layers * ACTIVATION_PASSES * shape.activation_bytes_per_token * byte_ms,
        expert_compute=layers * expert_flops * flop_ms,
        expert_read=layers * expert_bytes / tensor * byte_ms,
        expert_miss=1.0 - shape.experts_per_token / shape.experts if shape.experts else 0.0,
        attention_compute=layers * shape.attention_flops_per_context_token * flop_ms,
        attention_read=layers * shape.kv_bytes_per_token_per_layer / kv_split * byte_ms,
        all_reduce=layers * exchanged * link_ms,
        head_compute=shape.head_flops_per_token * flop_ms,
        head_read=shape.head_bytes / tensor * byte_ms,
    )
