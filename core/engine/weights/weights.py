"""Which weights does a model consist of, in 32 bytes? (`docs/protocol.md` §3)

Trees over float32 rows, whatever dtype the files hold: tensor → layer (or embedding, or head) →
model. A shard's root is over the parts it holds, so an auditor can prove which weights a machine
claimed to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from core.engine.model.naming import Parts
from core.engine.weights.contents import Contents, contents_of
from core.engine.weights.pulled import PulledFolder
from core.engine.weights.shape import model_parts
from core.engine.weights.tensors import TensorFolder
from core.protocol import commit
from core.protocol.errors import ModelUnsupported


@dataclass(frozen=True)
class WeightRoots:
    """The roots of a model's parts, and the canonical names under each: `embed`, `layer 0` …"""

    embed: bytes
    layers: tuple[bytes, ...]
    head: bytes
    tensors: Mapping[str, list[str]]

    @property
    def parts(self) -> list[bytes]:
        """The leaves under `weights_root`: embed, layer 0 … layer L−1, head."""
        return [self.embed, *self.layers, self.head]

    @property
    def weights_root(self) -> str:
        """What a model's specification names as its weights, 0x-hex."""
        return commit.to_hex(commit.merkle_root(self.parts))

    def shard_root(self, start: int, end: int) -> bytes:
        """Commitment to the weights of layers [start, end). Raises ValueError for others."""
        return commit.shard_root(self.parts, start, end)


def part_root(tensor_roots: Mapping[str, bytes]) -> bytes:
    """Root of a layer, the embedding or the head: its tensors' roots in order of name."""
    return commit.merkle_root(
        name.encode() + b"\x00" + tensor_roots[name] for name in sorted(tensor_roots)
    )


def weight_roots(model_dir: Path) -> WeightRoots:
    """The roots of a model folder. Hashes what is new since the last look at it.

    Of a folder that was pulled they are its manifest's, which every tensor in it is held to. Raises
    ModelMissing or ModelUnsupported.
    """
    folder = TensorFolder(model_dir)
    parts = model_parts(model_dir, folder)
    return roots_of(parts, _contents(model_dir, folder.pulled))


def known_contents(model_dir: Path) -> Contents:
    """What the whole model is made of, of which a folder that was pulled holds a part.

    Raises ModelMissing or ModelUnsupported.
    """
    return _contents(model_dir, PulledFolder.find(model_dir))


def _contents(model_dir: Path, pulled: PulledFolder | None) -> Contents:
    return pulled.manifest.contents if pulled else contents_of(model_dir)


def contents_hash(model_dir: Path) -> str:
    """SHA-256 of what a model is made of, hex: two folders of the same files have the same."""
    encoded = msgspec.json.encode(known_contents(model_dir), order="sorted")
    return sha256(encoded).hexdigest()


def roots_of(parts: Parts, contents: Contents) -> WeightRoots:
    """The roots of a model's parts from those of its tensors.

    Raises ModelUnsupported for a tensor that is not stored as numbers.
    """

    def root_of(part: Mapping[str, str]) -> bytes:
        found = {name: contents.root_of(stored) for name, stored in part.items()}
        if unknown := sorted(part[name] for name, root in found.items() if root is None):
            raise ModelUnsupported(
                f"{unknown[0]} has no root",
                why="weights must be float64, float32, float16 or bfloat16, or packed in a format "
                "that is known, and not empty",
            )
        return part_root({name: bytes.fromhex(root) for name, root in found.items() if root})

    return WeightRoots(
        root_of(parts.embed),
        tuple(root_of(layer) for layer in parts.layers),
        root_of(parts.head),
        _tensor_names(parts),
    )


def _tensor_names(parts: Parts) -> dict[str, list[str]]:
    named = {"embed": parts.embed, "head": parts.head}
    named |= {f"layer {i}": layer for i, layer in enumerate(parts.layers)}
    return {label: sorted(part) for label, part in named.items()}
