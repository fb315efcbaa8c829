"""How do a shard's layers lie on several devices of one machine?

Each device holds some of them in a row. The first one holds what runs before the layers too, the
last one what runs after them. A step goes through the devices one after another, and takes its rows
along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from core.engine.model.naming import Family
from core.protocol.errors import UsageError


@dataclass(frozen=True)
class Spread:
    """Devices in the order of the layers, and for each owned layer which of them holds it.

    `sizes` are the bytes of each device that may be used, unknown of a single one.
    """

    devices: tuple[torch.device, ...]
    part_of: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    @property
    def first(self) -> torch.device:
        """Where rows enter the shard."""
        return self.devices[0]

    @property
    def last(self) -> torch.device:
        """Where rows leave the shard."""
        return self.devices[-1]

    @property
    def counts(self) -> list[int]:
        """Layers of each device."""
        return [self.part_of.count(part) for part in range(len(self.devices))]

    def part_at(self, path: str, family: Family) -> int:
        """Which device holds what is at a path of the cut model, where layers count from 0."""
        if path.startswith(f"{family.layers}."):
            return self.part_of[int(path.removeprefix(f"{family.layers}.").partition(".")[0])]
        after = (*family.after, family.head)
        is_after = any(path == one or path.startswith(f"{one}.") for one in after)
        return len(self.devices) - 1 if is_after else 0


def spread_over(
    devices: Sequence[tuple[str, int]], layers_bytes: Sequence[int], before: int, after: int
) -> Spread:
    """Layers of these sizes over devices of so many bytes each, by name, in this order.

    `before` and `after` are the bytes of what runs before and after the layers. What the fullest
    device has left for each of its layers is the most that can be: keys and values take as much of
    every layer. Devices without a layer are left out. Raises UsageError where the layers do not
    fit.
    """
    total = len(layers_bytes)
    sums = [0]
    for size in layers_bytes:
        sums.append(sums[-1] + size)

    def left(device: int, start: int, end: int) -> float:
        """Bytes for each of the layers [start, end) if a device holds these."""
        if start == end:
            return float("inf")
        ends = (before if start == 0 else 0) + (after if end == total else 0)
        return (devices[device][1] - ends - sums[end] + sums[start]) / (end - start)

    best: list[tuple[float, list[int]]] = [(float("inf"), [])] + [(float("-inf"), [])] * total
    for device in range(len(devices)):
        # With this device too: of each number of layers, the best way to hold them, by its cuts.
        best = [
            max(
                (min(best[start][0], left(device, start, end)), [*best[start][1], end])
                for start in range(end + 1)
            )
            for end in range(total + 1)
        ]
    room, cuts = best[total]
    if room <= 0:
        raise UsageError(
            f"{total} layers do not fit on these devices",
            f"they take {before + sums[-1] + after:,} bytes, and there are "
            + ", ".join(f"{size:,} on {name}" for name, size in devices),
            next_step="raise miner.memory_limit or hold fewer layers",
        )
    counts = [end - start for start, end in pairwise([0, *cuts])]
    used = [(device, count) for device, count in enumerate(counts) if count]
    return Spread(
        tuple(torch.device(devices[device][0]) for device, _ in used),
        tuple(part for part, (_, count) in enumerate(used) for _ in range(count)),
        tuple(devices[device][1] for device, _ in used),
    )
