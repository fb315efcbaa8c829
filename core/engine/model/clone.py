"""What is the smallest model of the same architecture?

A clone has at most four layers, narrow matrices and few ids, and keeps everything that decides how
the model computes: which layers slide, which hold experts, how positions enter, what is scaled and
capped.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

LAYERS = 4
HIDDEN, HEADS, HEAD_DIM, VOCAB = 64, 4, 16, 96
#: Fields of configurations → their size in the clone. Only those that a configuration has are set.
_SIZES: dict[str, int] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "n_embed": HIDDEN,
    "word_embed_proj_dim": HIDDEN,
    "embedding_size": HIDDEN,
    "num_attention_heads": HEADS,
    "head_dim": HEAD_DIM,
    "global_head_dim": HEAD_DIM,
    "attention_head_dim": HEAD_DIM,
    "kv_channels": HEAD_DIM,
    "swa_head_dim": HEAD_DIM,
    "rotary_dim": HEAD_DIM // 2,
    "intermediate_size": 96,
    "ffn_hidden_size": 96,
    "n_inner": 96,
    "ffn_dim": 96,
    "intermediate_size_mlp": 96,
    "dense_intermediate_size": 96,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "moe_num_experts": 6,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 24,
    "v_head_dim": 16,
    "sliding_window": 8,
    "attention_chunk_size": 8,
}
#: Some models build a table of positions by positions.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
MOST_POSITIONS = 4096
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")
_NEEDS_PADDING = ("opt", "modernbert-decoder")
_DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers")


def cut_config(config: PreTrainedConfig, numbers: Sequence[int]) -> PreTrainedConfig:
    """The same configuration with only these layers: every per-layer list is cut alike."""
    cut = copy.deepcopy(config)
    cut_in_place(cut, numbers)
    return cut


def cut_in_place(config: PreTrainedConfig, numbers: Sequence[int]) -> None:
    """Make a configuration describe only these of its layers."""
    for name, values in per_layer_lists(config).items():
        setattr(config, name, type(values)(values[i] for i in numbers))
    config.num_hidden_layers = len(numbers)


def per_layer_lists(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields that say something of every layer."""
    total = config.num_hidden_layers
    return {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, list | tuple)
        and len(value) == total
        and not name.endswith(("token_id", "token_ids", "architectures"))
    }


def tiny_clone(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same architecture with at most `LAYERS` layers, picked for their variety."""
    total = config.num_hidden_layers
    size = min(LAYERS, total)
    kinds = list(getattr(config, "layer_types", None) or [""] * total)
    start = max(range(total - size + 1), key=lambda s: len(set(kinds[s : s + size])))
    tiny = cut_config(config, range(start, start + size))
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    for name, small in _SIZES.items():
        if isinstance(getattr(tiny, name, None), int) and not _computed(tiny, name):
            setattr(tiny, name, small)
    for name in _POSITIONS:
        value = getattr(tiny, name, None)
        if isinstance(value, int) and value > MOST_POSITIONS and not _computed(tiny, name):
            setattr(tiny, name, MOST_POSITIONS)
    rotary = getattr(config, "qk_rope_head_dim", None)
    if rotary and rotary == getattr(config, "head_dim", None):
        tiny.head_dim = tiny.qk_rope_head_dim
    for name in _KV_HEADS:
        if getattr(tiny, name, None) is not None:
            setattr(tiny, name, _kv_heads(heads, getattr(config, name)))
    for name in _TOP_K:
        if isinstance(getattr(tiny, name, None), int):
            setattr(tiny, name, min(2, getattr(tiny, name)))
    for name in _DENSE_FIRST:
        if getattr(tiny, name, None):
            setattr(tiny, name, size // 2)
    _shrink_nested(tiny, heads, kv_heads)
    _leave_special_ids_out(tiny)
    if getattr(tiny, "initializer_range", None) is not None:
        tiny.initializer_range = 0.05
    return tiny


def _kv_heads(heads: int, kv_heads: int) -> int:
    if kv_heads == heads:
        return HEADS
    return 1 if kv_heads == 1 else HEADS // 2


def _shrink_nested(tiny: Any, heads: int, kv_heads: int | None) -> None:
    # mpt and dbrx keep part of their sizes in objects of their own.
    attention = getattr(tiny, "attn_config", None)
    if attention is not None and getattr(attention, "kv_n_heads", None):
        attention.kv_n_heads = _kv_heads(heads, attention.kv_n_heads)
    feed_forward = getattr(tiny, "ffn_config", None)
    if feed_forward is not None and hasattr(feed_forward, "moe_num_experts"):
        feed_forward.ffn_hidden_size, feed_forward.moe_num_experts = 32, 6
        feed_forward.moe_top_k = min(2, feed_forward.moe_top_k)


def _computed(config: Any, name: str) -> bool:
    found = getattr(type(config), name, None)
    return isinstance(found, property) and found.fset is None


def _leave_special_ids_out(tiny: Any) -> None:
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id"):
        value = getattr(tiny, name, None)
        if isinstance(value, list) or (isinstance(value, int) and value >= VOCAB):
            setattr(tiny, name, 1)
    if tiny.model_type not in _NEEDS_PADDING:
        tiny.pad_token_id = None
