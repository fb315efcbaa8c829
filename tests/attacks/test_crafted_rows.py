"""Rows chosen so that honest rounding looks like a lie convict nobody, and hide no lie.

A requester and the miner before the victim choose a row that the victim's layers cancel: nearly
nothing is left of it but rounding. `python -m benchmarks.trust --only adversary` finds such rows
within seconds for every family; these are some of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from core.dispute.game.dispute import Verdict
from core.dispute.play.claims import deviation_claim
from core.dispute.play.held import ShardSources, build_trace, signed_rows
from core.dispute.play.players import Accused, Accuser, with_trace
from core.dispute.play.plea import Conditioning, is_beyond_noise, winning_seed
from core.dispute.trace.judge import Case
from core.dispute.trace.layout import TraceLayout
from core.engine.model.blocks import ModelShard
from core.engine.weights.load_shard import load_shard
from core.protocol import commit
from core.protocol.types import LayerRange, RequestLeaf
from tests.core.dispute.play.models import FAMILIES, Tiny
from tests.game.referee_table import Table

CRAFTED = Path(__file__).with_name("crafted_rows.json")
SPAN = (1, 2)
REPEATS = 16


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tiny(family: str, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny.make(tmp_path_factory.mktemp("models"), family)


@pytest.fixture(scope="module")
def rows(family: str) -> np.ndarray:
    """[16, D], the same row again and again."""
    row = np.frombuffer(bytes.fromhex(json.loads(CRAFTED.read_text())[family]), "<f4")
    return np.tile(row, (REPEATS, 1))


def served(shard: ModelShard, rows: np.ndarray) -> bytes:
    out = shard.forward(torch.from_numpy(rows), shard.new_cache())
    return out.float().numpy().astype("<f4").tobytes()


def charged(tiny: Tiny, rows: np.ndarray, made: bytes) -> tuple[Accuser, Accused] | None:
    """Both sides of the dispute about these rows; None where no window speaks against them."""
    program, model = tiny.ours.program, tiny.ours.trace_model(tiny.folder)
    width = 4 * tiny.hidden
    entered = [row.tobytes() for row in rows]
    left = [made[at : at + width] for at in range(0, len(made), width)]
    sources = ShardSources.over(model, entered, left)
    roots = (commit.to_hex(side.root) for side in (sources.inputs, sources.outputs))
    leaf = RequestLeaf(0, *roots, len(rows), 1)
    layout = TraceLayout(program, *SPAN, len(rows), 0)
    exact = Conditioning(layout, model, signed_rows(layout, sources)).exact
    sigma = tiny.ours.tables["sigma"][SPAN[1]]
    out = np.frombuffer(made, "<f4").reshape(len(rows), -1)
    excess = deviation_claim(program, leaf, SPAN, out, exact, sigma)
    if excess is None:
        return None
    case = Case(program, (), excess.claim)
    case.check_claim()
    trace = build_trace(case.layout, model, signed_rows(case.layout, sources))
    return Accuser(with_trace(case, trace), trace, sources), Accused(case, trace, sources)


def test_an_honest_stage_that_looks_guilty_pleads_and_is_free(tiny: Tiny, rows: np.ndarray) -> None:
    shard = load_shard(tiny.folder, LayerRange(*SPAN), dtype=torch.float32)
    players = charged(tiny, rows, served(shard, rows))
    assert players is not None, "these rows speak against nobody"
    accuser, accused = players
    assert accuser.is_convicting(), "without a plea it would have been slashed"
    assert not is_beyond_noise(accuser.case.layout, accuser.sources), "a careful auditor sees it"
    table = Table(accuser, accused)
    assert table.play() == Verdict.NO_FAULT
    assert table.moves == ["accuse", "plead", "restate", "point", "prove"]


def test_a_lie_about_such_rows_has_no_plea(tiny: Tiny, rows: np.ndarray) -> None:
    """The stage computes nothing: it gives the rows back as they came."""
    players = charged(tiny, rows, rows.tobytes())
    assert players is not None
    accuser, accused = players
    assert is_beyond_noise(accuser.case.layout, accuser.sources)
    assert winning_seed(accuser.case.layout, accuser.sources) is None
    table = Table(accuser, accused)
    assert table.play() == Verdict.FAULT
    assert table.moves == ["accuse"], "it knows nothing to say and falls silent"
