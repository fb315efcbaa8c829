"""When did a stage's thread compute, how long and how many rows, and what else took time?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from miner.compute.stepper import Stepped

_LOOKS = 2000


class Step(NamedTuple):
    """One pass of a shard, in seconds of the monotonic clock that all processes share."""

    ended_s: float
    took_s: float
    cpu_s: float
    rows: int
    prompts: int
    """How many of its requests were fed part of a prompt."""
    job: str
    """The job of the first request in it: a microbatch has the same one at every stage."""
    decodes: int = 0
    """How many of its requests were fed a next token."""
    context: int = 0
    """Positions that it read: of decode steps up to their own, of prompts before the chunk."""

    @property
    def began_s(self) -> float:
        return self.ended_s - self.took_s


class StepLog:
    """`on_step` of a `Compute`."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._cpu_s = 0.0

    def add(self, done: Stepped, prompts: int) -> None:
        """Called in the compute thread, after each step."""
        cpu_s = time.thread_time()
        job = min((str(work.job) for work in done.ran), default="")
        decoding = [work.end for work in done.ran if work.is_decode]
        read = sum(decoding) + sum(work.first for work in done.ran if not work.is_decode)
        self._steps.append(
            Step(
                time.monotonic(),
                done.seconds,
                cpu_s - self._cpu_s,
                done.rows,
                prompts,
                job,
                len(decoding),
                read,
            )
        )
        self._cpu_s = cpu_s

    def take(self) -> list[Step]:
        """What was added since the last time."""
        steps, self._steps = self._steps, []
        return steps


def decode_s(steps: Sequence[Step]) -> float:
    """Median seconds of the steps that only decoded."""
    return median(step.took_s for step in steps if not step.prompts)


class Spent:
    """Processor time inside chosen functions, by name; calls inside calls count once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._depth = 0
        looks = [time.thread_time() for _ in range(_LOOKS)]
        self._look_s = (looks[-1] - looks[0]) / (_LOOKS - 1)

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Count what `owner.name` takes from now on."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return function(*args, **kwargs)
            self._depth += 1
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                spent = max(0.0, time.thread_time() - started - self._look_s)
                self.seconds[label] = self.seconds.get(label, 0.0) + spent

        setattr(owner, name, counted)

    def take(self) -> dict[str, float]:
        """Seconds by label since the last time."""
        seconds, self.seconds = self.seconds, {}
        return seconds
