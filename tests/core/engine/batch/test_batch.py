"""Do requests that share steps get transformers' own answers, beside any rows, cuts and chunks?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from core.engine.batch.batch import BatchEngine
from core.engine.batch.compat import CompatEngine, make_engine
from core.engine.batch.pieces import RequestPiece
from core.engine.kernels import head
from core.engine.memory.paged_kv import KvShort
from core.protocol.errors import ContextTooLong, UsageError
from core.protocol.types import LayerRange
from tests.core.engine.serving import (
    CLOSE,
    feed,
    ids_of,
    make_stages,
    off,
    reference,
    run_step,
    used_pages,
)

LAYERS = 5
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2")
ENGINES = (BatchEngine, CompatEngine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cut", [(0, LAYERS), (0, 2, LAYERS), (0, 1, 3, LAYERS)], ids=str)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_mixed_batches_give_the_whole_models_logits(
    architecture: str, cut: tuple[int, ...], engine: type, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS)
    model = whole_model(folder)
    stages = make_stages(folder, cut, engine=engine)
    sequences = {i: ids_of(i, n) for i, n in enumerate((90, 23, 1, 17, 64))}
    for stage in stages:
        for request in sequences:
            stage.open(request)
    # Joining at different steps, prompts in unequal chunks beside decode rows, far beyond the
    # windows of eight.
    takes = {
        0: [40, 33, 1, 1, 1, 1, 1],
        1: [1, 1, 16, 1, 4],
        2: [1],
        3: [0, 0, 15, 1, 1],
        4: [63, 1],
    }
    done = dict.fromkeys(sequences, 0)
    got: dict[int, list[torch.Tensor]] = {i: [] for i in sequences}
    for step in range(7):
        pieces = []
        for i, takes_of in takes.items():
            count = takes_of[step] if step < len(takes_of) else 0
            if count:
                pieces.append((i, sequences[i][done[i] : done[i] + count], done[i]))
                done[i] += count
        for (i, _, _), out in zip(pieces, run_step(stages, pieces), strict=True):
            got[i].append(out)
    for i, ids in sequences.items():
        assert off(torch.cat(got[i]), reference(model, ids[: done[i]])) < CLOSE


@pytest.mark.parametrize("chunk", [None, 1, 7, 16, 50])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_chunking_a_prompt_changes_nothing_but_rounding(
    architecture: str, chunk: int | None, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS)
    stages = make_stages(folder, (0, LAYERS))
    stages[0].open("r")
    ids = ids_of(1, 200)
    assert off(feed(stages, "r", ids, chunk), reference(whole_model(folder), ids)) < CLOSE


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("gemma2", {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0}),
        ("mistral", {"sliding_window": 33}),
        ("mistral", {"sliding_window": 16}),
        ("mistral", {"sliding_window": 1}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2}),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(f"{k}={w}" for k, w in v.items()),
)
def test_caps_windows_and_head_groups(
    architecture: str, options: dict, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=4, options=options)
    model = whole_model(folder)
    if architecture == "gemma2":
        model.set_attn_implementation("eager")
    stages = make_stages(folder, (0, 1, 4))
    ids = ids_of(3, 150)
    for stage in stages:
        stage.open("r")
    got = torch.cat([feed(stages, "r", ids[:100], 48), feed(stages, "r", ids[100:], 1, 100)])
    assert off(got, reference(model, ids)) < CLOSE


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2", "gemma2"])
def test_requests_over_different_layers_share_steps(
    architecture: str, engine: type, tiny: Callable, whole_model: Callable
) -> None:
    """Two overlapping machines; every request crosses them at a layer of its own."""
    folder = tiny(architecture, layers=LAYERS)
    model = whole_model(folder)
    front = make_stages(folder, (0, 4), engine=engine)[0]
    back = make_stages(folder, (1, LAYERS), engine=engine)[0]
    crossings = {0: 1, 1: 2, 2: 3, 3: 4, 4: 2}
    sequences = {i: ids_of(10 + i, 60 + i) for i in crossings}
    for i, at in crossings.items():
        front.open(i, LayerRange(0, at))
        back.open(i, LayerRange(at, LAYERS))
    got: dict[int, list[torch.Tensor]] = {i: [] for i in crossings}
    for first, last in [(0, 37), (37, 38), (38, 39), (39, 52), (52, 53)]:
        pieces = [(i, sequences[i][first:last], first) for i in crossings]
        middle = front.step([RequestPiece(i, x, p) for i, x, p in pieces])
        outs = back.step(
            [RequestPiece(i, x, p, "all") for (i, _, p), x in zip(pieces, middle, strict=True)]
        )
        for i, out in zip(crossings, outs, strict=True):
            got[i].append(out)
    for i in crossings:
        assert off(torch.cat(got[i]), reference(model, sequences[i][:53])) < CLOSE


def test_a_partial_slice_keeps_pages_for_its_layers_only(tiny: Callable) -> None:
    stage = make_stages(tiny("llama", layers=LAYERS), (0, LAYERS))[0]
    stage.open("a", LayerRange(0, 2))
    stage.step([RequestPiece("a", ids_of(0, 40), 0)])
    assert used_pages(stage.kv) == 2 * 3
    stage.open("b", LayerRange(2, 3))
    stage.step([RequestPiece("b", torch.randn(17, 64), 0)])
    assert used_pages(stage.kv) == 2 * 3 + 2
    assert stage.free("a") == 6
    assert stage.free("b") == 2
    assert used_pages(stage.kv) == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_what_is_drawn_is_drawn_from_the_same_logits_few_at_a_time(
    architecture: str, engine: type, tiny: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of nine pieces, one of prompt rows that nobody draws from and one with guesses."""
    folder, in_c = tiny(architecture, layers=2), engine is BatchEngine and architecture == "llama"
    (stage,) = make_stages(folder, (0, 2), engine=engine, packed=in_c)
    monkeypatch.setattr(head, "REUSED_BYTES", 4 * stage.shard.vocab)
    monkeypatch.setattr(head, "SPACE_BYTES", 3 * 4 * stage.shard.vocab)
    pieces = [
        RequestPiece(i, ids_of(i, 3 + i), 0, {2: "none", 5: "all"}.get(i, "last")) for i in range(9)
    ]
    wanted = [0 if i == 2 else 8 if i == 5 else 1 for i in range(9)]

    def opened() -> None:
        for piece in pieces:
            stage.free(piece.request)
            stage.open(piece.request)

    def drawing(logits: torch.Tensor) -> list[torch.Tensor]:
        calls.append(len(logits))
        return list(logits.clone())

    opened()
    expected = stage.step(pieces, states=True)
    opened()
    calls: list[int] = []
    found = stage.step(pieces, states=True, draw=drawing)
    assert sum(calls) == sum(wanted)
    assert max(calls) == 3 if in_c else max(calls) <= sum(wanted)
    for whole, drawn, count in zip(expected, found, wanted, strict=True):
        assert torch.equal(whole.rows, drawn.rows)
        assert len(drawn.logits) == len(whole.logits) == count
        assert all(map(torch.equal, whole.logits, drawn.logits))


