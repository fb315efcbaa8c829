"""Do the kernels that honest work is measured by compute the same rows?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core.dispute.registration.kernels import kernel_names, rows_of, served, whole
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange
from devnet.models.tiny_models import write_tiny_model

LAYERS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("kernels") / "m", "gemma3", layers=LAYERS)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize("span", [(0, 1), (1, 2), (1, LAYERS)])
def test_rows_served_in_company_are_those_computed_alone(
    folder: Path, span: tuple[int, int], rows: int, batch: int
) -> None:
    shard = load_shard(folder, LayerRange(*span))
    x = torch.arange(rows) + 5 if shard.is_first else torch.randn(rows, shard.hidden)
    alone, beside = rows_of(whole, shard, x), rows_of(served(batch), shard, x)
    assert beside.shape == (rows, shard.hidden)
    assert float((alone - beside).abs().max()) <= 1e-5 * float(alone.abs().max())


def test_a_graphics_processor_has_kernels_of_its_own() -> None:
    here, there = set(kernel_names("cpu")), set(kernel_names("cuda"))
    assert here - there == {"our kernels", "two threads"}
    assert there - here == {f"served in batches of {n}" for n in (1, 8, 32)}
