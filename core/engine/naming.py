"""Which tensor of a checkpoint belongs to the embedding, to a layer or to the head?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.protocol.errors import ModelUnsupported


@dataclass(frozen=True)
class Family:
    """How one Hugging Face family names its parts, and what it assumes where `config.json` is silent."""

    model_type: str
    prefix: str  # of the decoder inside the language model
    layers: str
    embedding: str
    positions: str | None
    norm: str
    tied_by_default: bool
    #: Names, relative to a layer, that old checkpoints store but the model does not have.
    stale: tuple[str, ...] = ()

    @property
    def embedding_weight(self) -> str:
        return f"{self.prefix}.{self.embedding}.weight"


def _modern(model_type: str, *, tied: bool) -> Family:
    stale = ("self_attn.rotary_emb.inv_freq",)
    return Family(model_type, "model", "layers", "embed_tokens", None, "norm", tied, stale)


FAMILIES = {
    family.model_type: family
    for family in (
        _modern("llama", tied=False),
        _modern("mistral", tied=False),
        _modern("qwen2", tied=False),
        _modern("qwen3", tied=False),
        _modern("gemma2", tied=True),
        _modern("gemma3_text", tied=True),
        Family(
            "gpt2",
            "transformer",
            "h",
            "wte",
            "wpe",
            "ln_f",
            True,
            ("attn.bias", "attn.masked_bias"),
        ),
    )
}
HEAD_WEIGHT = "lm_head.weight"


def family_of(model_type: object) -> Family:
    """The naming of a family. Raises ModelUnsupported, naming what was asked and what there is."""
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ModelUnsupported(
            f"cannot run models of type '{model_type}'",
            why="supported are " + ", ".join(sorted(FAMILIES)) + " (gemma3 as text only)",
            model_type=str(model_type),
            supported=sorted(FAMILIES),
        )
    return family


@dataclass(frozen=True)
class Parts:
    """Canonical tensor name → name in the files, by the part that needs it.

    A tied embedding matrix is in `embed` and, under the same name, in `head`: both the first and the last
    stage hold it.
    """

    embed: dict[str, str]
    layers: tuple[dict[str, str], ...]
    head: dict[str, str]

    def of(self, start: int, end: int) -> dict[str, str]:
        """What a shard of layers [start, end) needs."""
        needed: dict[str, str] = {}
        if start == 0:
            needed |= self.embed
        for layer in self.layers[start:end]:
            needed |= layer
        if end == len(self.layers):
            needed |= self.head
        return needed


def sort_parts(names: Iterable[str], family: Family, *, layers: int, tied: bool) -> Parts:
    """Assign every tensor of a checkpoint to its part.

    Checkpoints saved without the head (names without the decoder's prefix) get the prefix. Raises
    ModelUnsupported for tensors that no part of this family has, and for parts without tensors.
    """
    names = list(names)
    bare = not any(name.startswith(family.prefix + ".") for name in names)
    prefix = family.prefix + "."
    layer_name = re.compile(
        rf"{re.escape(prefix)}{re.escape(family.layers)}\.(0|[1-9][0-9]*)\.(.+)", re.ASCII
    )
    embed: dict[str, str] = {}
    head: dict[str, str] = {}
    owned: list[dict[str, str]] = [{} for _ in range(layers)]
    foreign: list[str] = []
    for stored in names:
        name = prefix + stored if bare and stored != HEAD_WEIGHT else stored
        in_layer = layer_name.fullmatch(name)
        if in_layer:
            index, rest = int(in_layer[1]), in_layer[2]
            if rest in family.stale:
                continue
            if index < layers:
                owned[index][name] = stored
                continue
        elif name == HEAD_WEIGHT:
            if not tied:
                head[name] = stored
            continue
        elif name == family.embedding_weight:
            embed[name] = stored
            if tied:
                head[name] = stored
            continue
        elif family.positions and name == f"{prefix}{family.positions}.weight":
            embed[name] = stored
            continue
        elif name in (f"{prefix}{family.norm}.weight", f"{prefix}{family.norm}.bias"):
            head[name] = stored
            continue
        foreign.append(stored)
    if foreign:
        raise ModelUnsupported(
            f"this checkpoint is not a plain {family.model_type}",
            why=f"it holds {len(foreign)} tensors that the family does not have, such as {foreign[0]}",
            foreign=foreign[:20],
        )
    empty = [f"layer {i}" for i, layer in enumerate(owned) if not layer]
    if not embed:
        empty.append("embedding")
    if not tied and HEAD_WEIGHT not in head:
        empty.append("head")
    if empty:
        raise ModelUnsupported(
            "this checkpoint is incomplete", why="it has no tensors for " + ", ".join(empty[:5])
        )
    return Parts(embed, tuple(owned), head)
