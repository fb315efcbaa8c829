"""How would simpler systems cut one model over these machines?

Neither looks at capacity, speed or distance: `validate_pipelines` says whether their cut fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Machine, Pipeline, consecutive


def memory_proportional(layers: int, machines: Sequence[Machine]) -> Pipeline:
    """HyperCluster's Algorithm 1: ℓ_i = max(1, ⌊f_i L⌋) with f_i = m_i / M_total, the last machine
    takes the rest.

    Machines are ranked by memory, largest first (ties by id). Where the printed algorithm leaves
    nothing for the last machine, the largest ones give back a layer each. Raises PlanError with
    more machines than layers.
    """
    ranked = sorted(machines, key=lambda machine: (-machine.memory_bytes, machine.id))
    _enough(layers, ranked)
    total = sum(machine.memory_bytes for machine in ranked)
    counts = [
        max(1, machine.memory_bytes * layers // total if total else 0) for machine in ranked[:-1]
    ]
    while sum(counts) >= layers:
        counts[counts.index(max(counts))] -= 1
    return consecutive(ranked, [*counts, layers - sum(counts)])


def even_split(layers: int, machines: Sequence[Machine]) -> Pipeline:
    """L / n layers each by id; the first L mod n take one more. Raises PlanError as above."""
    ranked = sorted(machines, key=lambda machine: machine.id)
    _enough(layers, ranked)
    share, more = divmod(layers, len(ranked))
    return consecutive(ranked, [share + (i < more) for i in range(len(ranked))])


def _enough(layers: int, machines: Sequence[Machine]) -> None:
    if not 1 <= len(machines) <= layers:
        raise PlanError("empty", f"{layers} layers over {len(machines)} machines")
