"""What does each layer remember of a token?

Configurations do not say it in one way, so one token goes through the model on the meta device,
which computes shapes only, and a cache notes what it is given.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache as LibraryCache
from transformers.cache_utils import CacheLayerMixin, get_layer_types_and_kwargs

from core.engine.model.anatomy import build_tiny, quiet_library
from core.engine.model.clone import cut_config, per_layer_lists
from core.engine.model.library import AutoModelForCausalLM
from core.engine.model.refusal import attention_of, parse_config, unsupported
from core.protocol.errors import ModelUnsupported


@dataclass(frozen=True)
class KvShape:
    """Keys [heads, key_dim] and values [heads, value_dim] of one token in one layer."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        return self.heads * (self.key_dim + self.value_dim)


class _Note(CacheLayerMixin):
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.shape: KvShape | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Note the shapes of keys [1, K, T, key_dim] and values."""
        self.shape = KvShape(key_states.shape[1], key_states.shape[3], value_states.shape[3])
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


@lru_cache(maxsize=64)
def attention_shape(config_json: str) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Widest head, its key/value heads, each layer's width and window. Raises ModelUnsupported."""
    config = parse_config(config_json)
    shapes = kv_shapes_of(config)
    widest = max(shapes, key=lambda shape: shape.width)
    widths = tuple(shape.width for shape in shapes)
    return widest.key_dim, widest.heads, widths, windows_of(config)


def windows_of(config: PreTrainedConfig) -> tuple[int, ...]:
    """Of every layer: how many tokens it looks back on, 0 for all of them."""
    _, options = get_layer_types_and_kwargs(config)
    return tuple(int(option.get("sliding_window") or 0) for option in options)


def kv_shapes_of(config: PreTrainedConfig) -> tuple[KvShape, ...]:
    """What every layer keeps of a token. Raises ModelUnsupported where one remembers otherwise."""
    lists = per_layer_lists(config).values()
    kinds = [json.dumps([values[i] for values in lists]) for i in range(config.num_hidden_layers)]
    if not kinds:
        raise unsupported(config, "no layers")
    examples = {kind: i for i, kind in reversed(list(enumerate(kinds)))}
    some = cut_config(config, list(examples.values()))
    try:
        with torch.device("meta"), torch.no_grad():
            model = AutoModelForCausalLM.from_config(
                some, dtype=torch.bfloat16, attn_implementation=attention_of(some)
            )
            shapes = _noted(model.eval())
    except (
        RuntimeError,
        NotImplementedError,
    ):  # models that look at values have none to look at here
        shapes = _by_rule(config, len(examples))
    except ModelUnsupported:
        raise
    except Exception as error:  # foreign code, of foreign sizes
        raise unsupported(config, f"sizes that it cannot be built of ({error})") from error
    of_kind = dict(zip(examples, shapes, strict=True))
    return tuple(of_kind[kind] for kind in kinds)


def _noted(model: Any) -> list[KvShape]:
    layers = [_Note() for _ in range(model.config.num_hidden_layers)]
    ids = torch.zeros(1, 1, dtype=torch.int64)
    model.base_model(
        input_ids=ids, past_key_values=LibraryCache(layers=list(layers)), use_cache=True
    )
    shapes = [layer.shape for layer in layers if layer.shape is not None]
    if len(shapes) != len(layers):
        raise unsupported(model.config, "layers without keys and values of their own")
    return shapes


def _by_rule(config: PreTrainedConfig, count: int) -> list[KvShape]:
    """What the usual fields say, if a small clone proves that they say it of this architecture."""
    with quiet_library(), torch.no_grad():
        tiny = build_tiny(config)
        if any(shape != _usual(tiny.config) for shape in _noted(tiny)):
            raise unsupported(config, "keys and values of a width that it does not tell")
    return [_usual(config)] * count


def _usual(config: Any) -> KvShape:
    heads = config.num_attention_heads
    named = (getattr(config, name, None) for name in ("head_dim", "kv_channels"))
    width = next((value for value in named if value), config.hidden_size // heads)
    return KvShape(getattr(config, "num_key_value_heads", None) or heads, width, width)
