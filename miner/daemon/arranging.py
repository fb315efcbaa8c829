"""Which layers does a machine hold where no matcher says so?

Every machine computes this from the same signed records of the swarm, so they come to one
arrangement without a word (HyperCluster: the memory-weighted partition, computed by each machine
for itself). What others hold is kept: machines that hold nothing share what is missing, and all
begin anew only where those cannot hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.protocol.shares import memory_shares
from core.protocol.types import LayerRange

#: Of the memory, for weights: the rest is for keys and values.
_FOR_WEIGHTS = 0.75


@dataclass(frozen=True)
class SeenMachine:
    """One machine as it describes itself."""

    operator: str
    layers: LayerRange | None
    memory_bytes: int

    def room(self, layer_bytes: int) -> int:
        """How many layers its memory holds."""
        return int(self.memory_bytes * _FOR_WEIGHTS) // layer_bytes


def own_layers(
    ours: SeenMachine, others: Sequence[SeenMachine], layers: int, layer_bytes: int
) -> LayerRange | None:
    """What this machine should hold of a model of `layers` layers; None for nothing.

    A machine that holds something keeps it, unless layers are missing that those without any cannot
    hold: then all of them share the model.
    """
    everybody = sorted((ours, *others), key=lambda one: (-one.memory_bytes, one.operator))
    able = [one for one in everybody if one.room(layer_bytes)]
    idle = [one for one in able if one.layers is None]
    missing = _missing(everybody, layers)
    if missing is None:
        return ours.layers or _thinnest(ours, idle, everybody, layers, layer_bytes)
    room, whole_room = (sum(one.room(layer_bytes) for one in some) for some in (idle, able))
    if room < len(missing) and whole_room >= layers:
        return _share(ours, able, LayerRange(0, layers))
    return ours.layers or _share(ours, idle, missing)


def _missing(machines: Sequence[SeenMachine], layers: int) -> LayerRange | None:
    """From the first to the last layer that nobody holds."""
    bare = [layer for layer, count in enumerate(_holders(machines, layers)) if not count]
    return LayerRange(bare[0], bare[-1] + 1) if bare else None


def _share(
    ours: SeenMachine, machines: Sequence[SeenMachine], span: LayerRange
) -> LayerRange | None:
    """Ours of a span that these divide by their memory, the largest first."""
    sharing = list(machines[: len(span)])
    if ours not in sharing:
        return ours.layers
    counts = memory_shares(len(span), [one.memory_bytes for one in sharing])
    at = sharing.index(ours)
    start = span.start + sum(counts[:at])
    return LayerRange(start, start + counts[at])


def _thinnest(
    ours: SeenMachine,
    idle: Sequence[SeenMachine],
    machines: Sequence[SeenMachine],
    layers: int,
    layer_bytes: int,
) -> LayerRange | None:
    """One after the other, each that holds nothing doubles what fewest hold."""
    holders = _holders(machines, layers)
    for one in idle:
        count = min(layers, one.room(layer_bytes))
        starts = range(layers - count + 1)
        start = min(starts, key=lambda at: sum(holders[at : at + count]))
        if one is ours:
            return LayerRange(start, start + count)
        for layer in range(start, start + count):
            holders[layer] += 1
    return None


def _holders(machines: Sequence[SeenMachine], layers: int) -> list[int]:
    """How many hold each layer."""
    held = [one.layers for one in machines if one.layers is not None]
    return [sum(layer in one for one in held) for layer in range(layers)]


@dataclass
class Arranger:
    """Takes a step only when the same one was called for a while: others may be taking theirs."""

    steady_s: float
    _wanted: LayerRange | None = None
    _since_s: float = float("inf")

    def decide(self, wanted: LayerRange | None, held: LayerRange | None, now_s: float) -> bool:
        """Whether to hold what is wanted now, and no longer what is held."""
        if wanted == held or wanted is None:
            self._since_s = float("inf")
            return False
        if wanted != self._wanted or self._since_s == float("inf"):
            self._wanted, self._since_s = wanted, now_s
        return now_s - self._since_s >= self.steady_s
