"""Do rows that attend to their pages where they lie see what the gathered way sees, with the same
bits beside any other rows?
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.engine.batch import plan
from core.engine.memory import row_attention as direct
from core.engine.memory.layout import PageShape
from core.engine.memory.pages import PAGE_TOKENS
from core.engine.memory.pool import PagePool
from core.engine.memory.row_attention import SeenRows, is_direct, is_plain, put
from core.engine.model.attention import decode_rows
from core.engine.native.native import NoKernels, compile_kernels, kernels, open_kernels
from tests.core.engine.serving import CLOSE, feed, ids_of, make_stages, off, run_step

try:
    kernels()
except NoKernels as error:
    pytest.skip(f"no C kernels: {error}", allow_module_level=True)

#: Key/value heads, queries of each, width of keys, width of values.
SHAPES = [
    (1, 1, 16, 16),
    (2, 3, 64, 64),
    (4, 1, 160, 160),
    (1, 4, 256, 256),
    (2, 2, 20, 70),
    (1, 7, 96, 96),
]
#: What each row sees, in tokens from the beginning of its pages.
SPANS = [(0, 1), (0, 16), (3, 17), (0, 50), (15, 33), (31, 95), (0, 112)]


def _pool(heads: int, key_dim: int, value_dim: int) -> PagePool:
    pool = PagePool(PageShape(heads, key_dim, value_dim), 64, torch.float32, torch.device("cpu"))
    made = torch.Generator().manual_seed(1)
    pool.keys.copy_(torch.randn(pool.keys.shape, generator=made))
    pool.values.copy_(torch.randn(pool.values.shape, generator=made))
    return pool


def _pages(rows: int) -> list[Any]:
    mixed = np.random.default_rng(0).permutation(64)[: rows * 7].reshape(rows, 7)
    return [mixed[row : row + 1, : -(-SPANS[row][1] // PAGE_TOKENS)] for row in range(rows)]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_softmax_over_what_a_row_sees(shape: tuple[int, int, int, int]) -> None:
    heads, group, key_dim, value_dim = shape
    pool, rows = _pool(heads, key_dim, value_dim), len(SPANS)
    pages = _pages(rows)
    query = torch.randn(rows, heads * group, key_dim, generator=torch.Generator().manual_seed(2))
    scaling = key_dim**-0.5
    seen = SeenRows(pool, pages, [a for a, _ in SPANS], [b for _, b in SPANS])
    got = seen.attend(0, query, scaling)
    for row, (begin, end) in enumerate(SPANS):
        at = torch.from_numpy(pool.rows(pages[row])[0].reshape(-1).copy())
        keys, values = pool.gather(at, 1)
        mask = torch.full((heads, 1, keys.shape[2]), float("-inf"))
        mask[:, :, begin:end] = 0
        expected = decode_rows(query[row : row + 1], keys, values, mask, {"scaling": scaling})
        assert (got[row] - expected[0]).abs().max() < 2e-6
        alone = SeenRows(pool, pages[row : row + 1], [begin], [end])
        assert torch.equal(alone.attend(0, query[row : row + 1], scaling)[0], got[row])


@pytest.mark.parametrize(("beside", "queries"), [(1, 1), (1, 4), (2, 3), (4, 2), (4, 4)])
def test_a_row_has_the_same_bits_on_any_processor(
    queries: int, beside: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many queries and tokens its registers hold at once."""
    file = compile_kernels(tmp_path, "-DREAL_BITS=32", f"-DQUERIES={queries}", f"-DBESIDE={beside}")
    other = open_kernels(file)
    for heads, group, key_dim, value_dim in SHAPES:
        pool, rows = _pool(heads, key_dim, value_dim), len(SPANS)
        query = torch.randn(
            rows, heads * group, key_dim, generator=torch.Generator().manual_seed(2)
        )
        seen = SeenRows(pool, _pages(rows), [a for a, _ in SPANS], [b for _, b in SPANS])
        here = seen.attend(0, query, 0.1)
        with monkeypatch.context() as patch:
            patch.setattr(direct, "kernels", lambda: other)
            assert torch.equal(seen.attend(0, query, 0.1), here)


def test_threads_change_no_bit() -> None:
    pool, rows = _pool(4, 160, 160), len(SPANS)
    query = torch.randn(rows, 4, 160, generator=torch.Generator().manual_seed(2))
    seen = SeenRows(pool, _pages(rows), [a for a, _ in SPANS], [b for _, b in SPANS])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = seen.attend(0, query, 0.1)
        torch.set_num_threads(3)
        for _ in range(20):
            assert torch.equal(seen.attend(0, query, 0.1), alone)
    finally:
        torch.set_num_threads(before)


def test_large_scores_and_what_is_not_a_number() -> None:
    pool = _pool(1, 16, 16)
    pages, query = [np.array([[3, 5]])], torch.ones(1, 1, 16)
    pool.keys[3] = 0.0
    pool.keys[5] = 0.0
    pool.keys[5, :16] = 1e4  # the first token of the second page takes everything
    got = SeenRows(pool, pages, [0], [32]).attend(0, query, 1.0)
    assert torch.equal(got[0, 0], pool.values[5, :16])
    pool.keys[5, 16] = torch.nan
    assert SeenRows(pool, pages, [0], [32]).attend(0, query, 1.0).isnan().all()
    assert not SeenRows(pool, pages, [0], [16]).attend(0, query, 1.0).isnan().any()


def test_new_rows_are_put_where_the_pool_would_put_them() -> None:
    ours, theirs = _pool(2, 20, 70), _pool(2, 20, 70)
    slots = torch.tensor([5, 900, 17, 33, 2, 1])
    key, value = torch.randn(2, 5, 20), torch.randn(5, 2, 70).transpose(0, 1)
    put(ours, slots, key, value)  # two rows more than slots: padding
    theirs.write(slots, key.transpose(0, 1), value.transpose(0, 1))
    assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)


def test_other_numbers_and_attention_go_the_long_way() -> None:
    shape = PageShape(1, 16, 16)
    assert not is_direct(PagePool(shape, 1, torch.bfloat16, torch.device("cpu")))
    assert is_plain({"scaling": 1.0, "softcap": None})
    assert not is_plain({"softcap": 30.0}) and not is_plain({"s_aux": torch.zeros(1)})


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3", "gpt2"])
def test_both_ways_give_a_model_the_same_logits(
    architecture: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the windows, with prompts of others in the same pass."""

    def run() -> torch.Tensor:
        stages = make_stages(tiny(architecture, layers=3), (0, 3))
        stages[0].open("r")
        outs = [feed(stages, "r", ids_of(1, 40), 40)]
        for step, one in enumerate(ids_of(2, 30)):
            stages[0].open(step)
            pieces = [("r", one[None], 40 + step), (step, ids_of(step, 5), 0)]
            outs.append(run_step(stages, pieces)[0])
        return torch.cat(outs)

    direct = run()
    monkeypatch.setattr(plan, "is_direct", lambda pool: False)
    assert off(direct, run()) < CLOSE
