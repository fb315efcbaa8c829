"""Do requests get the same bits when hot memory is far too small for all of them?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.memory import page_copies
from core.engine.memory.layout import KvClass, KvLayout, PageShape
from core.engine.memory.offload import (
    SwapStore,
    global_pool_bytes,
    microbatch_bytes,
    plan_arena,
)
from core.engine.memory.paged_kv import Held, KvShort, PagedKv
from core.engine.memory.sizing import Offload, allocators_of, copy_bytes_per_s, fitting_offload
from core.protocol.errors import UsageError
from tests.core.engine.memory.throttle import Throttle, ThrottledStore
from tests.core.engine.serving import ids_of, make_stages, used_pages

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
    assert used_pages(kv) == microbatches * formula
    assert sum(pool.bytes for pool in store.pools) <= 101 * shape.page_bytes(4)
    store.close()


def test_formula_two() -> None:
    assert global_pool_bytes(2e9, 0.05) == 100_000_000
    with pytest.raises(ValueError):
        microbatch_bytes(100, 51, 3)


def test_the_bandwidth_of_copies_is_measured() -> None:
    assert copy_bytes_per_s(size_bytes=2**20) > 1e7


@pytest.mark.parametrize("microbatches", [5, 9])
@pytest.mark.parametrize("in_files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_outputs_are_bit_equal_when_hot_memory_holds_a_third(
    architecture: str,
    in_files: bool,
    microbatches: int,
    tiny: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_copies, "_LEAST_BYTES", 0)  # pages of real models are larger
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
            pieces.append(RequestPiece((m, i), ids[first : first + count], first, "all"))
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
    assert tight.store.copied_bytes > 0, "nothing was swapped"
    assert sum(pool.bytes for pool in tight.store.pools) <= hot_bytes
    if microbatches > 8:
        assert sum(needs.values()) * PAGE_BYTES > 3 * hot_bytes
    for name in lengths:
        tight.free(name)
    assert used_pages(tight.kv) == 0
    tight.close()


def test_only_what_a_turn_has_written_goes_back(tiny: Callable) -> None:
    """A long context costs its fill every turn, but only its last row's write."""
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
        stage.step([RequestPiece(m, ids_of(m, 160), 0)], microbatch=m, following=(m + 1) % 4)
    for step in range(4):
        for m in range(4):
            store._settle()
            before = store.copied_bytes
            stage.step(
                [RequestPiece(m, ids_of(m, 1), 160 + step)], microbatch=m, following=(m + 1) % 4
            )
            store._settle()
            if step > 1:  # a page that is new goes back whole
                assert store.copied_bytes - before == 44 * PAGE_BYTES + 4 * PAGE_BYTES // 16
    stage.close()


def test_a_throttled_copier_costs_what_its_bandwidth_predicts() -> None:
    """Fills of s bytes at W take s / W, which a turn of T_S hides up to W · T_S: time is the test's
    own.
    """
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
    """Stage time T_S, fills of W · T_S / 2 and of 2 · W · T_S: the first add nothing, the second
    what is missing.
    """
    import time

    shape = PageShape(4, 32, 32)
    stage_s, pages = 0.03, 64
    size = pages * shape.page_bytes(4)

    def waited(bandwidth: float) -> tuple[float, float]:
        """Seconds that a turn waited, and that its stage took: a busy machine sleeps longer."""
        plan = plan_arena(2 * pages, pages, 4)
        store = ThrottledStore((shape,), [plan], Throttle(bandwidth))
        base = plan.microbatches * plan.local + 1
        used = [np.arange(base, base + pages)]
        for turn in range(8):
            if turn == 4:
                store._settle()
                store.stalled_s, began = 0.0, time.perf_counter()
            store.turn(turn % 4, lambda m: used, (turn + 1) % 4)
            time.sleep(stage_s)
        ran_s = time.perf_counter() - began - store.stalled_s
        store._settle()
        spent = store.stalled_s
        store.close()
        return spent / 4, ran_s / 4

    def least(bandwidth: float, enough_s: float, tries: int = 5) -> tuple[float, float]:
        """Of a few tries: what others do on this machine only ever adds to one."""
        found = waited(bandwidth)
        while found[0] > enough_s and (tries := tries - 1):
            found = min(found, waited(bandwidth))
        return found

    assert least(2 * size / stage_s, 0.3 * stage_s)[0] < 0.3 * stage_s
    excess, ran_s = least(size / stage_s / 2, 2.5 * stage_s)
    assert 1.6 * stage_s - ran_s < excess < 2.5 * stage_s


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


