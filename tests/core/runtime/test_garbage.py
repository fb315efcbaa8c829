"""What is passed over is not looked at, and what came after is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from core.runtime.garbage import look_seldom, pass_over_what_is_here


class Knot:
    """Garbage that only a look can find, once nobody has it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_garbage_goes_unless_it_was_there_when_all_was_passed_over() -> None:
    gone, kept = Knot(), Knot()
    was_there, went_before = weakref.ref(kept), weakref.ref(gone)
    del gone
    pass_over_what_is_here()
    assert went_before() is None  # a last look at everything
    del kept
    came_after = weakref.ref(Knot())
    gc.collect()
    assert came_after() is None
    assert was_there() is not None
    pass_over_what_is_here()
    assert was_there() is None  # the next call looks again at what was passed over


def test_looks_are_seldom() -> None:
    look_seldom()
    assert gc.get_threshold()[0] >= 10_000
