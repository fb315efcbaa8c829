"""How is transformers loaded without what a shard never asks of it?

Its quantisers import torchao, which takes a second and writes warnings; a shard imports it only to
quantise (`core.engine.weights.quantise`). Its losses for pictures import SciPy's optimisers, which
take 38 MB and another second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import transformers.utils as _utils


@contextmanager
def _as_if_without(*checks: str) -> Iterator[None]:
    found = {check: getattr(_utils, check) for check in checks}
    for check in checks:
        setattr(_utils, check, lambda *_: False)
    try:
        yield
    finally:
        for check, function in found.items():
            setattr(_utils, check, function)


with _as_if_without("is_torchao_available", "is_scipy_available"):
    from transformers import AttentionInterface, AutoModelForCausalLM

__all__ = ["AttentionInterface", "AutoModelForCausalLM"]
