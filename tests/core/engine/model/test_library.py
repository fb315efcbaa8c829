"""transformers is loaded without torchao and SciPy, and torchao without its warnings."""

from __future__ import annotations

import subprocess
import sys


def _said_by(program: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip(), done.stderr.strip()


def test_a_machine_of_floats_never_loads_torchao_or_scipy() -> None:
    program = """
import sys
import core.engine.batch.batch
from transformers import LlamaForCausalLM
from transformers.quantizers import auto
print([name for name in ("torchao", "scipy", "sklearn") if name in sys.modules])
"""
    assert _said_by(program) == ("[]", "")


def test_a_machine_of_integers_loads_torchao_in_silence() -> None:
    program = """
import core.engine.model.library, torch
from core.engine.weights.formats import format_of
from core.engine.weights.quantise import quantise_layer
layer = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False))
quantise_layer(layer, format_of("int8-weight-only"))
print(type(layer[0].weight).__name__)
"""
    kind, noise = _said_by(program)
    assert "Int8" in kind or "Tensor" in kind
    assert noise == ""
