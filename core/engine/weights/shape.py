"""What does a model look like, without loading it?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.engine.model import config_facts
from core.engine.model.config_facts import read_config
from core.engine.model.families import WRITTEN_DOWN, family_of
from core.engine.model.naming import Family, Parts, sort_parts
from core.engine.weights.formats import ITEM_BYTES, NumberFormat, format_of
from core.engine.weights.headers import TensorEntry
from core.engine.weights.stored import STORED
from core.engine.weights.tensors import TensorFolder
from core.protocol.errors import ModelUnsupported


@dataclass(frozen=True)
class ModelSizes:
    """The sizes that planning, pricing and committing need. Byte counts are of the held numerics.

    `embed_bytes` is what holding the first stage costs on top of its layers and `head_bytes` the
    last's; a tied matrix is in both, because both stages hold it. A mixture of experts has
    `experts` of `expert_bytes` in its largest layer (part of `layer_bytes`), of which a token
    visits `experts_per_token`.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # of all experts of a layer together
    vocab: int
    context: int
    tied: bool
    item_bytes: int  # of activations, keys and values, and of weights that are not quantised
    layer_bytes: int  # of the largest layer
    embed_bytes: int
    head_bytes: int
    parameters: int
    numerics: str = "float32"
    #: Of every layer: values that it remembers per token, and how many tokens it looks back on (0:
    #: all).
    kv_widths: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    experts: int = 0
    experts_per_token: int = 0
    expert_bytes: int = 0
    layers_bytes: tuple[int, ...] = ()  # of every layer
    is_head_wide: bool = False  # its matrix is held in float32 behind layers of bfloat16

    @property
    def kv_bytes_per_token(self) -> int:
        """What a token costs in the widest layer's cache, as long as it is in its sight."""
        return max(self.kv_widths) * self.item_bytes

    def kv_bytes(self, start: int, end: int, tokens: int) -> int:
        """What a request of `tokens` takes in the cache of layers [start, end)."""
        seen = zip(self.kv_widths[start:end], self.windows[start:end], strict=True)
        return sum(w * min(tokens, window or tokens) for w, window in seen) * self.item_bytes

    def shard_bytes(self, start: int, end: int) -> int:
        """Weights that a machine with layers [start, end) holds."""
        first, last = start == 0, end == self.layers
        held = sum(self.layers_bytes[start:end]) + first * self.embed_bytes + last * self.head_bytes
        is_shared = self.tied and not self.is_head_wide
        shared = self.vocab * self.hidden * self.item_bytes if is_shared else 0
        return held - (shared if first and last else 0)


