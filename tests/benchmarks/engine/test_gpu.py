"""The rows of graphics processors are made by code that also runs without one: of a tiny model, on
this processor.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.engine import gpu
from devnet.models.tiny_models import write_tiny_model


def test_rows_hold_rates_of_all_clients_and_the_share_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "STEPS", 4)
    monkeypatch.setattr(gpu, "WARM_STEPS", 2)
    folder = write_tiny_model(tmp_path / "model", "llama", layers=2, hidden=32)
    bandwidth = gpu.bandwidth_bytes_per_s("cpu", 2**20)
    assert bandwidth > 1e6
    rows = gpu.model_rows("Tiny", folder, "cpu", bandwidth)
    assert [row.item.split(", ")[2] for row in rows] == ["1 clients", "16 clients", "128 clients"]
    for row, reach in zip(rows, gpu.REACH.values(), strict=True):
        ratio, rate = map(float, re.findall(r"[\d.]+", row.ours)[:2])
        limit, share = (float(re.findall(r"[\d.]+", row.limit)[i]) for i in (0, 2))
        assert row.reached == (ratio >= reach) or abs(ratio - reach) < 0.01
        assert share == pytest.approx(100 * rate / limit, abs=2)


def test_there_are_no_rows_without_such_a_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    assert gpu.rows() == []
    assert "no graphics processor" in capsys.readouterr().err
