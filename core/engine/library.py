"""How is transformers loaded without what a shard never asks of it?

Its quantisers import torchao where that is installed, to read models saved by torchao. Headrace reads none: it quantises
itself (`core.engine.quantise`) and imports torchao only then. The import takes a second and writes warnings of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import transformers.utils as _utils


@contextmanager
def _as_if_without_torchao() -> Iterator[None]:
    found = _utils.is_torchao_available
    _utils.is_torchao_available = lambda *_: False
    try:
        yield
    finally:
        _utils.is_torchao_available = found


with _as_if_without_torchao():
    from transformers import AttentionInterface, AutoModelForCausalLM

__all__ = ["AttentionInterface", "AutoModelForCausalLM"]
