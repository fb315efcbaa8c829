"""Which machine of its kind goes into which pipeline?

Fast with fast: the pipeline that serves most chooses first, and takes the machines nearest to each
other, of those the fastest. Machines of exactly one kind can be exchanged without touching θ, so
among them it is a question of hops alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from scheduler.fleet.fleet import Machine

#: Per kind and place, the fastest machines with the least access latency last.
Shelves: TypeAlias = list[dict[int, list[Machine]]]


def hand_out(
    patterns: Sequence[Mapping[int, int]],
    members: Sequence[Sequence[Machine]],
    speed: Mapping[str, float],
    place_of: Mapping[str, int],
    between_ms: Sequence[Sequence[float]],
) -> list[list[Machine]]:
    """Machines for each pattern (kind: how many), the patterns in order of choice.

    A pattern is filled from its home outwards, nearest place first; its home is where that crosses
    least.
    """
    shelves: Shelves = []
    for shelf in members:
        by_place: dict[int, list[Machine]] = {}
        for machine in sorted(shelf, key=lambda m: (-speed[m.id], m.access_ms, m.id), reverse=True):
            by_place.setdefault(place_of[machine.id], []).append(machine)
        shelves.append(by_place)
    outwards = [
        sorted(range(len(between_ms)), key=lambda p: (p != home, between_ms[home][p], p))
        for home in range(len(between_ms))
    ]
    groups = []
    for pattern in patterns:
        fills = [_fill(pattern, order, shelves, between_ms) for order in outwards]
        takes = min(fills, key=lambda fill: fill[0])[1]
        group: list[Machine] = []
        for t, place, n in takes:
            group += [shelves[t][place].pop() for _ in range(n)]
        groups.append(group)
    return groups


def _fill(
    pattern: Mapping[int, int],
    order: Sequence[int],
    shelves: Shelves,
    between_ms: Sequence[Sequence[float]],
) -> tuple[float, list[tuple[int, int, int]]]:
    """(ms between the places it touches, takes as (kind, place, how many))."""
    missing = dict(pattern)
    takes: list[tuple[int, int, int]] = []
    far, before = 0.0, -1
    for place in order:
        here = [
            (t, place, min(n, len(shelves[t].get(place, ())))) for t, n in sorted(missing.items())
        ]
        here = [take for take in here if take[2]]
        if not here:
            continue
        for t, _, n in here:
            missing[t] -= n
        takes += here
        far += between_ms[before][place] if before >= 0 else 0.0
        before = place
        if not any(missing.values()):
            break
    return far, takes
