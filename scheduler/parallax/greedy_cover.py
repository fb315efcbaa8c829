"""What can phase 1 do without a solver, and how far from the best can that be?"""

from __future__ import annotations

from scheduler.fleet.kinds import Pattern, Pool, covers, fewest_stages_at_least
from scheduler.parallax.parallax_allocate import Cover, Objective, ScoredK


def greedy_patterns(pool: Pool) -> tuple[Pattern, ...]:
    """Pipelines in turn: largest machine first, closed by the smallest that completes it.

    Finds at least one pipeline whenever the pool holds one.
    """
    left = list(pool.counts)
    patterns: list[Pattern] = []
    while True:
        pattern: list[int] = []
        while True:
            available = [t for t, count in enumerate(left) if count > pattern.count(t)]
            if not available or len(pattern) >= pool.layers:
                return tuple(sorted(patterns, key=lambda p: (len(p), p)))
            held = [pool.kinds[t] for t in pattern]
            closing = [t for t in available if covers([*held, pool.kinds[t]], pool.layers)]
            pattern.append(closing[-1] if closing else available[0])
            if closing:
                break
        for t in pattern:
            left[t] -= 1
        patterns.append(tuple(sorted(pattern)))


def allocate_greedily(pool: Pool, objective: Objective) -> Cover:
    """The best prefix of `greedy_patterns` by Z(k), with a bound that needs no solver."""
    patterns = greedy_patterns(pool)
    scores, stages = [], 0
    for k in range(1, pool.k_max + 1):
        at_least = fewest_stages_at_least(pool, k)
        if k <= len(patterns):
            stages += len(patterns[k - 1])
            z = objective.z(k, stages)
            scores.append(ScoredK(k, stages, at_least, z, objective.z(k, at_least)))
        else:
            scores.append(ScoredK(k, None, at_least, 0.0, objective.z(k, at_least)))
    if not patterns:
        return Cover((), 0.0, 0.0, tuple(scores), "greedy")
    best = max(scores, key=lambda scored: (scored.z, scored.k))
    z_at_most = max(scored.z_at_most for scored in scores)
    return Cover(patterns[: best.k], best.z, z_at_most, tuple(scores), "greedy")
