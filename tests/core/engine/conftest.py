"""What engine tests share: tiny models of every architecture, and transformers' own answers for
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from devnet.models.tiny_models import write_tiny_model


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that writes a tiny model once per set of arguments and returns its folder."""
    known: dict[str, Path] = {}

    def make(architecture: str = "llama", **options: object) -> Path:
        key = f"{architecture} {sorted(options.items(), key=str)}"
        if key not in known:
            folder = tmp_path_factory.mktemp(architecture)
            known[key] = write_tiny_model(folder, architecture, **options)  # type: ignore[arg-type]
        return known[key]

    return make


@pytest.fixture(scope="session")
def whole_model() -> Callable[..., torch.nn.Module]:
    """A function that loads a folder with transformers alone.

    Its weights are moved to memory of their own: left mapped into the file they start at odd
    addresses, where matrix kernels sum in another order.
    """
    from transformers import AutoModelForCausalLM

    def load(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        return model

    return load
