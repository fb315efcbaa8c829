"""A shard's trace is what its model computes, its leaves hold, its openings lead to the root."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from core.dispute.judging.numerics import reexecute
from core.dispute.play import held
from core.dispute.play.held import (
    NODES_FILE,
    VALUES_FILE,
    boundaries_of,
    build_trace,
    sources_of,
)
from core.dispute.play.nearest import Nearest
from core.dispute.play.operators import Plain
from core.dispute.play.selfcheck import sampled
from core.dispute.play.tree import TraceTree
from core.dispute.play.values import TraceValues
from core.dispute.referee import LeafKind, Ruling
from core.dispute.trace import chunks
from core.dispute.trace.check import Checker
from core.dispute.trace.derive import Derivation, TraceRun
from core.dispute.trace.evidence import open_run
from core.dispute.trace.layout import Place
from core.dispute.trace.program import Form
from core.engine.batch.whole import head_logits
from core.engine.weights.load_shard import load_shard
from core.protocol import commit
from core.protocol.types import LayerRange
from tests.core.dispute.play.models import FAMILIES, SEED, SHARDS, Tiny, with_value

EACH = 12


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny.make(tmp_path_factory.mktemp("models"), request.param)


def test_the_trace_is_what_the_model_computes(tiny: Tiny) -> None:
    shard = SHARDS[0]
    trace, _, _ = tiny.trace(shard)
    ids = np.frombuffer(tiny.rows(shard)[0], "<u4").astype(np.int64)
    exact = load_shard(tiny.folder, LayerRange(*shard[:2]), dtype=torch.float64)
    want = reexecute(exact, torch.from_numpy(ids)).numpy()
    section = len(trace.layout.section_types) - 2
    got = trace.values.array(section, len(trace.layout.section(section).ops) - 1)[:, 0]
    # The library's own cosines are a step of float32 off the correctly rounded ones.
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()


def test_the_head_of_the_trace_is_what_the_model_computes(tiny: Tiny) -> None:
    shard = SHARDS[2]
    trace, _, _ = tiny.trace(shard)
    state = np.frombuffer(tiny.rows(shard)[1], "<f4").reshape(-1, tiny.hidden)[-1:]
    exact = load_shard(tiny.folder, LayerRange(*shard[:2]), dtype=torch.float64)
    want = head_logits(exact, torch.from_numpy(state.astype(np.float64)))
    assert len(trace.layout.section_types) == 2, "no layer is in a token's trace"
    got = trace.values.array(1, len(trace.layout.section(1).ops) - 2)[0, 0]
    assert np.abs(got - want.numpy()[0]).max() < 1e-12 * float(want.abs().max())


def test_values_are_those_of_the_referee_to_the_bit(tiny: Tiny) -> None:
    rng = random.Random(1)
    kinds: set[LeafKind] = set()
    for shard in SHARDS:
        trace, sources, derivation = tiny.trace(shard)
        checker = Checker(derivation, sources)
        places = list(sampled(trace.layout, EACH, rng))
        assert [p for p in places if checker.ruling(trace, p) != Ruling.HOLDS] == []
        kinds |= {trace.layout.op(p.section, p.op).kind for p in places}
        arithmetic = Nearest(tiny.ours.program.part_terms)
        again = tiny.values(shard, arithmetic)
        assert np.array_equal(again.flat, trace.values.flat)
        assert arithmetic.asked < again.count / 1000, "nearly all without asking"
    assert {
        LeafKind.INPUT,
        LeafKind.EMBED,
        LeafKind.LINEAR,
        LeafKind.ROPE,
        LeafKind.SCORE,
        LeafKind.EXP,
        LeafKind.MIX,
    } < kinds


def test_a_row_s_negative_zero_is_a_positive_one_in_the_trace(tmp_path: Path) -> None:
    """Else who signs one wins the stake of the honest stage that it enters."""
    tiny, shard = Tiny.make(tmp_path, "llama"), SHARDS[1]
    inputs, left = (np.frombuffer(rows, "<f4").copy() for rows in tiny.rows(shard))
    inputs[5] = -0.0
    layout, model = tiny.layout(shard), tiny.ours.trace_model(tiny.folder)
    rows = inputs.tobytes(), left.tobytes()
    trace = build_trace(layout, model, boundaries_of(layout, *rows))
    sources = sources_of(layout.program, shard[:2], model, *rows)
    checker = Checker(Derivation(layout, 3 * 10**7), sources)
    assert checker.ruling(trace, Place(0, 0, 0, 0, 5)) == Ruling.HOLDS


def test_shaken_values_are_those_of_the_referee_to_the_bit(tiny: Tiny) -> None:
    rng = random.Random(4)
    for shard in SHARDS[:2]:
        trace, sources, derivation = tiny.trace(shard, plea=SEED)
        checker = Checker(derivation, sources)
        places = list(sampled(trace.layout, EACH, rng))
        assert [p for p in places if checker.ruling(trace, p) != Ruling.HOLDS] == []
        plain = tiny.trace(shard)[0].values
        end = plain.layout.bases[-1][0] * 8
        assert np.array_equal(
            trace.values.chunk_bytes(0, end // 64), plain.chunk_bytes(0, end // 64)
        )


def test_these_and_plain_values_differ_in_last_digits_only(tiny: Tiny) -> None:
    for shard in SHARDS:
        a, b = tiny.values(shard, Plain(128)).flat, tiny.trace(shard)[0].values.flat
        assert np.array_equal(np.isneginf(a), np.isneginf(b))
        known = np.isfinite(a)
        size = np.maximum(np.abs(a[known]), np.abs(a[known]).max() * 1e-6)
        assert (np.abs(a[known] - b[known]) / size).max() < 1e-8


def test_one_bit_more_is_found(tiny: Tiny) -> None:
    trace, sources, derivation = tiny.trace(SHARDS[0])
    checker = Checker(derivation, sources)
    rng = random.Random(2)
    for place in rng.sample(list(sampled(trace.layout, 1, rng)), 12):
        value = trace[place]
        if not np.isfinite(value):
            continue
        forged = with_value(trace, place, float(np.nextafter(value, np.inf)))
        if trace.layout.op(place.section, place.op).kind == LeafKind.STABILISER:
            continue  # named by a witness
        assert checker.ruling(forged, place) != Ruling.HOLDS, place


@pytest.mark.parametrize("shard", [(0, 1, 12, True), (2, 3, 11, False)])
def test_every_opening_leads_to_the_root(tiny: Tiny, shard: tuple[int, int, int, bool]) -> None:
    trace, _, _ = tiny.trace(shard)
    tree, layout, rng = trace.tree, trace.layout, random.Random(3)
    plain = chunks.ChunkTree(
        [commit.leaf_hash(chunk) for chunk in trace.values.chunks(0, layout.chunks)]
    )
    assert (tree.root, tree.height) == (plain.root, plain.height)
    for place in sampled(layout, 1, rng):
        length = layout.shape(layout.op(place.section, place.op).form).length
        run = TraceRun(place, rng.randint(1, length - place.item))
        assert open_run(layout, tree.root, run, trace.open(run)) == trace.run(run)
    for _ in range(30):
        level = rng.randint(0, tree.height)
        index = rng.randrange(chunks.width(layout.chunks, level))
        assert tree.node(level, index) == plain._levels[level][index]
        assert tree.below(level, index) == plain.below(level, index)
        up = rng.randint(0, tree.height - level)
        wide = rng.randint(1, min(40, chunks.width(layout.chunks, level) - index))
        assert tree.proof(index, index + wide, level, up) == plain.proof(
            index, index + wide, level, up
        )


def test_a_trace_in_a_folder_is_taken_up_as_it_is(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = SHARDS[1]
    in_memory, _, _ = tiny.trace(shard)
    first, _, _ = tiny.trace(shard, folder=tmp_path)
    assert first.tree.root == in_memory.tree.root
    assert {path.name for path in tmp_path.iterdir()} == {VALUES_FILE, NODES_FILE}

    monkeypatch.setattr(held, "Builder", None)  # it was there already
    again, _, _ = tiny.trace(shard, folder=tmp_path)
    assert again.tree.root == in_memory.tree.root
    assert again[Place(0, 0, 3, 0, 5)] == in_memory[Place(0, 0, 3, 0, 5)]


def test_values_stand_where_the_layout_says(tiny: Tiny) -> None:
    for shard in SHARDS:
        layout = tiny.layout(shard)
        values = TraceValues(layout)
        values.flat[:] = np.arange(values.count)
        tree = TraceTree(values)
        at = 0
        for chunk in range(layout.chunks):
            data = values.chunk_bytes(chunk, chunk + 1)
            assert len(data) == layout.chunk_bytes(chunk)
            assert np.frombuffer(data, "<f8")[0] == at
            at += len(data) // 8
            if chunk > 500:
                break
        assert tree.count == layout.chunks
        verdicts = [
            op
            for op in layout.section(len(layout.section_types) - 1).ops
            if op.form == Form.VERDICT
        ]
        assert len(verdicts) == 1
