"""What does it cost to serve a model otherwise than now?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.fabric.columns import ColumnTable, Options
from scheduler.fabric.world import MOST_GPUS, Group
from scheduler.fleet.arrays import Floats
from scheduler.fleet.numbers import check_number, check_whole


@dataclass(frozen=True)
class Switch:
    """What serves now, by model, and what a GPU that must load is worth in ms of mean latency.

    Not in the paper, whose placements start from nothing. Raises FleetError naming a number that is
    absurd.
    """

    serving: Mapping[str, Sequence[Group]] = field(default_factory=dict)
    ms_per_gpu: float = 0.0

    def __post_init__(self) -> None:
        check_number("ms_per_gpu", self.ms_per_gpu, least=0)
        for model, groups in self.serving.items():
            for group in groups:
                for name in ("tensor", "replicas"):
                    what = f"serving.{model} on {group.gpu}: {name}"
                    check_whole(what, getattr(group, name), 1, MOST_GPUS)


def penalty_ms(options: Options, table: ColumnTable, switch: Switch) -> Floats:
    """What each column adds to its model's latency in the objective: GPUs that load × ms_per_gpu.

    A GPU loads where its replica is new on its type, or is split otherwise than before.
    """
    before = {group.gpu: group for group in switch.serving.get(options.demand.name, ())}
    tensor = np.array([kind.replica.tensor for kind in options.kinds] + [0], dtype=np.int64)
    loads: Floats = table.gpus.sum(axis=1).astype(np.float64)
    for n, gpu in enumerate(options.types):
        group = before.get(gpu.name)
        if group is not None:
            same = tensor[table.kinds[:, n]] == group.tensor
            loads -= np.where(
                same, group.tensor * np.minimum(table.replicas[:, n], group.replicas), 0
            )
    return loads * switch.ms_per_gpu
