"""A run that breaks off for the machine's sake costs another run, not the table."""

from __future__ import annotations

from typing import cast

import pytest

from benchmarks.engine.offline import _unbroken
from benchmarks.engine.rig.rig import Load, Ran, Rig
from core.protocol.errors import PeerUnreachable

RAN = Ran([], [], [], [], [])


class BreaksOff:
    """So many runs before one comes to its end."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.asked: list[tuple[Load, float | None]] = []

    async def run(self, load: Load, *, latency_ms: float | None = None) -> Ran:
        self.asked.append((load, latency_ms))
        self.left -= 1
        if self.left >= 0:
            raise PeerUnreachable("stage 1", "no sign of life for 0.75 s")
        return RAN


@pytest.mark.parametrize("times", [0, 1])
async def test_a_run_that_breaks_off_is_repeated_and_said(
    times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rig, load = BreaksOff(times), Load(1, 4, 2)
    assert await _unbroken(cast("Rig", rig), load, 64.0) is RAN
    assert rig.asked == [(load, 64.0)] * (times + 1)
    assert capsys.readouterr().err.count("no sign of life") == times


async def test_one_that_breaks_off_again_ends_the_table() -> None:
    with pytest.raises(PeerUnreachable):
        await _unbroken(cast("Rig", BreaksOff(2)), Load(1, 4, 2), None)
