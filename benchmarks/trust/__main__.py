"""Print the trust table: `python -m benchmarks.trust [--json] [--only PART]`."""

from __future__ import annotations

import os
import sys

from benchmarks.table import run

PARTS = (
    "honest",
    "adversary",
    "natural",
    "elements",
    "traces",
    "cheats",
    "steering",
    "disputes",
    "slashed",
    "gains",
    "cost",
    "overhead",
)

if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(run("benchmarks.trust", PARTS))
