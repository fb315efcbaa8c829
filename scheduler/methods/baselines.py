"""How would simpler systems cut one model over these machines?

Neither looks at capacity, speed or distance: `validate_pipelines` says whether their cut fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.protocol.shares import memory_shares
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Machine, Pipeline, consecutive


def memory_proportional(layers: int, machines: Sequence[Machine]) -> Pipeline:
    """HyperCluster's Algorithm 1 (`core/protocol/shares.py`).

    Machines are ranked by memory, largest first (ties by id). Raises PlanError with more machines
    than layers.
    """
    ranked = sorted(machines, key=lambda machine: (-machine.memory_bytes, machine.id))
    _enough(layers, ranked)
    return consecutive(ranked, memory_shares(layers, [one.memory_bytes for one in ranked]))


def even_split(layers: int, machines: Sequence[Machine]) -> Pipeline:
    """L / n layers each by id; the first L mod n take one more. Raises PlanError as above."""
    ranked = sorted(machines, key=lambda machine: machine.id)
    _enough(layers, ranked)
    share, more = divmod(layers, len(ranked))
    return consecutive(ranked, [share + (i < more) for i in range(len(ranked))])


def _enough(layers: int, machines: Sequence[Machine]) -> None:
    if not 1 <= len(machines) <= layers:
        raise PlanError("empty", f"{layers} layers over {len(machines)} machines")
