"""How many consecutive layers does each of several machines hold, by its memory?"""

from __future__ import annotations

from collections.abc import Sequence


def memory_shares(layers: int, memories: Sequence[int]) -> list[int]:
    """HyperCluster's Algorithm 1: ℓ_i = max(1, ⌊f_i L⌋) with f_i = m_i / M_total, the last machine
    takes the rest.

    Where the printed algorithm leaves nothing for the last machine, the largest ones give back a
    layer each. `memories` are those of at most `layers` machines, in the order of their layers.
    """
    assert 1 <= len(memories) <= layers, "every machine holds a layer"
    total = sum(memories)
    counts = [max(1, memory * layers // total if total else 0) for memory in memories[:-1]]
    while sum(counts) >= layers:
        counts[counts.index(max(counts))] -= 1
    return [*counts, layers - sum(counts)]
