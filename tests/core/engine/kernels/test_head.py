"""Whose memory are logits in, and when does the next step get it?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from core.engine.kernels import head
from core.engine.kernels.head import ended
from core.engine.kernels.layouts import Panels
from core.engine.kernels.prepack import PackedLinear
from core.engine.native.native import NoKernels, kernels

try:
    kernels()
except NoKernels as error:
    pytest.skip(f"no C kernels: {error}", allow_module_level=True)

WIDTH, VOCAB = 16, 64
ROW_BYTES = 4 * VOCAB


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Norm and head; two rows come from the allocator, four have the head's own memory."""
    monkeypatch.setattr(head, "REUSED_BYTES", 2 * ROW_BYTES)
    monkeypatch.setattr(head, "SPACE_BYTES", 4 * ROW_BYTES)
    weight = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(0))
    linear = PackedLinear(Panels(), weight, None)
    return SimpleNamespace(
        get_output_embeddings=lambda: linear, base_model=SimpleNamespace(norm=lambda x: x)
    )


def _places(model: SimpleNamespace, rows: int) -> list[int]:
    """Where the logits lay of which something was drawn, once for each time."""
    found: list[int] = []

    def draw(logits: torch.Tensor) -> list[int]:
        found.append(logits.data_ptr())
        return [0] * len(logits)

    ended(model, torch.ones(rows, WIDTH), draw)
    return found


def test_many_rows_have_the_same_memory_in_every_step(model: SimpleNamespace) -> None:
    spaces = model.get_output_embeddings().spaces
    assert len(_places(model, 2)) == 1 and not spaces, "few rows need none"
    assert len(set(_places(model, 9))) == 1 and len(spaces) == 1
    kept = spaces[0].data_ptr()
    assert _places(model, 16) == [kept] * 4
    assert [space.data_ptr() for space in spaces] == [kept]


def test_whoever_comes_meanwhile_has_other_memory(model: SimpleNamespace) -> None:
    x, inside = torch.randn(8, WIDTH), list[int]()
    whole = ended(model, x, None).logits

    def draw(logits: torch.Tensor) -> list[torch.Tensor]:
        inside.extend(_places(model, 8))
        assert logits.data_ptr() not in inside
        return list(logits.clone())

    assert torch.equal(torch.stack(ended(model, x, draw).logits), whole)
    assert len(model.get_output_embeddings().spaces) == 2


def test_memory_comes_back_from_a_draw_that_fails(model: SimpleNamespace) -> None:
    def draw(logits: torch.Tensor) -> list[int]:
        raise ValueError("NaN")

    with pytest.raises(ValueError, match="NaN"):
        ended(model, torch.ones(8, WIDTH), draw)
    assert len(model.get_output_embeddings().spaces) == 1
