"""What does a model weigh, judged by nothing but its specification on chain?"""

from __future__ import annotations

from core.protocol.errors import ModelUnsupported
from core.protocol.signing import name_hash
from core.protocol.types import ModelSpec
from scheduler.fleet import ModelShape

_BYTES_PER_VALUE = {
    name_hash(name): size
    for name, size in (("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2))
}
# Families whose heads are not hidden / heads wide; the specification does not say it.
_HEAD_DIM = {name_hash("gemma3"): 256, name_hash("gemma3_text"): 256, name_hash("qwen3"): 128}
_UNGATED = {name_hash("gpt2")}
_ACTIVATION_BYTES_PER_VALUE = 4  # rows cross a boundary as float32, whatever the weights are


def shape_of(spec: ModelSpec) -> ModelShape:
    """Bytes and work of a model, never below what a miner really loads (norms and biases excepted).

    The specification does not say whether embedding and head share one table, so both are counted.
    Raises ModelUnsupported for a dtype nobody here can size.
    """
    size = _BYTES_PER_VALUE.get(spec.dtype)
    if size is None:
        raise ModelUnsupported(
            "the model cannot be planned", why=f"its dtype {spec.dtype} is none that we know"
        )
    head_dim = _HEAD_DIM.get(spec.architecture, -(-spec.hidden // spec.heads))
    q, kv = spec.heads * head_dim, 2 * spec.kv_heads * head_dim
    mlp_matrices = 2 if spec.architecture in _UNGATED else 3
    parameters = spec.hidden * (2 * q + kv + mlp_matrices * spec.ffn)
    table_bytes = spec.vocab * spec.hidden * size
    return ModelShape(
        layers=spec.layers,
        layer_bytes=parameters * size,
        embedding_bytes=table_bytes,
        head_bytes=table_bytes,
        tied=False,
        hidden=spec.hidden,
        flops_per_layer_per_token=2.0 * parameters,
        attention_flops_per_context_token=4.0 * q,
        head_flops_per_token=2.0 * spec.vocab * spec.hidden,
        kv_bytes_per_token_per_layer=kv * size,
        activation_bytes_per_token=spec.hidden * _ACTIVATION_BYTES_PER_VALUE,
    )
