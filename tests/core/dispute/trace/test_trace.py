"""A program survives its bytes, a layout places everything, every honest leaf holds."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.dispute.referee import LeafKind, Ruling
from core.dispute.trace import chunks
from core.dispute.trace.check import Checker
from core.dispute.trace.derive import Choice, TraceRun
from core.dispute.trace.evidence import EvidenceError, open_row, open_run
from core.dispute.trace.families import compile_program, traits_of
from core.dispute.trace.layout import Place
from core.dispute.trace.operands import evidence_for
from core.dispute.trace.program import Form, Program
from core.dispute.trace.shake import levels, shake_at
from core.dispute.trace.sources import CommittedRows
from core.protocol import commit
from core.protocol.errors import ModelUnsupported
from tests.twins.game import toy as toys
from tests.twins.game.judge import rule_value
from tests.twins.game.players import Accusation
from tests.twins.game.traces import all_places, faults

SMALL = [name for name in toys.FAMILIES if name != "wide"]


def stage_of(name: str, layer_from: int = 1, positions: int = 3) -> toys.Stage:
    toy = toys.Toy.make(toys.FAMILIES[name], biases=name == "qwen2")
    return toy.stage(layer_from, 2, positions, 1)


@pytest.mark.parametrize("name", toys.FAMILIES)
def test_a_program_survives_its_bytes(name: str) -> None:
    program = toys.Toy.make(toys.FAMILIES[name]).program
    data = program.to_bytes()
    assert Program.from_bytes(data) == program
    for broken in (data[:-1], data + b"\0", b"\1" + data[1:]):
        with pytest.raises(ValueError):
            Program.from_bytes(broken)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("layer_from", [0, 1])
def test_every_leaf_of_an_honest_trace_holds_and_its_verdict_does_not(
    name: str, layer_from: int
) -> None:
    stage = stage_of(name, layer_from)
    outputs = stage.honest_outputs
    trace = stage.evaluate(outputs)
    checker = Checker(stage.derivation, stage.sources(outputs))
    places = list(all_places(stage.layout))
    assert list(faults(checker, trace, places)) == [places[-1]]
    assert stage.layout.op(places[-1].section, places[-1].op).kind == LeafKind.EXCEEDS


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("layer_from", [0, 1])
def test_every_leaf_of_a_pleaded_trace_holds_and_none_of_its_verdicts(
    name: str, layer_from: int
) -> None:
    stage = stage_of(name, layer_from).pleaded(7)
    outputs = stage.honest_outputs
    trace = stage.evaluate(outputs)
    checker = Checker(stage.derivation, stage.sources(outputs))
    assert list(faults(checker, trace)) == list(stage.layout.verdicts)
    assert len(stage.layout.verdicts) == 2


def test_a_pleaded_trace_is_the_plain_one_and_the_same_once_more_shaken() -> None:
    plain, pleaded = stage_of("llama"), stage_of("llama").pleaded(200)
    outputs = plain.honest_outputs
    first, both = plain.evaluate(outputs), pleaded.evaluate(outputs)
    once, size = plain.layout.once, 0.0
    for place in all_places(plain.layout):
        if place.section >= once:
            continue
        shaken = both[place._replace(section=place.section + once)]
        assert both[place] == first[place]
        if math.isinf(shaken):
            assert shaken == first[place]  # masked
            continue
        moved = abs(shaken - first[place])
        assert moved <= 1e-4 * max(abs(first[place]), 1.0), place
        size = max(size, moved)
    assert size > 2.0**-24


def test_a_liar_is_guilty_whatever_seed_it_names() -> None:
    for seed in (0, 255):
        stage = stage_of("gemma2").pleaded(seed)
        outputs = stage.lying_outputs(1.01)
        checker = Checker(stage.derivation, stage.sources(outputs))
        assert list(faults(checker, stage.evaluate(outputs))) == []


def test_shakes_are_what_the_rule_says() -> None:
    place = Place(9, 3, 2, 1, 700)
    found = shake_at(5, 24, place, 8192)
    want = 0
    for wide, step in ((1, 1), (16, 1), (256, 4), (4096, 16)):
        group = 700 // wide
        words = (5, 1), (wide, 2), (9, 2), (3, 1), (2, 4), (1, 4), (group // 256, 4)
        hashed = sha256(b"".join(word.to_bytes(size, "big") for word, size in words)).digest()
        want += step if int.from_bytes(hashed, "big") >> (group % 256) & 1 else -step
    assert found == want
    assert [levels(9, n) for n in (31, 32, 511, 512, 8191, 8192)] == [
        [(1, 1 << 15)],
        [(1, 1 << 15), (16, 1)],
        [(1, 1 << 15), (16, 1)],
        [(1, 1 << 15), (16, 1), (256, 4)],
        [(1, 1 << 15), (16, 1), (256, 4)],
        [(1, 1 << 15), (16, 1), (256, 4), (4096, 16)],
    ]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_every_leaf_about_a_liar_holds(name: str) -> None:
    stage = stage_of(name)
    outputs = stage.lying_outputs(1.01)
    checker = Checker(stage.derivation, stage.sources(outputs))
    assert list(faults(checker, stage.evaluate(outputs))) == []


@pytest.mark.parametrize("temperature_micro", [0, 700_000])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_token_is_judged_by_the_logits_of_the_last_position(
    name: str, temperature_micro: int
) -> None:
    toy = toys.Toy.make(toys.FAMILIES[name])
    verdicts = []
    for preferred, served in ((3, 8), (8, 3)):
        choice = Choice(preferred, served, 1, temperature_micro, (7, 9))
        stage = toy.last_stage(1, 3, choice)
        outputs = CommittedRows([b"\0\0\0\0"])
        trace = stage.evaluate(outputs)
        checker = Checker(stage.derivation, stage.sources(outputs))
        places = list(all_places(stage.layout))
        found = list(faults(checker, trace, places))
        assert found in ([], [places[-1]])
        verdicts.append(not found)
    assert verdicts.count(True) == 1  # one of two tokens is ahead by more than the margin


@pytest.mark.parametrize("name", toys.FAMILIES)
def test_chunks_stand_where_the_layout_says(name: str) -> None:
    toy = toys.Toy.make(replace(toys.FAMILIES[name], layers=2, sliding=(0, 0)))
    stage = toy.stage(0, 1, 2, 0)
    trace = stage.evaluate(CommittedRows([bytes(4 * toy.traits.hidden)] * 2))
    layout = stage.layout
    assert len(trace.chunks) == layout.chunks
    rng = random.Random(1)
    for number in [0, layout.chunks - 1, *rng.sample(range(layout.chunks), 40)]:
        chunk = trace.chunks[number]
        assert len(chunk) == layout.chunk_bytes(number)
        places = layout.places(number)
        assert struct.unpack(f"<{len(places)}d", chunk) == tuple(trace[p] for p in places)
        assert all(layout.first_chunk(p) + p.item // 8 == number for p in places)


def test_places_that_are_not_there_are_known() -> None:
    layout = stage_of("llama").layout
    assert layout.contains(Place(0, 0, 2, 0, 7))
    verdict = Place(len(layout.section_types) - 1, 6)
    assert layout.contains(verdict)
    for place in (
        Place(0, 0, 3, 0, 0),
        Place(0, 0, 0, 1, 0),
        Place(0, 0, 0, 0, 8),
        Place(0, 1),
        Place(3, 0),
        verdict._replace(item=1),
    ):
        assert not layout.contains(place)


@given(st.integers(1, 300), st.data())
def test_a_run_climbs_to_the_root_and_no_other_does(count: int, data: st.DataObject) -> None:
    leaves = [commit.leaf_hash(i.to_bytes(4, "big")) for i in range(count)]
    tree = chunks.ChunkTree(leaves)
    assert tree.height == chunks.height(count)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, min(count, first + 40)))
    proof = tree.proof(first, last)
    run = leaves[first:last]
    assert chunks.climb(run, first, count, tree.height, proof) == tree.root
    if proof:
        assert chunks.climb(run, first, count, tree.height, proof[:-1]) is None
        wrong = [bytes(32), *proof[1:]]
        assert chunks.climb(run, first, count, tree.height, wrong) != tree.root
    assert chunks.climb(run, first, count, tree.height, [*proof, bytes(32)]) is None
    other = first ^ 1
    if other + len(run) <= count and leaves[other : other + len(run)] != run:
        assert chunks.climb(run, other, count, tree.height, proof) != tree.root


@given(st.integers(1, 3000))
def test_openings_go_down_to_every_leaf(count: int) -> None:
    tree = chunks.ChunkTree([i.to_bytes(32, "big") for i in range(count)])
    level, nodes = tree.height, [tree.root]
    while level:
        step = min(chunks.STEP_LEVELS, level)
        below = [tree.below(level, i) for i in range(len(nodes))]
        assert [chunks.fold(hashes, step) for hashes in below] == nodes
        level, nodes = level - step, [node for hashes in below for node in hashes]
    assert len(nodes) == count


def test_a_run_is_opened_as_committed_or_not_at_all() -> None:
    stage = stage_of("llama")
    trace = stage.evaluate(stage.honest_outputs)
    run = TraceRun(Place(1, 3, 1, 0, 3), 9)
    opening = trace.open(run)
    root = trace.tree.root
    assert open_run(stage.layout, root, run, opening) == trace.run(run)
    for wrong in (
        replace(opening, data=opening.data[:-8]),
        replace(opening, data=bytes(len(opening.data))),
        replace(opening, siblings=opening.siblings[1:]),
    ):
        with pytest.raises(EvidenceError):
            open_run(stage.layout, root, run, wrong)
    with pytest.raises(EvidenceError):
        open_run(stage.layout, root, TraceRun(Place(1, 3, 2, 0, 3), 9), opening)


@pytest.mark.parametrize("row_bytes", [4, 1024, 1028, 5000])
def test_a_number_of_a_row_is_opened_with_one_part_of_it(row_bytes: int) -> None:
    rng = random.Random(row_bytes)
    rows = CommittedRows([rng.randbytes(row_bytes) for _ in range(5)])
    assert rows.root == commit.rows_root(b"".join(rows.rows), row_bytes)
    for start in (0, row_bytes // 8 * 4, row_bytes - 4):
        opening = rows.open(3, start)
        assert len(opening.part) <= commit.PART_BYTES
        found = open_row(rows.root, 5, 3, row_bytes, start, 4, opening)
        assert found == rows.rows[3][start : start + 4]
        for wrong in (
            replace(opening, part=opening.part[:-1]),
            replace(opening, part=bytes(len(opening.part))),
            replace(opening, part_siblings=(*opening.part_siblings, bytes(32))),
            replace(opening, row_siblings=opening.row_siblings[:-1]),
        ):
            with pytest.raises(EvidenceError):
                open_row(rows.root, 5, 3, row_bytes, start, 4, wrong)
        with pytest.raises(EvidenceError):
            open_row(rows.root, 5, 2, row_bytes, start, 4, opening)


def test_evidence_of_one_place_proves_no_other() -> None:
    stage = stage_of("gemma3")
    outputs = stage.lying_outputs(1.01)
    accusation = Accusation(stage, outputs, stage.evaluate(outputs))
    case, sources = accusation.case, stage.sources(outputs)
    rng = random.Random(4)
    places = [p for p in all_places(stage.layout) if not stage.derivation.trial(p).parts]
    for place in rng.sample(places, 40):
        found = evidence_for(accusation.trace, stage.derivation, sources, place)
        assert rule_value(case, place, found) == Ruling.HOLDS
        other = rng.choice(places)
        op, wanted = (stage.layout.op(p.section, p.op) for p in (other, place))
        if other == place or (op.form == wanted.form == Form.VERDICT):
            continue
        with pytest.raises((EvidenceError, IndexError)):
            rule_value(case, other, found)


def config(family: str, **changed: object) -> dict[str, object]:
    return {
        "model_type": family,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 99,
        "num_hidden_layers": 6,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
    } | changed


def test_families_differ_where_their_models_do() -> None:
    assert traits_of(config("qwen2")).sliding == (0,) * 6
    assert traits_of(config("mistral")).sliding == (8,) * 6
    assert traits_of(config("gemma2", hidden_activation="gelu_pytorch_tanh")).sliding == (8, 0) * 3
    gemma3 = traits_of(config("gemma3_text", hidden_activation="gelu_pytorch_tanh"))
    assert gemma3.sliding == (8,) * 5 + (0,)
    assert (gemma3.head_norms, gemma3.post_norms, gemma3.two_ropes) == (True, True, True)
    types = ["full_attention", "sliding_attention"] * 3
    assert traits_of(config("gemma3_text", layer_types=types)).sliding == (0, 8) * 3
    for refused in (
        config("gpt2"),
        config("llama", hidden_act="relu"),
        config("llama", partial_rotary_factor=0.5),
    ):
        with pytest.raises(ModelUnsupported):
            traits_of(refused)


def test_a_tensor_that_no_operator_reads_is_refused() -> None:
    toy = toys.Toy.make(toys.LLAMA)
    names = {part: list(found) for part, found in toy.names.items()}
    names["layer 0"].append("model.layers.0.self_attn.q_norm.weight")
    with pytest.raises(ModelUnsupported, match="q_norm"):
        compile_program(toy.traits, names, bytes(32))
    names["layer 0"] = names["layer 0"][1:-1]
    with pytest.raises(ModelUnsupported):
        compile_program(toy.traits, names, bytes(32))
