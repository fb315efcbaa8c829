"""Are packed kernels right, and do they give a sequence the same bits beside any other rows?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.engine.batch.determinism import is_batch_invariant
from core.engine.batch.pieces import RequestPiece
from core.engine.kernels import layouts
from core.engine.kernels.layouts import OneDnn, Panels
from core.engine.kernels.lookup import map_embedding
from core.engine.kernels.prepack import PackedLinear, prepack
from core.engine.memory.prefix import first_link, next_link
from core.engine.memory.sizing import Offload
from core.engine.native.native import NoKernels
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange
from devnet.models.tiny_models import write_tiny_model
from tests.core.engine.serving import (
    CLOSE,
    clear,
    feed,
    ids_of,
    make_stages,
    off,
    reference,
    run_step,
)

LAYERS = 4


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "gpt2"])
def test_packed_stages_give_the_whole_models_logits(
    architecture: str, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS)
    stages = make_stages(folder, (0, 1, LAYERS), packed=True)
    ids = ids_of(1, 70)
    for stage in stages:
        stage.open("r")
    assert off(feed(stages, "r", ids, 33), reference(whole_model(folder), ids)) < CLOSE


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3", "gpt2"])
def test_a_sequence_has_the_same_bits_beside_any_others(architecture: str, tiny: Callable) -> None:
    """Alone, among sixteen that join and leave, offloaded, with one thread and two, and decoded
    again in one go.
    """
    folder = tiny(architecture, layers=LAYERS, hidden=128)
    ids = ids_of(0, 80)
    options = {"packed": True, "prefix_share": 0}
    alone = make_stages(folder, (0, LAYERS), **options)
    alone[0].open("r")
    expected = [feed(alone, "r", ids[:50]), feed(alone, "r", ids[50:], 1, 50)]

    crowd = make_stages(folder, (0, LAYERS), **options)
    crowd[0].open("r")
    got: list[torch.Tensor] = []
    for step in range(31):
        for i in range(15):
            if step == i:
                crowd[0].open(i)
            if step == i + 14:
                crowd[0].free(i)
        first, count = (0, 50) if step == 0 else (49 + step, 1)
        pieces = [("r", ids[first : first + count], first)]
        for i in range(15):
            if i <= step < i + 14:
                at = crowd[0].length(i)
                pieces.insert(i % 3, (i, ids_of(i, 3 + 5 * i if not at else 1), at))
        outs = run_step(crowd, pieces)
        got.append(next(o for o, p in zip(outs, pieces, strict=True) if p[0] == "r"))
    assert torch.equal(got[0], expected[0])
    assert torch.equal(torch.cat(got[1:]), expected[1])

    page_bytes = sum(s.page_bytes(4) for s in alone[0].layout.shapes)
    swapped = make_stages(
        folder, (0, LAYERS), kv_bytes=page_bytes * 64, offload=Offload(4, 0.5), **options
    )
    swapped[0].open("r", microbatch=0)
    for m in (1, 2, 3):
        swapped[0].open(m, microbatch=m)
    got = []
    for first, last in [(0, 50), *((i, i + 1) for i in range(50, 80))]:
        outs = run_step(swapped, [("r", ids[first:last], first)], following=1)
        got += outs
        for m in (1, 2, 3):
            run_step(
                swapped, [(m, ids_of(m, last - first), first)], microbatch=m, following=(m + 1) % 4
            )
    assert torch.equal(torch.cat(got), torch.cat(expected))
    assert swapped[0].store.copied_bytes > 0

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = make_stages(folder, (0, LAYERS), **options)
        again[0].open("r")
        assert torch.equal(feed(again, "r", ids[:50]), expected[0])
        replayed = run_step(again, [("r", ids[50:], 50)], as_decodes=True)[0]
        assert torch.equal(replayed, expected[1])
        assert is_batch_invariant(again[0], threads=(1, 2))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_prompt_cut_at_the_same_places_keeps_its_bits_when_shared(
    architecture: str, tiny: Callable
) -> None:
    """Of two stages, with windows and without: what is remembered is what would be computed."""
    stages = make_stages(tiny(architecture, layers=LAYERS), (0, 2, LAYERS), packed=True)
    ids, chunk = ids_of(2, 140), 32
    other = torch.cat([ids[:100], ids_of(9, 40)])

    def run(name: str, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Logits of the last rows, and how many rows of the first stage were computed."""
        links: list[list[bytes]] = [[], []]
        computed = 0
        for stage in stages:
            stage.open(name)
        for first in range(0, len(ids), chunk):
            x, end = ids[first : first + chunk], min(first + chunk, len(ids))
            for number, stage in enumerate(stages):
                data = x.numpy().tobytes()
                last = links[number][-1] if links[number] else first_link(b"")
                links[number].append(next_link(last, data))
                whole = links[number] if end - first == chunk else ()
                found = stage.adopt(name, whole, end) if whole else None
                if found is None:
                    logits = "none" if whole and number else "all"
                    found = stage.step([RequestPiece(name, x, first, logits, links=whole)])[0]
                    computed += len(x) if not number else 0
                x = found
                if not number:
                    between.append(x)
        for stage in stages:
            stage.free(name)
        return x, computed

    found = {}
    for name, prompt in (("first", ids), ("second", ids), ("third", other)):
        between: list[torch.Tensor] = []
        found[name] = *run(name, prompt), torch.cat(between)
    assert [computed for _, computed, _ in found.values()] == [140, 12, 44]
    assert torch.equal(found["first"][0], found["second"][0])
    assert torch.equal(found["first"][2], found["second"][2])
    for stage in stages:
        assert stage.used_pages == [0] * len(stage.used_pages) and stage.held_bytes()["kept"] > 0
        clear(stage.prefixes)
    between = []
    assert torch.equal(found["third"][0], run("fourth", other)[0])
    assert torch.equal(found["third"][2], torch.cat(between))


