"""Which machine takes which place of a new plan, so that the fewest layers are loaded?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet import Fleet, ModelShape, Placement, Shard, in_layer_order
from scheduler.placement.table import table_of


def hand_to_holders(
    fleet: Fleet, model: ModelShape, held: Placement, target: Placement
) -> Placement:
    """The target with the places of each kind of machine handed to those that hold most of them already.

    Exact for each kind: an assignment of the least layers to load. Where links differ from machine to machine inside a
    region the flow may change with it.
    """
    from scipy.optimize import linear_sum_assignment  # heavy

    table = table_of(fleet, model)
    index = {machine.id: i for i, machine in enumerate(table.machines)}
    before = {shard.machine_id: shard.layers for shard in held}
    places: dict[int, list[LayerRange]] = defaultdict(list)
    for machine_id, layers in target:
        places[table.kind_of[index[machine_id]]].append(layers)
    shards = list[Shard]()
    for kind, wanted in sorted(places.items()):
        members = [table.machines[m].id for m in table.kinds[kind].members]
        loads = np.array(
            [[_to_load(before.get(member), layers) for layers in wanted] for member in members]
        )
        for row, column in zip(*linear_sum_assignment(loads), strict=True):
            shards.append(Shard(members[row], wanted[column]))
    return in_layer_order(shards)


def _to_load(old: LayerRange | None, new: LayerRange) -> float:
    if old is None:
        return len(new)
    common = max(0, min(old.end, new.end) - max(old.start, new.start))
    # among equals the one that need not change at all
    return len(new) - common + (0.0 if old == new else 1e-3)
