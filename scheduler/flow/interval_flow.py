"""What is the largest flow over machines that serve intervals, and which serves what?

Slices are intervals, so the largest T is a minimum cut found by Newton's method (Dinkelbach 1967),
and its shares come from serving each segment from the slice that ends first (Glover 1967). Both are
exact and need no solver.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.fleet.arrays import Floats

TINY = 1e-9


def largest_flow(
    spans: Sequence[tuple[int, int]], rates: Sequence[float], widths: Floats
) -> tuple[float, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """(largest T, segments short together): T is the least Σ rates that touch S / layers of S."""
    many = len(widths)
    inside = np.zeros((many + 1, many + 1))  # [a, b]: rates of slices within segments a … b - 1
    for (a, b), rate in zip(spans, rates, strict=True):
        inside[a, b] += rate
    inside = np.cumsum(np.cumsum(inside[::-1], axis=0)[::-1], axis=1)
    before = np.concatenate([[0.0], np.cumsum(widths)])
    total, layers = float(sum(rates)), float(before[-1])
    flow, short = total / layers, np.ones(many, dtype=np.bool_)
    for _ in range(many + 10):
        spare = _left_out(inside, before, flow)
        rest = np.ones(many, dtype=np.bool_)
        for a, b in spare:
            rest[a:b] = False
        if not rest.any():
            break
        # Summed anew: next to a machine a million times faster, a difference would leave nothing of
        # the slow ones.
        touching = sum(r for (a, b), r in zip(spans, rates, strict=True) if rest[a:b].any())
        less = touching / float(widths[rest].sum())
        if less >= flow * (1 - 1e-12):
            break
        flow, short = less, rest
    return max(0.0, flow), short


def _left_out(inside: Floats, before: Floats, flow: float) -> list[tuple[int, int]]:
    """Disjoint runs of segments with most rate of their own beyond what `flow` asks of them."""
    many = len(before) - 1
    best = np.zeros(many + 1)
    start = np.full(many + 1, -1)
    for b in range(1, many + 1):
        best[b] = best[b - 1]
        gains = best[:b] + inside[:b, b] - flow * (before[b] - before[:b])
        a = int(np.argmax(gains))
        if gains[a] > best[b] + TINY * flow:
            best[b], start[b] = gains[a], a
    runs, b = [], many
    while b > 0:
        if start[b] < 0:
            b -= 1
        else:
            runs.append((int(start[b]), b))
            b = int(start[b])
    return runs


def share_out(
    spans: Sequence[tuple[int, int]], rates: Sequence[float], widths: Floats, flow: float
) -> Floats:
    """[slice, segment] tokens/s that serve `flow` everywhere, by the slice that ends first."""
    shares = np.zeros((len(spans), len(widths)))
    left = [float(rate) for rate in rates]
    order = sorted(range(len(spans)), key=lambda i: (spans[i][1], spans[i][0]))
    for g, width in enumerate(widths):
        need = flow
        for i in order:
            if need <= 0:
                break
            if spans[i][0] <= g < spans[i][1] and left[i] > 0:
                take = min(need, left[i] / width)
                shares[i, g] = take
                left[i] -= take * width
                need -= take
    return shares
