"""Does every part of a benchmark give its rows as JSON, in its shortest form?

Parts that are missing here take longer even then: they load a model, or start processes that do.
`benchmarks.engine --only offload_ring` starts four stages, `benchmarks.trust --only overhead` too,
and every part of `benchmarks.siege` starts a devnet: one of them stands for all.
"""

from __future__ import annotations

import json
import sys

import pytest
import torch

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
        "methods",
        "loss",
        "robustness",
    ),
    "gateway": (
        "help",
        "overhead",
        "throughput",
        "streams",
        "memory",
        "killed",
        "formats",
        "agents",
        "pages",
        "first",
    ),
    "engine": (
        "decode",
        "exactness",
        "overhead",
        "offload",
        "serving",
        "offline",
        "hops",
        "relayed",
        "upkeep",
        "failover",
        "gpu",
    ),
    "models": ("publishing", "pulling", "loading", "packed", "depths"),
    "siege": ("junk",),
    "network": ("matchers", "size"),
    "trust": (
        "disputes",
        "honest",
        "elements",
        "traces",
        "cheats",
        "steering",
        "slashed",
        "gains",
        "cost",
    ),
}

#: Parts that have no rows where there is no such device.
NEED_CUDA = ("gpu",)


#: Of programs whose parts may take longer than other tests.
MARKS = {"siege": pytest.mark.timeout(600)}


@pytest.mark.parametrize(
    ("program", "part"),
    [
        pytest.param(program, part, marks=MARKS.get(program, ()))
        for program, parts in PARTS.items()
        for part in parts
    ],
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
    assert rows or (part in NEED_CUDA and not torch.cuda.is_available())
    for row in rows:
        assert isinstance(row.pop("reached"), bool)
        assert set(row) == {"item", "reach", "ours", "peer", "limit"}
        assert all(isinstance(text, str) for text in row.values())
    assert code in (0, 1)
