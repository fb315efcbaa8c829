"""In which order do machines hold the model that cannot all reach each other?"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.fleet.costs import capacities, hop_ms
from scheduler.fleet.fleet import Links, Machine, ModelShape

SEARCH_STEPS = 20_000


def search_connected(
    machines: Sequence[Machine], model: ModelShape, links: Links
) -> tuple[Machine, ...] | None:
    """A connected order that holds the model, or None where none is found.

    Depth-first from the largest machines, over at most SEARCH_STEPS steps.
    """
    caps = {machine.id: capacities(machine, model) for machine in machines}
    by_size = sorted(machines, key=lambda machine: (-caps[machine.id].plain, machine.id))
    steps = SEARCH_STEPS

    def grow(path: tuple[Machine, ...], held: int, unused: int) -> tuple[Machine, ...] | None:
        nonlocal steps
        steps -= 1
        if steps < 0 or held + unused < model.layers or len(path) >= model.layers:
            return None
        onward = [
            machine
            for machine in by_size
            if machine not in path and hop_ms(links, path[-1], machine, model) < float("inf")
        ]
        for machine in onward:
            last = caps[machine.id].last
            if last >= 1 and held + last >= model.layers:
                return (*path, machine)
        for machine in onward:
            plain = caps[machine.id].plain
            found = grow((*path, machine), held + plain, unused - plain)
            if found:
                return found
        return None

    total = sum(c.plain for c in caps.values())
    for machine in by_size:
        if caps[machine.id].both >= model.layers:
            return (machine,)
        if caps[machine.id].first >= 1:
            found = grow((machine,), caps[machine.id].first, total - caps[machine.id].plain)
            if found:
                return found
    return None
