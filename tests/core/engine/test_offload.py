"""Do requests get the same bits when hot memory is far too small for all of them?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from core.engine.batch import BatchEngine
from core.engine.layout import KvClass, KvLayout, PageShape
from core.engine.offload import (
    SwapStore,
    Throttle,
    global_pool_bytes,
    microbatch_bytes,
    plan_arena,
)
from core.engine.paged_kv import KvShort, PagedKv
from core.engine.pieces import Piece
from core.engine.sizing import Offload, allocators_of, copy_bytes_per_s, measured_offload
from tests.core.engine.serving import ids_of, make_stages

PAGE_BYTES = 2 * 16 * 2 * 16 * 4  # of the tiny models: keys and values, 2 heads of 16, float32


@pytest.mark.parametrize("microbatches", [2, 3, 4, 7])
@pytest.mark.parametrize("swapped", [0, 8, 25])
def test_capacity_of_a_microbatch_is_formula_one(microbatches: int, swapped: int) -> None:
    shape = PageShape(1, 2, 2)
    plan = plan_arena(100, swapped, microbatches)
    store = SwapStore((shape,), [plan], torch.float32)
    kv = PagedKv(KvLayout((shape,), (KvClass(0, 0, (0,)),)), allocators_of([plan]), store)
    formula = int((100 - 2 * swapped) / microbatches + swapped)
    assert microbatch_bytes(100, swapped, microbatches) == formula
    for microbatch in range(microbatches):
        held = kv.open(microbatch, 0, 1, microbatch)
        kv.grow([(held, 16 * formula)])
        with pytest.raises(KvShort):
            kv.grow([(held, 16 * formula + 1)])
    assert kv.used_pages == microbatches * formula
    assert store.hot_bytes <= 101 * shape.page_bytes(4)
    store.close()


def test_formula_two() -> None:
    assert global_pool_bytes(2e9, 0.05) == 100_000_000
    with pytest.raises(ValueError):
        microbatch_bytes(100, 51, 3)


def test_pools_come_from_measured_bandwidth_and_stage_time() -> None:
    assert copy_bytes_per_s(2**20) > 1e7
    assert measured_offload(2**20, 4, 10.0).global_share == 0.5
    small = measured_offload(2**34, 4, 1e-3).global_share
    assert 0 < small < 0.5


@pytest.mark.parametrize("microbatches", [5, 9])
@pytest.mark.parametrize("in_files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_outputs_are_bit_equal_when_hot_memory_holds_a_third(
    architecture: str, in_files: bool, microbatches: int, tiny: Callable, tmp_path: Path
) -> None:
    folder = tiny(architecture, layers=4)
    roomy = make_stages(folder, (0, 4))[0]
    members = 3
    lengths = {(m, i): 30 + 9 * i + m for m in range(microbatches) for i in range(members)}
    needs = {name: roomy.layout.pages_for(n + 14, 0, 4)[0] for name, n in lengths.items()}
    largest = max(sum(n for (m, _), n in needs.items() if m == at) for at in range(microbatches))
    # One request more for the microbatch that one of them moves to for a while.
    hot_bytes = 2 * (largest + max(needs.values())) * PAGE_BYTES
    offload = Offload(microbatches, 0.48, tmp_path if in_files else None)
    tight = make_stages(folder, (0, 4), kv_bytes=hot_bytes, offload=offload, prefix_share=0)[0]
    for engine in (roomy, tight):
        for m, i in lengths:
            engine.open((m, i), microbatch=m if engine is tight else 0)

    def turn(engine: BatchEngine, m: int, step: int) -> list[torch.Tensor]:
        pieces = []
        for i in range(members):
            ids = ids_of(100 * m + i, lengths[m, i] + 14)
            first = 0 if step == 0 else lengths[m, i] + step - 1
            count = lengths[m, i] if step == 0 else 1
            pieces.append(Piece((m, i), ids[first : first + count], first, "all"))
        if engine is tight:
            return engine.step(pieces, microbatch=m, following=(m + 1) % microbatches)
        return engine.step(pieces)

    for step in range(14):
        order = list(range(microbatches))
        if step in (5, 9):  # arrivals out of turn are slower, not wrong
            order.reverse()
        for m in order:
            for a, b in zip(turn(roomy, m, step), turn(tight, m, step), strict=True):
                assert torch.equal(a, b)
        if step == 7:  # a request changes its microbatch, another leaves
            tight.move((0, 0), 1)
            tight.move((0, 0), 0)
            tight.suspend((1, 1))
            tight.resume((1, 1))
    assert tight.store.copied_bytes > 0, "nothing was swapped"
    assert tight.store.hot_bytes <= hot_bytes
    if microbatches > 8:
        assert sum(needs.values()) * PAGE_BYTES > 3 * hot_bytes
    for name in lengths:
        tight.free(name)
    assert tight.kv.used_pages == 0
    tight.close()


def test_only_what_a_turn_has_written_goes_back(tiny: Callable) -> None:
    """A long context costs its fill every turn, but only its last page's write."""
    stage = make_stages(
        tiny("llama", layers=4),
        (0, 4),
        kv_bytes=PAGE_BYTES * 101,
        offload=Offload(4, 0.5),
        prefix_share=0,
    )[0]
    store = stage.store
    for m in range(4):
        stage.open(m, microbatch=m)
        stage.step([Piece(m, ids_of(m, 160), 0)], microbatch=m, following=(m + 1) % 4)
    for step in range(3):
        for m in range(4):
            store._settle()
            before = store.copied_bytes
            stage.step([Piece(m, ids_of(m, 1), 160 + step)], microbatch=m, following=(m + 1) % 4)
            store._settle()
            if step:
                assert store.copied_bytes - before == (44 + 4) * PAGE_BYTES
    stage.close()


