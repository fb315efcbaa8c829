"""Do the fault switches do what they say, on every kind of stage?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange
from devnet.faults import corrupt_layer, slow_down
from devnet.models.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), layers=6)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 2), (2, 4), (4, 6)], ids=["first", "middle", "last"]
)
def test_a_slowed_stage_takes_longer_and_answers_the_same(
    folder: Path, start: int, end: int
) -> None:
    shard = load_shard(folder, LayerRange(start, end))
    x = torch.arange(4) if start == 0 else torch.ones(4, shard.hidden)
    expected = shard.forward(x, shard.new_cache())
    slow_down(shard, 50)
    started = time.monotonic()
    assert torch.equal(shard.forward(x, shard.new_cache()), expected)
    assert time.monotonic() - started >= 0.1


def test_a_liar_answers_differently(folder: Path) -> None:
    honest, liar = (load_shard(folder, LayerRange(2, 4)) for _ in range(2))
    corrupt_layer(liar, 3)
    x = torch.randn(4, honest.hidden, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(honest.forward(x, honest.new_cache()), liar.forward(x, liar.new_cache()))
