"""Layers on several devices of one machine: cut by memory, run along them, with the same bits.

No two devices are at hand. On the processor all that divides a shard is run with each part on it,
and compared to the bit. `fake_cards` has two devices without numbers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from core.engine.batch.batch import BatchEngine
from core.engine.batch.compat import CompatEngine
from core.engine.batch.pieces import ALL, RequestPiece
from core.engine.memory.sizing import Offload
from core.engine.model.blocks import ModelShard, without_states
from core.engine.model.spread import spread_over
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import describe_model
from core.protocol.errors import UsageError
from core.protocol.types import LayerRange
from tests.core.engine.serving import ids_of

LAYERS = 5
MIB = 2**20
KV_BYTES = 4 * MIB


def parts_of(count: int, names: tuple[str, ...] = ("cpu", "cpu")) -> list[tuple[str, int]]:
    return [(names[number % len(names)], 64 * MIB) for number in range(count)]


# --- who holds what ---


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    memory=st.lists(st.integers(1, 400), min_size=1, max_size=3),
    before=st.integers(0, 60),
    after=st.integers(0, 60),
)
def test_layers_are_cut_so_that_each_has_the_most_room(
    sizes: list[int], memory: list[int], before: int, after: int
) -> None:
    def room(cuts: tuple[int, ...]) -> float:
        edges, rooms = (0, *cuts, len(sizes)), []
        for size, (start, end) in zip(memory, pairwise(edges), strict=True):
            if end > start:
                ends = (start == 0) * before + (end == len(sizes)) * after
                rooms.append((size - ends - sum(sizes[start:end])) / (end - start))
        return min(rooms)

    every = product(range(len(sizes) + 1), repeat=len(memory) - 1)
    best = max(room(cuts) for cuts in every if list(cuts) == sorted(cuts))
    devices = [("cpu", size) for size in memory]
    if best <= 0:
        with pytest.raises(UsageError, match="do not fit on these devices"):
            spread_over(devices, sizes, before, after)
        return
    found = spread_over(devices, sizes, before, after)
    assert list(found.part_of) == sorted(found.part_of) and len(found.part_of) == len(sizes)
    assert len(found.devices) == len(found.sizes) == len(set(found.part_of))
    rooms = []
    for part, size in enumerate(found.sizes):
        mine = [n for n, of in enumerate(found.part_of) if of == part]
        ends = (0 in mine) * before + (len(sizes) - 1 in mine) * after
        rooms.append((size - ends - sum(sizes[n] for n in mine)) / len(mine))
    assert min(rooms) == pytest.approx(best)


def test_twice_the_memory_takes_twice_the_layers() -> None:
    found = spread_over([("cuda:0", 40_000), ("cuda:1", 20_000)], [100] * 30, 0, 0)
    assert found.counts == [20, 10]
    assert (str(found.first), str(found.last)) == ("cuda:0", "cuda:1")


def test_what_is_left_is_that_of_the_fullest_device(tiny: Callable) -> None:
    folder, whole = tiny("llama", layers=LAYERS, tied=False), LayerRange(0, LAYERS)
    one, two = load_shard(folder, whole), load_shard(folder, whole, devices=parts_of(2))
    assert two.spread.counts in ([3, 2], [2, 3])
    assert one.room(64 * MIB) == 64 * MIB - one.bytes
    assert two.bytes == one.bytes
    sizes, rooms = describe_model(folder), []
    for part, count in enumerate(two.spread.counts):
        ends = sizes.head_bytes if part else sizes.embed_bytes
        rooms.append((64 * MIB - ends - count * sizes.layers_bytes[0]) / count)
    assert two.room(128 * MIB) == pytest.approx(LAYERS * min(rooms), rel=1e-3)


# --- on the processor, to the bit ---


def serve(shard: ModelShard, kind: type = BatchEngine) -> list[Tensor]:
    """What leaves of requests of several lengths and layers, prompts and single steps."""
    engine = kind(shard, kv_bytes=KV_BYTES, span_layers=2)
    ranges = {"a": None, "b": LayerRange(0, 3), "c": LayerRange(2, LAYERS)}
    rows = torch.randn(40, shard.hidden, generator=torch.Generator().manual_seed(1))
    found: list[Tensor] = []
    for name, layers in ranges.items():
        engine.open(name, layers)
    for first, count in ((0, 20), (20, 1), (21, 1), (22, 7)):
        pieces = [
            RequestPiece(name, (rows if name == "c" else ids_of(7, 64))[first:][:count], first, ALL)
            for name in ranges
        ]
        inside: list[list[Tensor]] = []
        found += without_states(engine.step(pieces, states=True, inside=inside))
        found += [part for parts in inside for part in parts]
    engine.close()
    return found


@pytest.mark.parametrize("kind", [BatchEngine, CompatEngine])
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_on_the_processor_have_the_bits_of_one(
    architecture: str, numerics: str, kind: type, parts: int, tiny: Callable
) -> None:
    folder, whole = tiny(architecture, layers=LAYERS), LayerRange(0, LAYERS)
    one = load_shard(folder, whole, numerics=numerics)
    several = load_shard(folder, whole, numerics=numerics, devices=parts_of(parts))
    assert len(several.spread.devices) == parts
    x = ids_of(3, 9)
    wanted = one.forward(x, one.new_cache())
    assert torch.equal(several.forward(x, several.new_cache()), wanted)
    for left, expected in zip(serve(several, kind), serve(one, kind), strict=True):
        assert torch.equal(left, expected)


def test_pages_lie_with_their_layers(tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    shard = load_shard(folder, LayerRange(0, LAYERS), devices=parts_of(2))
    engine = BatchEngine(shard, kv_bytes=KV_BYTES)
    held = {
        layer: engine.layout.shapes[k.pool].part
        for k in engine.layout.classes
        for layer in k.layers
    }
    assert tuple(held[layer] for layer in range(LAYERS)) == shard.spread.part_of
    pages = [len(pool.keys) for pool in engine.store.pools]
    assert pages[0] / pages[1] == pytest.approx(
        shard.spread.counts[0] / shard.spread.counts[1], rel=0.05
    )
    engine.close()
    with pytest.raises(UsageError, match="several devices are not swapped"):
        BatchEngine(shard, kv_bytes=KV_BYTES, offload=Offload(2, 0.25))


# --- on devices that are not there ---


def test_rows_go_from_device_to_device(tiny: Callable) -> None:
    folders = [tiny(architecture, layers=LAYERS) for architecture in ("llama", "gemma3", "gpt2")]
    command = [sys.executable, "-m", "tests.core.engine.fake_cards", *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["9", "served"], done.stderr[-4000:]
