"""Does a request's memory see what the library's own cache sees, and can it be cut back?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from core.engine.memory.kv import WINDOW_SLACK_ROWS, Cache
from core.engine.weights.load_shard import load_shard
from core.protocol.errors import UsageError
from core.protocol.types import LayerRange


@settings(max_examples=60, deadline=None)
@given(
    window=st.sampled_from([0, 2, 3, 8, 50]),
    chunks=st.lists(st.integers(1, 90), min_size=1, max_size=12),
)
def test_attention_sees_what_the_librarys_cache_shows(window: int, chunks: list[int]) -> None:
    ours = Cache([window])
    library = DynamicSlidingWindowLayer(window) if window else DynamicLayer()
    generator = torch.Generator().manual_seed(0)
    for size in chunks:
        keys, values = torch.randn(2, 1, 2, size, 4, generator=generator)
        assert ours.library.get_mask_sizes(size, 0) == library.get_mask_sizes(size)
        expected, got = library.update(keys, values), ours.library.update(keys, values, 0)
        assert torch.equal(expected[0], got[0])
        assert torch.equal(expected[1], got[1])
        assert ours.length == ours.library.get_seq_length() == library.get_seq_length()


@settings(max_examples=60, deadline=None)
@given(
    window=st.sampled_from([0, 2, 8, 50]),
    before=st.lists(st.integers(1, 70), min_size=1, max_size=8),
    back=st.integers(0, WINDOW_SLACK_ROWS),
    again=st.integers(1, 40),
)
def test_a_cache_cut_back_goes_on_as_if_it_had_never_gone_further(
    window: int, before: list[int], back: int, again: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 2, sum(before) + again, 4, generator=generator)
    kept = max(0, sum(before) - back)

    def feed(cache: Cache, start: int, end: int) -> torch.Tensor:
        part = rows[:, :, start:end]
        return cache.library.update(part, -part, 0)[0]

    cut, straight = Cache([window]), Cache([window])
    done = 0
    for size in before:
        feed(cut, done, done + size)
        done += size
    cut.truncate(kept)
    assert cut.length == kept
    if kept:
        feed(straight, 0, kept)
    assert torch.equal(feed(cut, kept, kept + again), feed(straight, kept, kept + again))


def test_a_cut_behind_what_a_window_remembers_is_refused_and_changes_nothing() -> None:
    cache = Cache([0, 8])
    row = torch.zeros(1, 1, 1, 4)
    for _ in range(500):
        for layer in (0, 1):
            cache.library.update(row, row, layer)
    with pytest.raises(UsageError, match="forgotten") as refused:
        cache.truncate(3)
    assert "position 0" in refused.value.next_step
    assert cache.length == cache.library.get_seq_length(1) == 500
    cache.truncate(500 - WINDOW_SLACK_ROWS)
    assert cache.length == 500 - WINDOW_SLACK_ROWS
    with pytest.raises(ValueError, match="cannot cut"):
        cache.truncate(500)


def test_a_window_bounds_the_memory() -> None:
    bounded, growing = Cache([8]), Cache([0])
    row = torch.zeros(1, 1, 1, 4)
    for _ in range(3000):
        bounded.library.update(row, row, 0)
        growing.library.update(row, row, 0)
    row_bytes = 2 * 4 * 4
    assert bounded.bytes <= 2 * (8 + WINDOW_SLACK_ROWS) * row_bytes
    assert 3000 * row_bytes <= growing.bytes <= 2 * 3000 * row_bytes


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_steps_fed_again_after_a_cut_give_the_same_bits(architecture: str, tiny: Callable) -> None:
    shard = load_shard(tiny(architecture, layers=5), LayerRange(1, 5))
    x = torch.randn(40, shard.hidden, generator=torch.Generator().manual_seed(3))
    cache = shard.new_cache()
    shard.forward(x[:30], cache)
    first = [shard.forward(row, cache) for row in x[30:].split(1)]
    cache.truncate(30)
    second = [shard.forward(row, cache) for row in x[30:].split(1)]
    assert all(map(torch.equal, first, second))


def test_two_requests_do_not_see_each_other(tiny: Callable) -> None:
    shard = load_shard(tiny("gemma2", layers=5), LayerRange(0, 5))
    a, b = torch.arange(30), torch.arange(60, 90)
    alone = [shard.forward(part, cache) for cache in [shard.new_cache()] for part in a.split(10)]
    cache_a, cache_b = shard.new_cache(), shard.new_cache()
    mixed = []
    for part_a, part_b in zip(a.split(10), b.split(10), strict=True):
        mixed.append(shard.forward(part_a, cache_a))
        shard.forward(part_b, cache_b)
    assert all(map(torch.equal, alone, mixed))
