"""Is every part of some work done once, on one core and on several?"""

from __future__ import annotations

import threading

import pytest

from core.dispute.kernels import cores
from core.dispute.kernels.cores import on_all_cores, slices


@pytest.mark.parametrize("count", [1, 3])
def test_every_part_is_done_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(cores, "cores", lambda: count)
    done: list[int] = []
    on_all_cores(done.append, range(100))
    assert sorted(done) == list(range(100))


def test_parts_are_done_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cores", lambda: 2)
    monkeypatch.setattr(cores, "_threads", cores._threads.__wrapped__)
    meet = threading.Barrier(2, timeout=60)
    on_all_cores(lambda _: meet.wait(), range(2))


@pytest.mark.parametrize("count", [1, 2])
def test_what_goes_wrong_is_raised(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(cores, "cores", lambda: count)

    def odd(part: int) -> None:
        if part == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        on_all_cores(odd, range(5))


def test_slices_cover_all_without_overlap() -> None:
    for count in (0, 1, 7, 8, 9):
        numbers = list(range(count))
        assert [n for at in slices(count, 4) for n in numbers[at]] == numbers
        assert all(at.stop - at.start <= 4 for at in slices(count, 4))
