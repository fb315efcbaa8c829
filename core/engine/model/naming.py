"""Which tensor of a checkpoint belongs to the embedding, to a layer or to the head?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from core.protocol.errors import ModelUnsupported


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


@dataclass(frozen=True)
class Family:
    """How a family of models names its parts, and what it assumes where `config.json` is silent.

    Paths are of modules inside the language model. `before` are those whose weights run before the
    first layer, the token embedding first; `after` those that run after the last one, without the
    head.
    """

    model_type: str
    prefix: str  # of the decoder inside the language model
    layers: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    head: str
    tied_by_default: bool
    #: Patterns of names that checkpoints store but the model does not have.
    stale: tuple[str, ...] = ()
    #: Names in checkpoints → names of the parameters that they become.
    targets: Callable[[Iterable[str]], dict[str, str]] = field(default=_same, compare=False)

    @property
    def embedding_weight(self) -> str:
        return f"{self.before[0]}.weight"

    @property
    def head_weight(self) -> str:
        return f"{self.head}.weight"


#: Where a configuration says how weights are packed (`core.engine.weights.packed_formats`).
PACKING_KEYS = ("quantization_config", "compression_config")
#: Constants that old checkpoints carry although no model has them as weights.
OLD_CONSTANTS = (
    r"\.(attn|attention|self_attn|self_attention)\.(masked_)?bias$",
    r"\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$",
)


@dataclass(frozen=True)
class Parts:
    """Canonical tensor name → name in the files, by the part that needs it.

    A tied embedding matrix is in `embed` and, under the same name, in `head`: both the first and
    the last stage hold it.
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
    prefix, head_prefix = family.prefix + ".", family.head + "."
    targets = family.targets(names)
    stored_as = {name: name for name in targets}
    if not any(target.startswith(prefix) for target in targets.values()):
        bare = {name for name, target in targets.items() if not target.startswith(head_prefix)}
        stored_as = {prefix + name if name in bare else name: name for name in targets}
        targets = family.targets(stored_as)
    layer_name = re.compile(rf"{re.escape(family.layers)}\.(0|[1-9][0-9]*)\.(.+)", re.ASCII)
    stale = re.compile("|".join(family.stale) or r"(?!)")
    embed: dict[str, str] = {}
    head: dict[str, str] = {}
    owned: list[dict[str, str]] = [{} for _ in range(layers)]
    foreign: list[str] = []
    for name, stored in stored_as.items():
        target = targets[name]
        module = target.rpartition(".")[0]
        in_layer = layer_name.fullmatch(target)
        if stale.search(target):
            continue
        if in_layer and int(in_layer[1]) < layers:
            owned[int(in_layer[1])][name] = stored
        elif module == family.head:
            if not (tied and target == family.head_weight):
                head[name] = stored
        elif module in family.before or module in family.after:
            if module in family.before:
                embed[name] = stored
            if module in family.after or (tied and target == family.embedding_weight):
                head[name] = stored
        else:
            foreign.append(stored)
    if foreign:
        raise ModelUnsupported(
            f"this checkpoint is not a plain {family.model_type}",
            why=f"it holds {len(foreign)} tensors that the family does not have, such as "
            f"{foreign[0]}",
            foreign=foreign[:20],
        )
    empty = [f"layer {i}" for i, layer in enumerate(owned) if not layer]
    if not embed:
        empty.append("embedding")
    if not tied and family.head_weight not in {targets[name] for name in head}:
        empty.append("head")
    if empty:
        raise ModelUnsupported(
            "this checkpoint is incomplete", why="it has no tensors for " + ", ".join(empty[:5])
        )
    return Parts(embed, tuple(owned), head)
