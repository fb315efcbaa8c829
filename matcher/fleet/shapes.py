"""What does a model weigh, judged by nothing but its specification on chain?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.protocol.errors import ModelUnsupported
from core.protocol.signing import name_hash
from core.protocol.types import ModelSpec
from scheduler.fleet.fleet import ModelShape


@dataclass(frozen=True)
class _Numerics:
    """Bytes of a value in a layer's matrix, of what each output of it adds, and of other values."""

    matrix_value: float
    output: int
    value: int

    def layer_bytes(self, parameters: int, outputs: int) -> int:
        return math.ceil(parameters * self.matrix_value) + outputs * self.output


_NUMERICS = {
    name_hash(name): _Numerics(matrix_value, output, value)
    for name, matrix_value, output, value in (
        ("float64", 8, 0, 8),
        ("float32", 4, 0, 4),
        ("bfloat16", 2, 0, 2),
        ("float16", 2, 0, 2),
        ("int8-weight-only", 1, 5, 4),  # a scale of four bytes and a zero point of one
        ("int8-weight-only-bfloat16", 1, 5, 2),
        ("int4-weight-only", 0.5 + 4 / 32, 0, 2),  # scale and offset, two bytes each, per 32 inputs
    )
}
#: Families whose heads are not hidden / heads wide; the specification does not say it.
_HEAD_DIM = {
    name_hash(name): width
    for width, names in (
        (256, ("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma")),
        (128, ("qwen3", "qwen3_moe", "seed_oss", "glm4_moe")),
        (64, ("gpt_oss",)),
    )
    for name in names
}
_UNGATED = {
    *map(name_hash, ("gpt2", "gpt_neox", "gptj", "gpt_neo", "gpt_bigcode")),
    *map(name_hash, ("opt", "bloom", "phi", "starcoder2")),
}
_ACTIVATION_BYTES_PER_VALUE = 4  # rows cross a boundary as float32, whatever the weights are


def shape_of(spec: ModelSpec) -> ModelShape:
    """Bytes and work of a model, never below what a miner really loads (norms and biases excepted).

    The specification does not say whether embedding and head share one table, so both are counted.
    Raises ModelUnsupported for a dtype that we cannot size.
    """
    numerics = _NUMERICS.get(spec.dtype)
    if numerics is None:
        why = f"its dtype {spec.dtype} is none that we know"
        raise ModelUnsupported("the model cannot be planned", why=why)
    head_dim = _HEAD_DIM.get(spec.architecture, -(-spec.hidden // spec.heads))
    q, kv = spec.heads * head_dim, 2 * spec.kv_heads * head_dim
    mlp_matrices = 2 if spec.architecture in _UNGATED else 3
    parameters = spec.hidden * (2 * q + kv + mlp_matrices * spec.ffn)
    outputs = q + kv + 2 * spec.hidden + (mlp_matrices - 1) * spec.ffn
    table_bytes = spec.vocab * spec.hidden * numerics.value
    return ModelShape(
        layers=spec.layers,
        layer_bytes=numerics.layer_bytes(parameters, outputs),
        embedding_bytes=table_bytes,
        head_bytes=table_bytes,
        tied=False,
        hidden=spec.hidden,
        flops_per_layer_per_token=2.0 * parameters,
        attention_flops_per_context_token=4.0 * q,
        head_flops_per_token=2.0 * spec.vocab * spec.hidden,
        kv_bytes_per_token_per_layer=kv * numerics.value,
        activation_bytes_per_token=spec.hidden * _ACTIVATION_BYTES_PER_VALUE,
    )
