"""Print the gateway's table: `python -m benchmarks.gateway [--json] [--only PART]`."""

from __future__ import annotations

import sys

from benchmarks.table import run

PARTS = (
    "overhead",
    "throughput",
    "streams",
    "memory",
    "killed",
    "formats",
    "agents",
    "pages",
    "loads",
    "help",
    "first",
)

if __name__ == "__main__":
    sys.exit(run("benchmarks.gateway", PARTS))