def test_a_throttled_copier_costs_what_its_bandwidth_predicts() -> None:
    """Fills of s bytes at W take s / W, which a turn of T_S hides up to W · T_S: time is the test's own."""
    now, slept = [0.0], []
    throttle = Throttle(
        1000.0,
        burst_bytes=100,
        clock=lambda: now[0],
        sleep=lambda s: (slept.append(s), now.__setitem__(0, now[0] + s))[0],
    )
    for _ in range(20):
        throttle.take(50)
    assert sum(slept) == pytest.approx(20 * 50 / 1000)
    now[0] += 10  # a rest fills one burst, no more
    slept.clear()
    throttle.take(100)
    throttle.take(100)
    assert sum(slept) == pytest.approx(0.1)


def test_swapping_within_the_bandwidth_hides_behind_compute(tmp_path: Path) -> None:
    """Stage time T_S, fills of W · T_S / 2 and of 2 · W · T_S: the first add nothing, the second what is missing."""
    import time

    shape = PageShape(4, 32, 32)
    stage_s, pages = 0.03, 64
    size = pages * shape.page_bytes(4)

    def waited(bandwidth: float) -> float:
        plan = plan_arena(2 * pages, pages, 4)
        store = SwapStore((shape,), [plan], torch.float32, throttle=Throttle(bandwidth))
        base = plan.microbatches * plan.local + 1
        used = [np.arange(base, base + pages)]
        for turn in range(8):
            if turn == 4:
                store._settle()
                store.stalled_s = 0.0
            store.turn(turn % 4, lambda m: used, (turn + 1) % 4)
            time.sleep(stage_s)
        store._settle()
        spent = store.stalled_s
        store.close()
        return spent / 4

    assert waited(2 * size / stage_s) < 0.3 * stage_s
    excess = waited(size / stage_s / 2)
    assert 0.6 * stage_s < excess < 2.5 * stage_s


def test_a_failed_copier_is_told_to_the_next_turn() -> None:
    shape = PageShape(1, 2, 2)
    store = SwapStore((shape,), [plan_arena(20, 8, 3)], torch.float32)

    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left")

    store._move = broken  # type: ignore[method-assign]
    pages = [np.arange(13, 15)]
    with pytest.raises(RuntimeError, match="copier"):
        store.turn(0, lambda m: pages, 1)
    store.close()
