"""Print the table of networks: `python -m benchmarks.network [--json] [--only PART]`."""

from __future__ import annotations

import sys

from benchmarks.table import run

PARTS = ("walk", "matchers", "size")

if __name__ == "__main__":
    sys.exit(run("benchmarks.network", PARTS))
