"""Print the scheduler's table: `python -m benchmarks.scheduler [--json] [--only PART]`."""

from __future__ import annotations

import sys

from benchmarks.table import run

PARTS = (
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
)

if __name__ == "__main__":
    sys.exit(run("benchmarks.scheduler", PARTS))
