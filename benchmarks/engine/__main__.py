"""Print the engine's table: `python -m benchmarks.engine [--json] [--only PART]`."""

from __future__ import annotations

import os
import sys

from benchmarks.table import run

PARTS = (
    "decode",
    "exactness",
    "overhead",
    "offload",
    "offload_ring",
    "serving",
    "offline",
    "hops",
    "relayed",
    "upkeep",
    "failover",
    "gpu",
)

if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(run("benchmarks.engine", PARTS))
