"""Which models cannot be cut by layers, and why?"""

from __future__ import annotations

import json
from typing import Any

from transformers import PreTrainedConfig
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from core.engine.model.naming import PACKING_KEYS
from core.protocol.errors import ModelUnsupported

#: Options whose result would depend on the layer's number, on other requests or on later tokens.
_OPTIONS = (
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "add_cross_attention",
    "use_bidirectional_attention",
)
_ROPE = ("dynamic", "longrope")
_ATTENTION = ("full_attention", "sliding_attention")
_KIND_NAMES = {
    "linear_attention": "linear attention or state-space layers",
    "mamba": "state-space layers",
    "conv": "convolution layers",
    "hybrid": "state-space and attention in one layer",
    "hybrid_sliding": "state-space and attention in one layer",
    "chunked_attention": "chunked attention",
    "dummy": "layers without keys and values of their own",
}


def parse_config(config_json: str) -> PreTrainedConfig:
    """The library's configuration object. Raises ModelUnsupported for one it does not know."""
    raw = json.loads(config_json)
    for packing in PACKING_KEYS:  # how weights are stored, which is read elsewhere
        raw.pop(packing, None)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ModelUnsupported(
            f"cannot run models of type '{model_type}'",
            why="the transformers library has no such model"
            + (", it brings code of its own" if raw.get("auto_map") else ""),
            model_type=str(model_type),
        )
    try:
        return CONFIG_MAPPING[model_type].from_dict(raw)
    except Exception as error:  # the library checks in many ways, with errors of its own
        raise ModelUnsupported(f"cannot read this {model_type} model", why=str(error)) from error


def unsupported(config: PreTrainedConfig, reason: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"cannot cut this {config.model_type} model",
        why=f"it has {reason}",
        model_type=config.model_type,
    )


def refuse_unsupported(config: PreTrainedConfig) -> None:
    """Raises ModelUnsupported, with the reason, for configurations that cannot be cut."""
    if getattr(config, "is_encoder_decoder", False):
        raise unsupported(config, "an encoder beside its decoder")
    if config.get_text_config(decoder=True) is not config:
        raise unsupported(config, "more than a language model inside; give its text model alone")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise unsupported(config, "no language model head")
    if getattr(config, "is_decoder", None) is False and hasattr(config, "type_vocab_size"):
        raise unsupported(config, "attention in both directions (an encoder)")
    found = [name for name in _OPTIONS if getattr(config, name, False)]
    found += [f"rope type {kind}" for kind in _rope_kinds(config) if kind in _ROPE]
    uniform = _same_everywhere(config)
    if not uniform:
        found.append("heads that differ from layer to layer")
    if uniform and not hasattr(config, "num_attention_heads"):
        found.append("layers without attention")
    if not found:
        kinds = set(get_layer_types_and_kwargs(config)[0]) - set(_ATTENTION)
        found += sorted({_KIND_NAMES.get(kind, kind.replace("_", " ")) for kind in kinds})
    if not found and getattr(config, "num_kv_shared_layers", 0):
        found.append("layers that share keys and values")
    if found:
        raise ModelUnsupported(
            f"cannot run this {config.model_type} model",
            why="it uses " + ", ".join(found),
            model_type=config.model_type,
        )


def _same_everywhere(config: PreTrainedConfig) -> bool:
    # The library answers with an error of its own where a field has no one value.
    try:
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim"):
            getattr(config, name, None)
    except RuntimeError:
        return False
    return True


def _rope_kinds(config: PreTrainedConfig) -> list[Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return [kind.get("rope_type") for kind in kinds]


def attention_of(config: PreTrainedConfig) -> str:
    """The library's attention for this model: fused, unless scores are capped or it has none."""
    if getattr(config, "attn_logit_softcapping", None):
        return "eager"
    return "sdpa" if MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa else "eager"
