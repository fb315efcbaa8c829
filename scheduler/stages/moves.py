"""How does one arrangement of chains become a neighbouring one?

Every move returns the chains it changes, as (index, new stages) with [] for a chain that ends and
the index one past the last for a new one, and the machines left without work if those change; None
when the draw makes no sense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from scheduler.stages.stages import PlannedStage, StagePool

Chain: TypeAlias = list[PlannedStage]
Change: TypeAlias = tuple[tuple[tuple[int, Chain], ...], list[int] | None]
Draw: TypeAlias = Callable[[], float]
Move: TypeAlias = Callable[[Sequence[Chain], list[int], StagePool, Draw], Change | None]


def _leave(chain: Chain, i: int, machine: int, pool: StagePool) -> None:
    """Take a machine out of stage i; a stage it was alone in goes."""
    here = chain[i].machines
    if len(here) == 1:
        del chain[i]
    else:
        chain[i] = pool.stage([m for m in here if m != machine])


def _two(n: int, draw: Draw) -> tuple[int, int]:
    """Two different numbers below n."""
    i, j = int(draw() * n), int(draw() * (n - 1))
    return i, j + (j >= i)


def _pick(chains: Sequence[Chain], draw: Draw) -> int:
    return int(draw() * len(chains)) if len(chains) > 1 else 0


def transfer(
    chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw
) -> Change | None:
    """One machine goes to another stage of its chain."""
    c = _pick(chains, draw)
    chain = chains[c]
    n = len(chain)
    if n < 2:
        return None
    i, j = _two(n, draw)
    here = chain[i].machines
    machine = here[int(draw() * len(here))]
    new = chain[:]
    new[j] = pool.stage((*chain[j].machines, machine))
    _leave(new, i, machine, pool)
    return ((c, new),), None


def swap(chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw) -> Change | None:
    """Two machines of different kinds change places inside a chain."""
    c = _pick(chains, draw)
    chain = chains[c]
    n = len(chain)
    if n < 2:
        return None
    i, j = _two(n, draw)
    a, b = chain[i].machines, chain[j].machines
    x, y = a[int(draw() * len(a))], b[int(draw() * len(b))]
    if pool.table.kind_of[x] == pool.table.kind_of[y]:
        return None
    new = chain[:]
    new[i] = pool.stage([y if m == x else m for m in a])
    new[j] = pool.stage([x if m == y else m for m in b])
    return ((c, new),), None


def split(chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw) -> Change | None:
    """A machine leaves its stage for one of its own; a lone one only moves along the chain."""
    c = _pick(chains, draw)
    chain = chains[c]
    i = int(draw() * len(chain))
    here = chain[i].machines
    if len(here) == 1 and not pool.links_bind:
        return None
    machine = here[int(draw() * len(here))]
    new = chain[:]
    _leave(new, i, machine, pool)
    at = int(draw() * (len(new) + 1)) if pool.links_bind or pool.ends_matter else i
    new.insert(at, pool.stage((machine,)))
    return ((c, new),), None


def merge(chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw) -> Change | None:
    """Two stages of a chain become one."""
    c = _pick(chains, draw)
    chain = chains[c]
    n = len(chain)
    if n < 2:
        return None
    i, j = _two(n, draw)
    new = chain[:]
    new[j] = pool.stage(chain[i].machines + chain[j].machines)
    del new[i]
    return ((c, new),), None


def move_run(
    chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw
) -> Change | None:
    """A run of stages goes elsewhere in its chain, half of the time turned round."""
    c = _pick(chains, draw)
    chain = chains[c]
    n = len(chain)
    if n < 3:
        return None
    i = int(draw() * n)
    j = min(n, i + 1 + int(draw() * draw() * n))
    run, rest = chain[i:j], chain[:i] + chain[j:]
    at = int(draw() * (len(rest) + 1))
    if draw() < 0.5:
        run.reverse()
    elif at == i:
        return None
    return ((c, rest[:at] + run + rest[at:]),), None


def reverse_run(
    chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw
) -> Change | None:
    """A run of stages is turned round where it is."""
    c = _pick(chains, draw)
    chain = chains[c]
    n = len(chain)
    if n < 2:
        return None
    i = int(draw() * (n - 1))
    j = i + 2 + int(draw() * (n - i - 1))
    return ((c, chain[:i] + chain[i:j][::-1] + chain[j:]),), None


def retire(chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw) -> Change | None:
    """One machine is left without work."""
    c = _pick(chains, draw)
    chain = chains[c]
    i = int(draw() * len(chain))
    here = chain[i].machines
    machine = here[int(draw() * len(here))]
    new = chain[:]
    _leave(new, i, machine, pool)
    return ((c, new),), [*idle, machine]


def recruit(chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw) -> Change | None:
    """A machine without work joins a stage or makes one."""
    if not idle:
        return None
    c = _pick(chains, draw)
    chain = chains[c]
    at = int(draw() * len(idle))
    i = int(draw() * len(chain))
    new = chain[:]
    if draw() < 0.5:
        new[i] = pool.stage((*chain[i].machines, idle[at]))
    else:
        new.insert(i + (draw() < 0.5), pool.stage((idle[at],)))
    return ((c, new),), idle[:at] + idle[at + 1 :]


def across(chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw) -> Change | None:
    """One machine goes from one chain to another, or two change places."""
    n = len(chains)
    if n < 2:
        return None
    c, d = _two(n, draw)
    a, b = chains[c][:], chains[d][:]
    i, j = int(draw() * len(a)), int(draw() * len(b))
    here, there = a[i].machines, b[j].machines
    x = here[int(draw() * len(here))]
    way = draw()
    if way < 0.5:
        y = there[int(draw() * len(there))]
        if pool.table.kind_of[x] == pool.table.kind_of[y]:
            return None
        a[i] = pool.stage([y if m == x else m for m in here])
        b[j] = pool.stage([x if m == y else m for m in there])
        return ((c, a), (d, b)), None
    _leave(a, i, x, pool)
    if way < 0.75:
        b[j] = pool.stage((*there, x))
    else:
        b.insert(j, pool.stage((x,)))
    return ((c, a), (d, b)), None


def cross_over(
    chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw
) -> Change | None:
    """Two chains change tails; one of them may end."""
    n = len(chains)
    if n < 2:
        return None
    c, d = _two(n, draw)
    a, b = chains[c], chains[d]
    i, j = int(draw() * (len(a) + 1)), int(draw() * (len(b) + 1))
    return ((c, a[:i] + b[j:]), (d, b[:j] + a[i:])), None


def divide(chains: Sequence[Chain], idle: list[int], pool: StagePool, draw: Draw) -> Change | None:
    """One chain becomes two, its stages dealt out at random or cut in the middle."""
    c = _pick(chains, draw)
    chain = chains[c]
    if len(chain) < 2:
        return None
    if draw() < 0.5:
        at = 1 + int(draw() * (len(chain) - 1))
        return ((c, chain[:at]), (len(chains), chain[at:])), None
    share = draw()
    marks = [draw() < share for _ in chain]
    a = [s for s, mark in zip(chain, marks, strict=True) if mark]
    b = [s for s, mark in zip(chain, marks, strict=True) if not mark]
    return (((c, a), (len(chains), b)), None) if a and b else None


#: (move, weight, needs links that bind or ends that differ, needs room for several chains)
MOVES: tuple[tuple[Move, float, bool, bool], ...] = (
    (transfer, 4.0, False, False),
    (swap, 4.0, False, False),
    (split, 1.5, False, False),
    (merge, 0.5, False, False),
    (retire, 0.2, False, False),
    (recruit, 0.5, False, False),
    (move_run, 2.0, True, False),
    (reverse_run, 1.0, True, False),
    (across, 3.0, False, True),
    (cross_over, 1.0, False, True),
    (divide, 0.5, False, True),
)
