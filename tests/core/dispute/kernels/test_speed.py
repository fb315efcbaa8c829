"""Is a machine that has no C said to be slower, and one with more cores to be quicker?"""

from __future__ import annotations

import pytest

from core.dispute.kernels import speed as module
from core.dispute.kernels.speed import Speed, speed


def of(monkeypatch: pytest.MonkeyPatch, cores: int, *, has_compiler: bool) -> Speed:
    """Beside what the disk takes, which is the same for all."""
    monkeypatch.setattr(module, "has_compiler", lambda: has_compiler)
    monkeypatch.setattr(module, "cores", lambda: cores)
    monkeypatch.setattr(module, "_MOVED_BYTES", 0)
    return speed()


def test_c_and_cores_make_a_machine_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (of(monkeypatch, cores, has_compiler=True) for cores in (1, 2))
    assert two.seconds(10**6, 10**9) == one.seconds(10**6, 10**9) / 2
    without = of(monkeypatch, 1, has_compiler=False)
    assert without.chunk_s == pytest.approx(15 * one.chunk_s)
    assert without.product_s == pytest.approx(10 * one.product_s)
    assert of(monkeypatch, 64, has_compiler=False) == without, "numpy has its own threads"


def test_a_disk_is_no_quicker_for_more_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 10**6)
    monkeypatch.setattr(module, "has_compiler", lambda: True)
    assert speed().chunk_s == pytest.approx(256 / 200e6, rel=0.01)


def test_nothing_is_compiled_to_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CC", "/bin/false")
    assert speed().product_s < 1e-9, "a compiler that refuses is found out when a trace is built"
    monkeypatch.setenv("HEADRACE_CC", "")
    assert speed().product_s == pytest.approx(1 / 3e8)
