"""How many tokens a second came, by their times, and how many could have come at most?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from benchmarks.engine.rig.steps import Step

Times = Sequence[Sequence[float]]
"""For each sequence, the seconds at which its tokens came."""


def steady_rate(times: Times) -> float:
    """Tokens per second while every sequence is being answered.

    That is from the last one's first token to the first one's last.
    Where that is less than a quarter of the whole, the rate of the whole, with its ragged ends.
    """
    began, ended = _steady(times)
    if ended <= began:
        whole = max(t[-1] for t in times) - min(t[0] for t in times)
        return (sum(map(len, times)) - 1) / whole
    return sum(sum(began < at <= ended for at in t) for t in times) / (ended - began)


def rate_without_bubbles(times: Times, stages: Sequence[Sequence[Step]]) -> float:
    """Tokens per second if the stage that computed longest had never waited."""
    began, ended = _steady(times)
    if ended <= began:
        began, ended = min(t[0] for t in times), max(t[-1] for t in times)
    tokens = sum(sum(began < at <= ended for at in t) for t in times)
    busiest_s = max(
        sum(max(0.0, min(ended, step.ended_s) - max(began, step.began_s)) for step in steps)
        for steps in stages
    )
    return tokens / busiest_s


def token_s(times: Sequence[float]) -> float:
    """Median seconds between tokens of one sequence."""
    return median(b - a for a, b in pairwise(times))


def _steady(times: Times) -> tuple[float, float]:
    """Begin and end of the time in which all are being answered; (0, 0) where it is too short."""
    began, ended = max(t[0] for t in times), min(t[-1] for t in times)
    whole = max(t[-1] for t in times) - min(t[0] for t in times)
    return (began, ended) if ended - began >= whole / 4 else (0.0, 0.0)
