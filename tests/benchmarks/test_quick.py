"""Does every part of a benchmark give its rows as JSON, in its shortest form?

Parts that are missing here take longer even then: they load a model, or start processes that do.
"""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import table

PARTS = {
    "scheduler": (
        "score",
        "utility",
        "helix_flow",
        "helix_served",
        "simulator",
        "validation",
        "fabric",
        "routing",
        "load",
        "loss",
        "robustness",
    ),
    "gateway": ("help", "overhead", "throughput", "streams", "memory", "pages"),
    "engine": ("hops",),
    "trust": ("disputes", "honest", "elements", "cheats", "steering", "slashed", "cost"),
}


@pytest.mark.parametrize(
    ("program", "part"), [(program, part) for program, parts in PARTS.items() for part in parts]
)
def test_a_part_prints_its_rows_as_json(
    program: str,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["benchmarks", "--json", "--quick", "--no-profile", "--only", part]
    monkeypatch.setattr(sys, "argv", asked)
    code = table.run(f"benchmarks.{program}", (part,))
    rows = json.loads(capsys.readouterr().out)
    assert rows
    for row in rows:
        assert isinstance(row.pop("reached"), bool)
        assert set(row) == {"item", "reach", "ours", "peer", "limit"}
        assert all(isinstance(text, str) for text in row.values())
    assert code in (0, 1)
