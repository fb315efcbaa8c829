"""Is a stage's time counted once, and under the right name?"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engine.rig.steps import Spent, Step, StepLog, decode_s


def _work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class _Tree:
    def outer(self) -> str:
        self.inner()
        return "out"

    def inner(self) -> None:
        _work(0.02)


def test_a_call_inside_a_call_counts_once() -> None:
    class Tree(_Tree):
        pass

    spent = Spent()
    spent.watch(Tree, "outer", "outer")
    spent.watch(Tree, "inner", "inner")
    assert Tree().outer() == "out"
    Tree().inner()
    seconds = spent.take()
    assert set(seconds) == {"outer", "inner"}
    assert all(0.02 <= s < 0.04 for s in seconds.values())
    assert spent.take() == {}


def test_a_call_that_raises_is_counted_and_raises() -> None:
    def fail() -> None:
        raise ValueError("no")

    owner: Any = SimpleNamespace(fail=fail)
    spent = Spent()
    spent.watch(owner, "fail", "failing")
    for _ in range(2):
        with pytest.raises(ValueError):
            owner.fail()
    assert "failing" in spent.take()


def test_steps_are_taken_once_and_know_when_they_began() -> None:
    log = StepLog()
    works = [
        SimpleNamespace(job="b", first=7, end=8, is_decode=True),
        SimpleNamespace(job="a", first=128, end=148, is_decode=False),
    ]
    done: Any = SimpleNamespace(seconds=0.5, rows=21, ran=works)
    before = time.monotonic()
    log.add(done, 1)
    (step,) = log.take()
    assert step.ended_s >= before and step.began_s == step.ended_s - 0.5
    assert (step.rows, step.prompts, step.job) == (21, 1, "a")
    assert (step.decodes, step.context) == (1, 8 + 128)
    assert log.take() == []


def test_prompts_are_no_measure_of_a_decode_step() -> None:
    steps = [Step(0, took, 0, 1, prompts, "") for took, prompts in ((9.0, 1), (1.0, 0), (3.0, 0))]
    assert decode_s(steps) == 2.0
