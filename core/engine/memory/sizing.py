"""How is a machine's memory for keys and values divided into pages?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from core.engine.memory.layout import KvLayout
from core.engine.memory.offload import ArenaPlan, SwapStore, global_pool_bytes, mapped, plan_arena
from core.engine.memory.page_copies import move
from core.engine.memory.pages import PageAllocator
from core.engine.memory.pool import HotStore
from core.protocol.errors import UsageError

_PROBE_BYTES = 32 * 2**20
#: A step of few costs much the same as one of many, so requests are not divided further.
_MAX_MICROBATCHES = 16
_WORTHWHILE = 1.25


@dataclass(frozen=True)
class Offload:
    """What swapping needs to know: N_B microbatches, and M_G as a share of hot memory.

    `folder` keeps the cold tier in memory-mapped files, None in ordinary memory.
    """

    microbatches: int
    global_share: float
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.microbatches < 1 or not 0 <= self.global_share <= 0.5:
            raise ValueError(f"{self.microbatches} microbatches, two pools of {self.global_share}")


def fitting_offload(
    hot_bytes: int,
    cold_bytes: int,
    *,
    bytes_per_s: float,
    stage_s: float,
    least_bytes: int,
    most_bytes: int | None = None,
    folder: Path | None = None,
) -> Offload | None:
    """As many microbatches as `cold_bytes` hold the swapped pages of.

    None where swapping would not pay. No step is to wait for the copier: M_G = W · T_S, or half of
    hot memory where that is less (DeServe, formula 2). Each microbatch can hold `least_bytes`
    (formula 1), so that no request is too long which was not before, and there are no more of them
    than `most_bytes` in all fill. To pay is to hold a quarter more than hot memory alone.
    """
    pool = min(hot_bytes // 2, global_pool_bytes(bytes_per_s, stage_s))
    count = min(_MAX_MICROBATCHES, cold_bytes // max(1, pool))
    if least_bytes > pool:
        count = min(count, (hot_bytes - 2 * pool) // (least_bytes - pool))
    if most_bytes is not None and pool:
        count = min(count, max(0, -(-(most_bytes - hot_bytes) // pool) + 2))
    if hot_bytes + (count - 2) * pool < _WORTHWHILE * hot_bytes:
        return None
    return Offload(count, pool / hot_bytes, folder)


def copy_bytes_per_s(folder: Path | None = None, size_bytes: int = _PROBE_BYTES) -> float:
    """W: bytes per second into memory and out of it, or a file in `folder`: median of a few."""
    near = torch.ones(size_bytes // 8)
    far = (
        torch.empty(size_bytes // 8)
        if folder is None
        else mapped(folder, size_bytes // 8, torch.float32)
    )
    move(far, near)
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        move(far, near)
        move(near, far)
        taken.append(time.perf_counter() - started)
    return size_bytes / sorted(taken)[2]


def divide_pages(layout: KvLayout, kv_bytes: int, item_bytes: int) -> list[int]:
    """Pages of each pool that fit into `kv_bytes`, so that all last equally long.

    Raises UsageError when they do not hold a page for each layer.
    """
    layers = [
        sum(len(kind.layers) for kind in layout.classes if kind.pool == number)
        for number in range(len(layout.shapes))
    ]
    block_bytes = sum(
        count * shape.page_bytes(item_bytes)
        for count, shape in zip(layers, layout.shapes, strict=True)
    )
    # One page of each pool is the padding.
    spare = kv_bytes - sum(shape.page_bytes(item_bytes) for shape in layout.shapes)
    if spare < block_bytes:
        raise UsageError(
            f"{kv_bytes} bytes hold no page of keys and values",
            why=f"16 tokens of these layers take {block_bytes}",
        )
    if len(layers) == 1:
        return [spare // layout.shapes[0].page_bytes(item_bytes)]
    return [count * (spare // block_bytes) for count in layers]


def make_memory(
    layout: KvLayout,
    kv_bytes: int,
    dtype: torch.dtype,
    devices: Sequence[torch.device],
    offload: Offload | None,
) -> tuple[list[PageAllocator], HotStore]:
    """Allocators and store for `kv_bytes`; the padding page counts.

    Raises UsageError for too few bytes, and for an `offload` of several devices.
    """
    counts = divide_pages(layout, kv_bytes, torch.finfo(dtype).bits // 8)
    if offload is None:
        store = HotStore(layout.shapes, [count + 1 for count in counts], dtype, devices)
        return [PageAllocator(count + 1) for count in counts], store
    if len(devices) > 1:
        raise UsageError(
            "keys and values of several devices are not swapped",
            why="engine.offload is set, and engine.device names more than one",
            next_step="leave engine.offload at 0, or run one miner for each device",
        )
    plans = [
        plan_arena(count, int(count * offload.global_share), offload.microbatches)
        for count in counts
    ]
    return allocators_of(plans), SwapStore(
        layout.shapes, plans, dtype, folder=offload.folder, device=devices[0]
    )


def allocators_of(plans: Sequence[ArenaPlan]) -> list[PageAllocator]:
    """The free lists that match these arenas."""
    return [
        PageAllocator(
            plan.microbatches * plan.local + 1,
            swapped=plan.swapped,
            microbatches=plan.microbatches,
            resident_share=plan.local,
        )
        for plan in plans
    ]