def test_pages_that_are_nowhere_end_the_turn_and_not_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four pages of which three are in near memory: a copy of as many bytes would end behind it."""
    monkeypatch.setattr(page_copies, "_LEAST_BYTES", 0)
    store = SwapStore((PageShape(1, 2, 2),), [plan_arena(20, 8, 3)], torch.float32)
    used = {0: [np.arange(4, 6)], 1: [np.arange(10, 14)]}
    with pytest.raises(RuntimeError, match="copier") as caught:
        store.turn(0, used.__getitem__, 1)
        store.turn(1, used.__getitem__)
    assert "must match" in str(caught.value.__cause__)
    store.close()


@given(
    hot=st.integers(10**4, 10**9),
    cold=st.integers(0, 10**10),
    bytes_per_s=st.floats(1e3, 1e11),
    stage_s=st.floats(1e-4, 1.0),
    least=st.floats(0, 1),
    most=st.none() | st.floats(0, 20),
)
@settings(max_examples=300, deadline=None)
def test_what_is_swapped_fits_hides_and_makes_nobody_too_long(
    hot: int, cold: int, bytes_per_s: float, stage_s: float, least: float, most: float | None
) -> None:
    found = fitting_offload(
        hot,
        cold,
        bytes_per_s=bytes_per_s,
        stage_s=stage_s,
        least_bytes=int(least * hot),
        most_bytes=None if most is None else int(most * hot),
    )
    if found is None:
        return
    pool, count = found.global_share * hot, found.microbatches
    assert pool <= hot / 2 and pool <= bytes_per_s * stage_s + 1, "a turn hides its copies"
    assert count * pool <= cold + 1
    each = (hot - 2 * pool) / count + pool
    assert each >= int(least * hot) - 1
    assert count * each >= 1.24 * hot
    if most is not None:
        assert (count - 1) * pool + hot - 2 * pool <= max(most, 1) * hot + 1, "none to spare"


def test_a_tier_that_gains_nothing_is_not_used() -> None:
    fast = {"bytes_per_s": 1e10, "stage_s": 1.0, "least_bytes": 10}
    assert fitting_offload(1000, 4000, **fast) == Offload(8, 0.5)
    assert fitting_offload(1000, 1500, **fast) == Offload(3, 0.5)
    assert fitting_offload(1000, 1000, **fast) is None
    assert fitting_offload(1000, 4000, **fast | {"least_bytes": 501}) is None
    assert fitting_offload(1000, 4000, **fast, most_bytes=1000) is None
    assert fitting_offload(1000, 4000, **fast, most_bytes=1800) == Offload(4, 0.5)
    slow = fast | {"bytes_per_s": 50.0}
    assert fitting_offload(1000, 4000, **slow) == Offload(16, 0.05)
    assert fitting_offload(1000, 4000, **fast | {"bytes_per_s": 5.0}) is None


def test_files_of_the_second_tier_have_no_name_and_room_for_all(tmp_path: Path) -> None:
    shape, plan = PageShape(1, 2, 2), plan_arena(20, 8, 3)
    folder = tmp_path / "made" / "here"
    store = SwapStore((shape,), [plan], torch.float32, folder=folder)
    assert store.is_in_files and list(folder.iterdir()) == []
    store.close()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot hold"):
        SwapStore((shape,), [plan], torch.float32, folder=tmp_path / "file")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_pages_come_back_as_they_were_and_are_never_in_two_hands(data: st.DataObject) -> None:
    """Requests write what only they would, in any order of turns, and read all of it again at each
    of them.
    """
    shape, groups = PageShape(1, 2, 2), data.draw(st.integers(2, 4))
    layout = KvLayout((shape,), (KvClass(0, 0, (0, 1)),))
    plan = plan_arena(16, data.draw(st.integers(4, 8)), groups)
    store = SwapStore((shape,), [plan], torch.float32)
    kv = PagedKv(layout, allocators_of([plan]), store)

    def swapped(group: int) -> list[np.ndarray]:
        pages = [h.tables[0].held() for h in kv.requests.values() if h.microbatch == group]
        every = np.concatenate([*pages, np.zeros(0, np.int64)])
        return [every[every >= kv.allocators[0].resident]]

    names = 0
    for _ in range(data.draw(st.integers(5, 40))):
        group = data.draw(st.integers(0, groups - 1))
        members = {n: h for n, h in kv.requests.items() if h.microbatch == group}
        match data.draw(st.sampled_from(["open", "turn", "turn", "turn", "end", "cut"])):
            case "open":
                names += 1
                kv.open(names, 0, 2, group)
            case "end" if kv.requests:  # most of them are cold
                kv.free(data.draw(st.sampled_from(sorted(kv.requests))))
            case "cut" if members:
                held = members[data.draw(st.sampled_from(sorted(members)))]
                kv.truncate(held, data.draw(st.integers(0, held.length)))
            case "turn" if members:
                more = data.draw(st.sampled_from([1, 16, 33]))
                growth = [(held, held.length + more) for held in members.values()]
                with suppress(KvShort):
                    kv.grow(growth)
                    store.turn(group, swapped, data.draw(st.integers(0, groups - 1)))
                    kv.prepare_pages()
                    for name, held in members.items():
                        _write_and_read(kv, name, held, held.length + more)
        taken = [(h.microbatch, p) for h in kv.requests.values() for p in h.tables[0].held()]
        own = [(m if p >= kv.allocators[0].resident else -1, p) for m, p in taken]
        assert len(own) == len(set(own)) == used_pages(kv)
    for name in list(kv.requests):
        kv.free(name)
    assert used_pages(kv) == 0
    assert all(kv.allocators[0].room(m) == plan.pages_of_microbatch for m in range(groups))
    store.close()


def _write_and_read(kv: PagedKv, name: int, held: Held, length: int) -> None:
    """Each position of a request holds its name and itself, in every layer."""
    pool, keys = kv.store.pools[0], kv.store.pools[0].keys.view(-1, 2)
    for layer in range(2):
        pages = held.tables[0].pages[layer]
        at = np.arange(length)
        rows = pool.rows(kv.store.physical(0, pages, held.microbatch))[0]
        slots = torch.from_numpy(rows[at // 16] * 16 + at % 16)
        is_new = torch.arange(length) >= held.length
        said = torch.stack([torch.full((length,), float(name)), torch.arange(length) + 0.5], -1)
        keys[slots[is_new]] = said[is_new]
        new = at[held.length :]
        kv.store.touched(0, pages[new // 16], new % 16, held.microbatch)
        assert torch.equal(keys[slots], said), "somebody else's, or old"
    kv.grown(held, length)