def is_tied(config: dict[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", family_of(config).tied_by_default))


def layer_count(config: dict[str, Any]) -> int:
    return config_facts.layer_count(config_facts.facts_of(config))


def context_of(config: dict[str, Any]) -> int:
    """The longest request in tokens."""
    return config_facts.context_of(config_facts.facts_of(config))


def model_parts(model_dir: Path, folder: TensorFolder) -> Parts:
    """Where every tensor of a folder belongs. ModelUnsupported for foreign or missing ones."""
    config = read_config(model_dir)
    return sort_parts(
        folder.names(), family_of(config), layers=layer_count(config), tied=is_tied(config)
    )


def describe_model(model_dir: Path, dtype: str = "float32") -> ModelSizes:
    """Sizes of the model in a folder, from `config.json` and the safetensors headers alone.

    `dtype` is the name of the numerics that the weights would be held in (`formats.FORMATS`).
    Raises ModelMissing, ModelUnsupported, or UsageError for unknown numerics.
    """
    form = format_of(dtype)
    config = read_config(model_dir)
    family, known = family_of(config), config_facts.facts_of(config)
    folder = TensorFolder(model_dir)
    parts = model_parts(model_dir, folder)
    heads = config_facts.integer(known, "num_attention_heads", "n_head")
    hidden = config_facts.integer(known, "hidden_size", "n_embd")
    tied = is_tied(config)

    def entries(part: dict[str, str]) -> list[TensorEntry]:
        found = [folder.entry(stored) for stored in part.values()]
        for entry in found:
            if entry.dtype not in STORED:
                raise ModelUnsupported(
                    f"{entry.name} is stored as {entry.dtype}",
                    why="weights must be float64, float32, float16 or bfloat16",
                )
        return found

    layers = [entries(layer) for layer in parts.layers]
    layer_bytes = [sum(_held_bytes(entry, form) for entry in layer) for layer in layers]
    largest = layers[layer_bytes.index(max(layer_bytes))]
    embed = sum(entry.elements for entry in entries(parts.embed))
    head = sum(entry.elements for entry in entries(parts.head))
    matrix = _head_matrix(parts, family, folder)
    wide = form.compute == "bfloat16"  # as `core.engine.model.wide_end` holds what is behind layers
    is_head_wide = wide and matrix.dtype != "BF16"
    head_bytes = head * (ITEM_BYTES["float32"] if wide else form.item_bytes)
    if wide and not is_head_wide:
        head_bytes -= matrix.elements * (ITEM_BYTES["float32"] - form.item_bytes)
    table = _embedding_table(parts, family, folder)
    if len(table.shape) != 2:
        raise ModelUnsupported("config and weights disagree", why=f"{table.name} is no matrix")
    if table.shape[1] != hidden and len(family.before) == 1:
        raise ModelUnsupported(
            "config and weights disagree",
            why=f"hidden size {hidden}, embedding rows of {table.shape[1]}",
        )
    head_dim, kv_heads, kv_widths, windows = _attention(
        config, parts, folder, family, heads, hidden
    )
    experts, expert_bytes = _experts(largest, known, form)
    return ModelSizes(
        architecture=family.model_type,
        layers=len(layers),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_ffn(known, hidden, experts * expert_bytes // form.item_bytes),
        vocab=table.shape[0],
        context=config_facts.context_of(known),
        tied=tied,
        item_bytes=form.item_bytes,
        layer_bytes=max(layer_bytes),
        embed_bytes=embed * form.item_bytes,
        head_bytes=head_bytes,
        parameters=sum(e.elements for layer in layers for e in layer)
        + embed
        + head
        - (table.elements if tied else 0),
        numerics=form.name,
        kv_widths=kv_widths,
        windows=windows,
        experts=experts,
        experts_per_token=config_facts.experts_per_token(known) if experts else 0,
        expert_bytes=expert_bytes,
        layers_bytes=tuple(layer_bytes),
        is_head_wide=is_head_wide,
    )


def _held_bytes(entry: TensorEntry, form: NumberFormat) -> int:
    if form.bits and len(entry.shape) == 2:
        return form.matrix_bytes(*entry.shape)
    return entry.elements * form.item_bytes


def _embedding_table(parts: Parts, family: Family, folder: TensorFolder) -> TensorEntry:
    return folder.entry(_stored(parts.embed, family, family.embedding_weight))


def _head_matrix(parts: Parts, family: Family, folder: TensorFolder) -> TensorEntry:
    """The output matrix, which is the embedding's where there is no other."""
    return folder.entry(_stored(parts.head, family, family.head_weight, family.embedding_weight))


def _stored(part: dict[str, str], family: Family, *wanted: str) -> str:
    """The stored name of the first of these weights. Raises ModelUnsupported without any."""
    named = {target: name for name, target in family.targets(part).items()}
    found = next((part[named[weight]] for weight in wanted if weight in named), None)
    if found is None:
        raise ModelUnsupported("this checkpoint is incomplete", why=f"it has no {wanted[-1]}")
    return found


def _attention(
    config: dict[str, Any],
    parts: Parts,
    folder: TensorFolder,
    family: Family,
    heads: int,
    hidden: int,
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Width of a head, key/value heads; of every layer, values of a token and the window."""
    if family.model_type not in WRITTEN_DOWN:
        from core.engine.model.dryrun import attention_shape

        return attention_shape(json.dumps(config, sort_keys=True))
    head_dim, kv_heads = hidden // heads, heads
    first_layer = f"{family.layers}.0."
    query = parts.layers[0].get(first_layer + "self_attn.q_proj.weight")
    key = parts.layers[0].get(first_layer + "self_attn.k_proj.weight")
    if query and key:
        rows, kv_rows = (sum(folder.entry(name).shape[:1]) for name in (query, key))
        head_dim = rows // heads
        kv_heads = kv_rows // max(1, head_dim)
    if not head_dim or not kv_heads:
        raise ModelUnsupported("config and weights disagree", why=f"{heads} heads are too many")
    widths = (2 * kv_heads * head_dim,) * len(parts.layers)
    return head_dim, kv_heads, widths, config_facts.windows_of(config)


def _experts(
    layer: list[TensorEntry], known: dict[str, Any], form: NumberFormat
) -> tuple[int, int]:
    """How many experts a layer has, and what one of them weighs."""
    count = config_facts.expert_count(known)
    held = (
        [e.elements for e in layer if config_facts.is_of_experts(e.name, e.shape, count)]
        if count
        else []
    )
    return (count, sum(held) * form.item_bytes // count) if held else (0, 0)


def _ffn(known: dict[str, Any], hidden: int, experts_elements: int) -> int:
    """Width of the feed-forward part as it is held: of all experts together, if there are any."""
    named = (
        known.get(name) for name in ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    )
    width = next(
        (int(value) for value in named if isinstance(value, int) and value > 0), 4 * hidden
    )
    return max(width, -(-experts_elements // (3 * hidden)))
