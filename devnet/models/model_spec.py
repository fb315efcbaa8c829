"""What does the chain call a model folder?"""

from __future__ import annotations

from pathlib import Path

from core.engine.weights.shape import describe_model
from core.engine.weights.weights import model_manifest
from core.protocol import commit, signing
from core.protocol.types import ModelSpec


def spec_of_folder(model_dir: Path, *, head_units: int, numerics_profile: str) -> ModelSpec:
    """Its specification in float32, where the embedding counts one layer unit. Hashes once."""
    shape, manifest = describe_model(model_dir), model_manifest(model_dir)
    return ModelSpec(
        architecture=signing.name_hash(shape.architecture),
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn=shape.ffn,
        vocab=shape.vocab,
        context=shape.context,
        embed_units=1,
        head_units=head_units,
        dtype=signing.name_hash("float32"),
        numerics_profile=numerics_profile,
        weights_root=manifest.weights_root,
        manifest_hash=commit.to_hex(manifest.hash()),
    )
