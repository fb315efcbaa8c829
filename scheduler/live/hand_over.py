"""Which machine takes which of the slices planned, so that the fewest layers are loaded?"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.fleet.costs import tau_ms_per_layer
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.live.holdings import Holding, Layers, fits, overlap

#: Machines whose speeds differ by at most this share may take each other's slice.
ALIKE = 0.25
#: What a slice costs a machine that may not have it, in layers.
NEVER = 1e9


def least_moved(
    fleet: Fleet, model: ModelShape, planned: Layers, holding: Layers, fixed: Collection[str] = ()
) -> Holding:
    """The planned slices, each to a machine like the one planned for that loads least.

    Like: as fast within `ALIKE`, so that stages stay even, and with room for it. An exact
    assignment. Nobody healthy goes to standby: who gets no planned slice stays where it was.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment  # heavy

    ids = sorted(i for i in {*planned, *holding} if i not in fixed)
    owners = sorted(planned)
    tau = {i: tau_ms_per_layer(fleet.by_id[i], model) for i in ids}
    loads = np.full((len(ids), len(owners)), NEVER)
    for row, i in enumerate(ids):
        machine, held = fleet.by_id[i], holding.get(i)
        for column, owner in enumerate(owners):
            layers = planned[owner]
            alike = abs(tau[i] - tau[owner]) <= ALIKE * max(tau[i], tau[owner])
            if i == owner or (alike and fits(machine, model, layers.start, layers.end)):
                # Among equals the one that need not change, then the one it was planned for.
                loads[row, column] = (
                    len(layers)
                    - overlap(held, layers)
                    + (held != layers) * 1e-3
                    + (i != owner) * 1e-6
                )
    rows, columns = linear_sum_assignment(loads)
    found = {ids[row]: planned[owners[column]] for row, column in zip(rows, columns, strict=True)}
    stays = {i: layers for i, layers in holding.items() if i not in found}
    return {**stays, **found}