def test_logits_come_for_the_rows_asked_for(tiny: Callable) -> None:
    stages = make_stages(tiny("gemma3", layers=LAYERS), (0, LAYERS))
    for request in "abcd":
        stages[0].open(request)
    ids = ids_of(5, 20)
    shapes = [
        tuple(out.shape)
        for out in stages[0].step(
            [
                RequestPiece("a", ids, 0, "all"),
                RequestPiece("b", ids, 0, "none"),
                RequestPiece("c", ids[:1], 0, "last"),
                RequestPiece("d", ids, 0),
            ]
        )
    ]
    assert shapes == [(20, 272), (0, 272), (1, 272), (1, 272)]
    outs = stages[0].step([RequestPiece("b", ids[:3], 20, "none")])
    assert tuple(outs[0].shape) == (0, 272)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_running_positions_again_gives_the_same_bits(
    architecture: str, engine: type, tiny: Callable
) -> None:
    stages = make_stages(tiny(architecture, layers=LAYERS), (0, 3, LAYERS), engine=engine)
    for stage in stages:
        stage.open("r")
    ids = ids_of(6, 90)
    feed(stages, "r", ids[:70])
    first = feed(stages, "r", ids[70:], 1, 70)
    for back in (75, 89, 70):
        again = feed(stages, "r", ids[back:], 1, back)
        assert torch.equal(again, first[back - 70 :])
        assert all(stage.length("r") == 90 for stage in stages)


