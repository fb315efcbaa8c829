"""The searcher's gradients are of the registered program, and its finds are found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from core.dispute.play.build import Boundaries
from core.dispute.play.plea import Conditioning
from core.dispute.registration.search import Searched, SearchEffort, Site, search, tolerance_of
from core.dispute.trace.layout import TraceLayout
from core.protocol.types import LayerRange
from tests.core.dispute.play.models import FAMILIES, Tiny

EFFORT = SearchEffort(steps=6, ground=1, most_rows=1, seed=3)


def site(folder: Path, family: str, start: int, end: int) -> Site:
    tiny = Tiny.make(folder, family)
    model = tiny.ours.trace_model(tiny.folder)
    return Site(tiny.folder, tiny.ours.program, model, LayerRange(start, end))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_differentiated_is_the_program(family: str, tmp_path: Path) -> None:
    here = site(tmp_path, family, 0, 3)
    ids = torch.arange(12) * 7 % 256
    exact = here.conditioning(ids).exact
    made = here.gradients(here.gradients.embed(ids))
    np.testing.assert_allclose(made.numpy(), exact, rtol=1e-9, atol=1e-9)
    layout = TraceLayout(here.program, 0, 3, 12, 0)
    rows = Boundaries(ids.numpy().astype(np.uint32))
    by_numpy = Conditioning(layout, here.model, rows).exact
    np.testing.assert_allclose(by_numpy, exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("span", [(0, 2), (1, 2)])
def test_the_same_seed_finds_the_same_rows(span: tuple[int, int], tmp_path: Path) -> None:
    here, runs = site(tmp_path, "llama", *span), []
    for _ in range(2):
        found = Searched()
        search(here, EFFORT, found)
        runs.append((found.judged, found.bare, found.worst))
    assert runs[0] == runs[1]
    assert runs[0][2] is not None
    assert not found.beyond


def test_a_window_is_held_to_the_least_tolerance_that_it_has(tmp_path: Path) -> None:
    program = site(tmp_path, "llama", 0, 1).program
    of = {key: tolerance_of(program, *key) for key in ((1, 1), (1, 63), (1, 64), (6, 64), (11, 1))}
    parts = {key: found and found.parts_per_trillion // 10**6 for key, found in of.items()}
    assert parts == {(1, 1): 100, (1, 63): 20, (1, 64): 10, (6, 64): 30, (11, 1): None}
