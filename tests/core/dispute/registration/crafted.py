"""Weights by which each sum of a layer cancels: sorted, one half of it plus, the other minus."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from devnet.models.tiny_models import write_tiny_model

INNER = 1024
#: Where the weights stand.
LAYER = 1


def write_crafted_model(folder: Path) -> Path:
    """A tiny llama of two layers that works, and whose second one leaves little but rounding of its
    sums: all gated numbers are equal, and a row of `down_proj` is Σw − Σw.
    """
    path = write_tiny_model(folder, "llama", layers=2, options={"intermediate_size": INNER})
    file, mlp = path / "model.safetensors", f"model.layers.{LAYER}.mlp."
    tensors = load_file(file)
    for name in ("gate_proj.weight", "up_proj.weight"):
        tensors[mlp + name] = 4 * tensors[mlp + name][:1].repeat(INNER, 1)
    rng, hidden = torch.Generator().manual_seed(0), len(tensors[mlp + "down_proj.weight"])
    half = torch.rand(hidden, INNER // 2, generator=rng).sort(dim=1).values
    tensors[mlp + "down_proj.weight"] = torch.cat((half, -half), dim=1)
    save_file(tensors, file, metadata={"format": "pt"})
    return path
