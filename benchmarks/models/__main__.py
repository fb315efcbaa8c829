"""Print the table of models: `python -m benchmarks.models [--json] [--only PART]`."""

from __future__ import annotations

import sys

from benchmarks.table import run

PARTS = ("publishing", "pulling", "loading", "packed", "depths")

if __name__ == "__main__":
    sys.exit(run("benchmarks.models", PARTS))
