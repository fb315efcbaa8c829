"""Is a machine that has no C said to be slower, and one with more cores to be quicker?"""

from __future__ import annotations

import pytest

from core.dispute.kernels import speed as module
from core.dispute.kernels.speed import Speed, speed


def of(monkeypatch: pytest.MonkeyPatch, cores: int, computes: bool, hashes: bool) -> Speed:
    """Beside what the disk takes, which is the same for all."""
    for name, answer in (("arithmetic", computes), ("hashing", hashes)):
        monkeypatch.setattr(module, name, lambda answer=answer: object() if answer else None)
    monkeypatch.setattr(module, "cores", lambda: cores)
    monkeypatch.setattr(module, "_MOVED_BYTES", 0)
    return speed()


def test_c_and_cores_make_a_machine_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (of(monkeypatch, cores, True, True) for cores in (1, 2))
    assert two.seconds(10**6, 10**9) == one.seconds(10**6, 10**9) / 2
    in_numpy = of(monkeypatch, 1, False, True)
    assert in_numpy.chunk_s == pytest.approx(10 * one.chunk_s)
    assert in_numpy.product_s == pytest.approx(10 * one.product_s)


def test_a_disk_is_no_quicker_for_more_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 10**6)
    monkeypatch.setattr(module, "hashing", lambda: object())
    assert speed().chunk_s == pytest.approx(256 / 200e6, rel=0.01)


def test_python_hashes_on_one_core_only(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed_s = [
        of(monkeypatch, cores, True, False).chunk_s - of(monkeypatch, cores, True, True).chunk_s
        for cores in (1, 64)
    ]
    assert hashed_s[0] == pytest.approx(hashed_s[1]) and hashed_s[0] > 0
