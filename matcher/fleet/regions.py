"""In which region is each machine, by what it says and by what others measure?

A stated region counts unless others measure the machine next to another one. Machines that state
none are where the nearest ones are; those that are near nobody who states one share a label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median_low

from matcher.fleet.links import Said

#: One way. Machines this near each other are in one region.
NEAR_MS = 15.0
#: A region whose machines are usually farther than this is not the machine's own.
FAR_MS = 30.0


def regions_of(stated: Mapping[str, str], rho_ms: Said) -> dict[str, str]:
    """The region of each operator; "" of one that states none and that nobody has measured.

    The same input gives the same names. A label of machines that nobody states the region of is
    `near-` and the beginning of their lowest operator.
    """
    seen = _seen(rho_ms)
    found = {
        operator: name
        for operator, name in stated.items()
        if name and not _is_elsewhere(name, seen.get(operator, {}), stated)
    }
    left = sorted(set(stated) - set(found))
    while nearby := {op: name for op in left if (name := _nearest(seen.get(op, {}), found))}:
        found |= nearby
        left = [operator for operator in left if operator not in nearby]
    for operator in left:
        if operator not in found:
            group = _group(operator, seen, left)
            label = f"near-{operator.lower().removeprefix('0x')[:6]}" if seen.get(operator) else ""
            found |= dict.fromkeys(group, label)
    return found


def _seen(rho_ms: Said) -> dict[str, dict[str, float]]:
    """How far others say that each machine is; its own word where no other has measured it."""
    seen: dict[str, dict[str, float]] = {}
    for other, told in rho_ms.items():
        for operator, ms in told.items():
            seen.setdefault(operator, {})[other] = ms
    for operator, told in rho_ms.items():
        seen.setdefault(operator, dict(told))
    return seen


def _is_elsewhere(name: str, distances: Mapping[str, float], stated: Mapping[str, str]) -> bool:
    """Whether machines of this region are usually far, and those of another one near."""
    by_region: dict[str, list[float]] = {}
    for other, ms in distances.items():
        if stated.get(other):
            by_region.setdefault(stated[other], []).append(ms)
    own = by_region.pop(name, [])
    if not own or median_low(own) <= FAR_MS:
        return False
    return any(median_low(others) <= NEAR_MS for others in by_region.values())


def _nearest(distances: Mapping[str, float], found: Mapping[str, str]) -> str:
    """The region of the nearest machine that has one, "" where none is near."""
    near = [(ms, other) for other, ms in distances.items() if ms <= NEAR_MS and other in found]
    return found[min(near)[1]] if near else ""


def _group(first: str, seen: Said, among: Collection[str]) -> set[str]:
    """The machines that are near this one, or near one that is."""
    left, group, found = set(among) - {first}, {first}, [first]
    while found:
        at = found.pop()
        near = {
            other
            for other in left
            if min(seen.get(at, {}).get(other, FAR_MS), seen.get(other, {}).get(at, FAR_MS))
            <= NEAR_MS
        }
        left -= near
        group |= near
        found += near
    return group