def test_a_window_that_has_moved_on_cannot_be_cut_back_to(tiny: Callable) -> None:
    stage = make_stages(tiny("mistral", layers=LAYERS), (0, LAYERS))[0]
    stage.open("r")
    stage.step([RequestPiece("r", ids_of(7, 200), 0)])
    assert used_pages(stage.kv) <= LAYERS * stage.layout.classes[0].blocks_for(10**6)
    with pytest.raises(UsageError, match="forgotten"):
        stage.truncate("r", 100)
    assert stage.length("r") == 200
    stage.truncate("r", 190)
    assert stage.length("r") == 190


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_piece_changes_nothing(engine: type, tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    stage = make_stages(folder, (0, LAYERS), engine=engine)[0]
    later = make_stages(folder, (2, LAYERS), engine=engine)[0]
    for request in "ab":
        stage.open(request)
        later.open(request)
    good = RequestPiece("a", ids_of(8, 5), 0)
    nan = torch.full((3, 64), float("nan"))
    for bad in (
        RequestPiece("b", torch.zeros(0, dtype=torch.int64), 0),
        RequestPiece("b", torch.tensor([272]), 0),
        RequestPiece("b", torch.tensor([-1]), 0),
        RequestPiece("b", torch.tensor([1]), 1),
        RequestPiece("b", torch.zeros(1, 64), 0),
        RequestPiece("b", torch.tensor([1], dtype=torch.int32), 0),
    ):
        with pytest.raises(ValueError):
            stage.step([good, bad])
    with pytest.raises(ValueError):
        later.step([RequestPiece("a", nan, 0)])
    with pytest.raises(ContextTooLong):
        stage.step([good, RequestPiece("b", torch.zeros(513, dtype=torch.int64), 0)])
    with pytest.raises(UsageError):
        stage.step([good, RequestPiece("unknown", torch.tensor([1]), 0)])
    assert stage.length("a") == stage.length("b") == later.length("a") == 0


def test_a_step_without_room_changes_nothing(tiny: Callable) -> None:
    page = 2 * 16 * 2 * 16 * 4
    stage = make_stages(tiny("llama", layers=4), (0, 4), kv_bytes=page * 41, prefix_share=0)[0]
    for request in "abc":
        stage.open(request)
    stage.step([RequestPiece("a", ids_of(0, 96), 0), RequestPiece("b", ids_of(1, 48), 0)])
    used = used_pages(stage.kv)
    assert used == 4 * 9
    growth = [("a", 97), ("c", 16)]
    assert not stage.has_room(growth)
    with pytest.raises(KvShort):
        stage.step([RequestPiece("a", ids_of(2, 1), 96), RequestPiece("c", ids_of(3, 16), 0)])
    assert used_pages(stage.kv) == used
    assert (stage.length("a"), stage.length("c")) == (96, 0)
    assert stage.free("b") == 12
    stage.step([RequestPiece("a", ids_of(2, 1), 96), RequestPiece("c", ids_of(3, 16), 0)])
    assert sum(pool.bytes for pool in stage.store.pools) <= page * 41


def test_what_is_no_page_is_refused(tiny: Callable) -> None:
    with pytest.raises(UsageError, match="no page"):
        make_stages(tiny("llama", layers=4), (0, 4), kv_bytes=1000)


def test_make_engine_falls_back_where_layers_cannot_share_pages(
    tiny: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.engine.model import attention
    from core.engine.weights.load_shard import load_shard

    folder = tiny("llama", layers=2)
    shard = load_shard(folder, LayerRange(0, 2))
    engine = make_engine(shard, kv_bytes=2**20)
    assert isinstance(engine, BatchEngine)
    engine.close()
    # A model whose mask carries a bias of its own gives other answers than plain causal attention.
    true = attention.chunk_rows
    monkeypatch.setattr("core.engine.batch.learned_layout.chunk_rows", lambda *a: true(*a) * 1.5)
    assert isinstance(make_engine(shard, kv_bytes=2**20), CompatEngine)


def test_closing_gives_the_shard_back(tiny: Callable) -> None:
    stage = make_stages(tiny("llama", layers=3), (0, 3))[0]
    ids = ids_of(0, 9)
    before = stage.shard.forward(ids, stage.shard.new_cache())
    stage.open("r")
    stage.step([RequestPiece("r", ids, 0)])
    assert torch.equal(stage.shard.forward(ids, stage.shard.new_cache()), before)
    stage.close()
    assert torch.equal(stage.shard.forward(ids, stage.shard.new_cache()), before)


def test_old_garbage_in_a_page_never_reaches_another_request(tiny: Callable) -> None:
    stage = make_stages(tiny("gemma3", layers=LAYERS), (0, LAYERS), prefix_share=0)[0]
    stage.open("clean")
    ids = ids_of(0, 37)
    expected = stage.step([RequestPiece("clean", ids, 0, "all")])[0]
    stage.free("clean")
    for pool in stage.store.pools:
        for rows in (pool.keys, pool.values):
            rows[pool.shape.kv_heads :] = float("nan")
    stage.open("next")
    assert torch.equal(stage.step([RequestPiece("next", ids[:36], 0, "all")])[0], expected[:36])
    stage.step([RequestPiece("next", ids[36:], 36)])
    for position in range(37, 60):
        out = stage.step([RequestPiece("next", ids[:1], position)])[0]
        assert bool(out.isfinite().all())
