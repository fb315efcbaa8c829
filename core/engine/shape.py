"""What does a model look like, without loading it?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.engine.naming import Parts, family_of, sort_parts
from core.engine.tensors import STORED, TensorFolder
from core.protocol.errors import ModelMissing, ModelUnsupported

CONFIG_FILE = "config.json"
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class ModelShape:
    """The sizes that planning, pricing and committing need. Byte counts are of the held dtype.

    `embed_bytes` is what holding the first stage costs on top of its layers and `head_bytes` the last's;
    a tied matrix is in both, because both stages hold it.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    tied: bool
    item_bytes: int
    layer_bytes: int  # of the largest layer
    embed_bytes: int
    head_bytes: int
    parameters: int

    @property
    def kv_bytes_per_token(self) -> int:
        """What one token costs in the cache of one full-attention layer."""
        return 2 * self.kv_heads * self.head_dim * self.item_bytes

    def shard_bytes(self, start: int, end: int) -> int:
        """Weights that a machine with layers [start, end) holds; exact where all layers are equal."""
        first, last = start == 0, end == self.layers
        held = (end - start) * self.layer_bytes + first * self.embed_bytes + last * self.head_bytes
        shared = self.vocab * self.hidden * self.item_bytes if self.tied else 0
        return held - (shared if first and last else 0)


def read_config(model_dir: Path) -> dict[str, Any]:
    """`config.json` of a folder. Raises ModelMissing or ModelUnsupported."""
    path = Path(model_dir) / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelMissing(f"{model_dir} is not a model folder", why=f"no {CONFIG_FILE}") from None
    except ValueError as error:
        raise ModelUnsupported(f"cannot read {CONFIG_FILE}", why=f"not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelUnsupported(f"cannot read {CONFIG_FILE}", why="it is not an object")
    return config


def is_tied(config: dict[str, Any]) -> bool:
    family = family_of(config.get("model_type"))
    return bool(config.get("tie_word_embeddings", family.tied_by_default))


def layer_count(config: dict[str, Any]) -> int:
    return _integer(config, "num_hidden_layers", "n_layer")


def model_parts(model_dir: Path, folder: TensorFolder) -> Parts:
    """Where every tensor of a folder belongs. Raises ModelUnsupported for foreign or missing ones."""
    config = read_config(model_dir)
    return sort_parts(
        folder.names(),
        family_of(config.get("model_type")),
        layers=layer_count(config),
        tied=is_tied(config),
    )


def describe_model(model_dir: Path, dtype: str = "float32") -> ModelShape:
    """Sizes of the model in a folder, from `config.json` and the safetensors headers alone.

    `dtype` is what the weights would be held in: float32, float64 or bfloat16. Raises ModelMissing or
    ModelUnsupported.
    """
    item_bytes = ITEM_BYTES[dtype]
    config = read_config(model_dir)
    family = family_of(config.get("model_type"))
    folder = TensorFolder(model_dir)
    parts = model_parts(model_dir, folder)
    heads = _integer(config, "num_attention_heads", "n_head")
    hidden = _integer(config, "hidden_size", "n_embd")
    vocab, width = folder.entry(parts.embed[family.embedding_weight]).shape
    if width != hidden:
        raise ModelUnsupported(
            "config and weights disagree", why=f"hidden size {hidden}, embedding rows of {width}"
        )
    head_dim, kv_heads = hidden // heads, heads
    first_layer = f"{family.prefix}.{family.layers}.0."
    query = parts.layers[0].get(first_layer + "self_attn.q_proj.weight")
    key = parts.layers[0].get(first_layer + "self_attn.k_proj.weight")
    if query and key:
        head_dim = folder.entry(query).shape[0] // heads
        kv_heads = folder.entry(key).shape[0] // head_dim

    def elements(part: dict[str, str]) -> int:
        entries = [folder.entry(stored) for stored in part.values()]
        for entry in entries:
            if entry.dtype not in STORED:
                raise ModelUnsupported(
                    f"{entry.name} is stored as {entry.dtype}",
                    why="weights must be float64, float32, float16 or bfloat16",
                )
        return sum(entry.elements for entry in entries)

    layer_elements = [elements(layer) for layer in parts.layers]
    embed, head, tied = elements(parts.embed), elements(parts.head), is_tied(config)
    return ModelShape(
        architecture=family.model_type,
        layers=len(parts.layers),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=int(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden),
        vocab=vocab,
        context=_integer(config, "max_position_embeddings", "n_positions"),
        tied=tied,
        item_bytes=item_bytes,
        layer_bytes=max(layer_elements) * item_bytes,
        embed_bytes=embed * item_bytes,
        head_bytes=head * item_bytes,
        parameters=sum(layer_elements) + embed + head - (vocab * hidden if tied else 0),
    )


def _integer(config: dict[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelUnsupported(f"{CONFIG_FILE} has no {names[0]}", why="it is needed to cut the model")
