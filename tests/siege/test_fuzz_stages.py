"""What miners make of changed messages; `python -m tests.siege.fuzz_stages` tries more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.protocol import wire
from miner.serving.stage import StageService
from tests.siege.fuzz_stages import fuzz_stages


async def test_changed_messages_are_answered_or_refused_by_name(tmp_path: Path) -> None:
    report = await fuzz_stages(tmp_path, inputs=500, seed=20)
    assert report.findings == []
    assert report.inputs == 500
    assert report.honest == 3, "one answer in each round, and one when the hostile peers have left"
    past_the_first_checks = {
        "Accepted",
        "JobOpened",
        "Submitted",
        "Carried",
        "Receipts",
        "Finished",
        "FileBytes",
    }
    assert past_the_first_checks <= report.outcomes.keys()


async def test_a_bug_in_a_handler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: StageService, channel: Any, message: wire.Progress) -> wire.Finished:
        return wire.Finished(requests=[{}[message.order_hash]])

    monkeypatch.setattr(StageService, "_progress", broken)
    report = await fuzz_stages(tmp_path, inputs=250, seed=20)
    assert any("KeyError" in found for found in report.findings)
    assert any("E-BUG-01" in found for found in report.findings)
