"""What does a configuration say about a model's sizes, whatever it calls them?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.engine.model.families import WRITTEN_DOWN
from core.protocol.errors import ModelMissing, ModelUnsupported
from core.protocol.foreign import read_json_file

CONFIG_FILE = "config.json"
_MAX_CONFIG_BYTES = 4 * 2**20
#: Models that encode distance instead of place have no limit of their own.
_NO_LIMIT_TOKENS = 2**20
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
#: What an integer may be at most, by words in its name; the first that fits counts.
_MOST = (
    ("layer", 2**12),
    ("num_", 2**16),
    ("head", 2**16),
    ("vocab", 2**22),
    ("size", 2**20),
    ("dim", 2**20),
    ("embd", 2**20),
    ("inner", 2**20),
    ("rank", 2**20),
    ("", 2**31 - 1),
)
_COUNTS = (
    *_LAYERS,
    "num_attention_heads",
    "num_key_value_heads",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "max_window_layers",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "moe_top_k",
    "top_k_experts",
)


def read_config(model_dir: Path) -> dict[str, Any]:
    """`config.json` of a folder. Raises ModelMissing or ModelUnsupported."""
    path = Path(model_dir) / CONFIG_FILE
    try:
        config = read_json_file(path, most_bytes=_MAX_CONFIG_BYTES)
    except FileNotFoundError:
        raise ModelMissing(f"{model_dir} is not a model folder", why=f"no {CONFIG_FILE}") from None
    except ValueError as error:
        raise ModelUnsupported(f"cannot read {CONFIG_FILE}", why=f"not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelUnsupported(f"cannot read {CONFIG_FILE}", why="it is not an object")
    refuse_absurd(config)
    return config


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` with the library's names and defaults filled in.

    For families that are written down the file says all that is asked, and torch is not imported.
    """
    if config.get("model_type") in WRITTEN_DOWN:
        return dict(config)
    from core.engine.model.refusal import parse_config

    parsed = parse_config(json.dumps(config))
    named = {known: getattr(parsed, known, None) for known in parsed.attribute_map}
    return parsed.to_dict() | {k: v for k, v in named.items() if v is not None}


def refuse_absurd(config: Mapping[str, Any]) -> None:
    """Raises ModelUnsupported for numbers that no model has: the library builds as much of them."""
    for name in _COUNTS:
        value = config.get(name)
        if value is not None and (not isinstance(value, int) or value < 0):
            raise _absurd(name, value)
    kinds = config.get("layer_types")
    if kinds is not None and (
        not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds)
    ):
        raise _absurd("layer_types", kinds)
    pending: list[tuple[str, Any]] = [("", config)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.items()
        elif isinstance(value, list):
            pending += ((name, item) for item in value)
        elif isinstance(value, int):
            most = next(most for word, most in _MOST if word in name)
            if abs(value) > most:
                raise _absurd(name, value)


def _absurd(name: str, value: object) -> ModelUnsupported:
    what = f"{name[:64]!r} cannot be {str(value)[:64]}"
    return ModelUnsupported("this config.json is of no model", why=what)


def layer_count(facts: Mapping[str, Any]) -> int:
    return integer(facts, *_LAYERS)


def context_of(facts: Mapping[str, Any]) -> int:
    """The longest request in tokens."""
    for name in _CONTEXT:
        if isinstance(facts.get(name), int) and facts[name] > 0:
            return int(facts[name])
    return _NO_LIMIT_TOKENS


def experts_per_token(facts: Mapping[str, Any]) -> int:
    """How many experts a token visits in a layer, 0 without experts."""
    nested = facts.get("ffn_config")
    for source in (facts, nested if isinstance(nested, dict) else {}):
        for name in _PER_TOKEN:
            if isinstance(source.get(name), int):
                return int(source[name])
    return 0


def windows_of(facts: Mapping[str, Any]) -> tuple[int, ...]:
    """How many tokens each layer looks back on, 0 for all of them."""
    total, window = layer_count(facts), facts.get("sliding_window")
    kinds = facts.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != total:
            raise ModelUnsupported(
                "this config.json contradicts itself",
                why=f"it has {total} layers and tells the kinds of {len(kinds)}",
            )
        return tuple(int(window or 0) if "sliding" in kind else 0 for kind in kinds)
    if not window:
        return (0,) * total
    if facts.get("model_type") == "mistral":
        return (int(window),) * total
    return tuple(int(window) if _slides(facts, i) else 0 for i in range(total))


def _slides(facts: Mapping[str, Any], layer: int) -> bool:
    # What the families did before configurations listed the kinds of layers.
    if facts.get("model_type") == "gemma2":
        return layer % 2 == 0
    if facts.get("model_type") == "gemma3_text":
        pattern = facts.get("sliding_window_pattern") or facts.get("_sliding_window_pattern") or 6
        return bool((layer + 1) % pattern)
    return bool(facts.get("use_sliding_window")) and layer >= int(
        facts.get("max_window_layers", 28)
    )


def expert_count(facts: Mapping[str, Any]) -> int:
    """How many experts a layer of a mixture has, 0 without experts."""
    nested = facts.get("ffn_config")
    for source in (facts, nested if isinstance(nested, dict) else {}):
        for name in _EXPERTS:
            if isinstance(source.get(name), int) and source[name] > 1:
                return int(source[name])
    return 0


def is_of_experts(name: str, shape: Sequence[int], experts: int) -> bool:
    """Whether a stored tensor of a layer is one expert's, or holds the matrices of all of them."""
    if re.search(r"(?<!shared_)\bexperts\.\d+\.", name):
        return True
    all_at_once = len(shape) == 3 and shape[0] == experts
    return all_at_once or ("experts." in name and "shared_experts." not in name)


def integer(facts: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = facts.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelUnsupported(f"config.json has no {names[0]}", why="it is needed to cut the model")