def test_what_fails_its_check_stays_plain(tiny: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = load_shard(tiny("llama", layers=2), LayerRange(0, 2))
    for layout in (Panels, OneDnn):
        true = layout.multiply
        monkeypatch.setattr(
            layout, "multiply", lambda self, *args, true=true: true(self, *args) * 1.001
        )
    report = prepack(shard)
    assert report.packed == 0 and report.plain == 15 and report.reason.count("off by") == 2

    def gone(*_: object) -> None:
        raise AttributeError("no such operator")

    for layout in (Panels, OneDnn):
        monkeypatch.setattr(layout, "lay", gone)
    assert "no such operator" in prepack(shard).reason
    assert not any(isinstance(m, PackedLinear) for m in shard.model.modules())


def test_without_our_kernels_onednn_packs(tiny: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise NoKernels("this machine has no C compiler")

    monkeypatch.setattr(layouts, "kernels", gone)
    folder, ids = tiny("llama", layers=2), ids_of(1, 20)
    engine = make_stages(folder, (0, 2), packed=True)[0]
    engine.open("r")
    shard = load_shard(folder, LayerRange(0, 2))
    report = prepack(shard)
    assert report.layouts == ("oneDNN",) and report.packed == 15
    assert off(feed([engine], "r", ids), reference(shard.model, ids)) < CLOSE


def test_with_our_kernels_a_single_row_keeps_its_bits(tiny: Callable) -> None:
    report = prepack(load_shard(tiny("llama", layers=2), LayerRange(0, 2)))
    assert report.least_rows == 1 or report.layouts != ("panels",)


def test_bfloat16_runs_packed_or_says_why_not(tiny: Callable, whole_model: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    shard = load_shard(folder, LayerRange(0, LAYERS), dtype=torch.bfloat16)
    report = prepack(shard)
    assert report.packed or report.reason
    from core.engine.batch.batch import BatchEngine

    engine = BatchEngine(shard, kv_bytes=2**22)
    assert engine.store.pools[0].keys.dtype == torch.bfloat16
    engine.open("r")
    ids = ids_of(4, 40)
    got = torch.cat(
        [engine.step([RequestPiece("r", ids[:30], 0, "all")])[0]]
        + [engine.step([RequestPiece("r", ids[i : i + 1], i, "all")])[0] for i in range(30, 40)]
    )
    expected = reference(whole_model(folder, torch.bfloat16), ids)
    assert off(got, expected) < 0.06 * float(expected.abs().max())


@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_a_shared_matrix_is_held_once_and_looked_up_in_its_file(
    stored: str, whole_model: Callable, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, "gemma3", layers=2, tied=True, dtype=stored)
    shard = load_shard(folder, LayerRange(0, 2), dtype=torch.float32)
    table, held = shard.model.get_input_embeddings(), shard.bytes
    before = table(torch.tensor([[1, 5, 271]]))
    prepack(shard, model_dir=folder)
    assert torch.equal(table(torch.tensor([[1, 5, 271]])), before)
    assert torch.equal(table(torch.tensor([[7]])), table(torch.tensor([[1, 7]]))[:, 1:])
    assert shard.bytes < held - shard.vocab * shard.hidden * 4
    ids = ids_of(1, 20)
    got = shard.forward(ids, shard.new_cache())
    assert off(got, reference(whole_model(folder, torch.float32), ids)) < CLOSE


def test_an_embedding_that_no_file_holds_stays_in_memory(tiny: Callable) -> None:
    folder = tiny("gemma3", layers=2, tied=True)
    shard = load_shard(folder, LayerRange(0, 2))
    with torch.no_grad():
        shard.model.get_input_embeddings().weight[0] += 1
    assert not map_embedding(shard, folder)
    assert len(shard.model.get_input_embeddings().weight) == 272
