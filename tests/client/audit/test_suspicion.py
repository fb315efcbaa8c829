"""Work that stands out of honest noise is suspicious in every family of models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from client.audit.suspicion import is_due, suspicion
from core.dispute.judging.numerics import BF16, FP32, reexecute
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange
from devnet.models.tiny_models import write_tiny_model


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_what_stands_out_is_told_with_its_number(tmp_path: Path, family: str) -> None:
    span = LayerRange(1, 3)
    folder = write_tiny_model(tmp_path / family, family, layers=4)
    own = load_shard(folder, span)
    kind = own.model.config._attn_implementation
    x = torch.randn(20, own.hidden, generator=torch.Generator().manual_seed(1))
    reference = reexecute(load_shard(folder, span, reference=True), x.double()).numpy()
    honest = own.forward(x, own.new_cache()).numpy()
    noisy = honest * (1 + 1e-5 * np.random.default_rng(1).normal(size=honest.shape))
    assert suspicion(FP32, own, x.double(), honest, reference, None) == ""
    assert "times the noise" in suspicion(FP32, own, x.double(), noisy, reference, None)
    assert own.model.config._attn_implementation == kind, "the shard is left as it was"


def test_float32_is_looked_at_between_half_of_t_and_t_and_bfloat16_always() -> None:
    due = {0.1: False, 0.5: False, 0.6: True, 1.0: True, 1.1: False}
    assert {ratio: is_due(FP32, ratio, 1.0) for ratio in due} == due
    assert is_due(BF16, 0.01, 1.0) and not is_due(BF16, 1.1, 1.0)
