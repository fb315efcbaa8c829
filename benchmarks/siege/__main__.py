"""Print what attacks come to: `python -m benchmarks.siege [--json] [--only PART]`."""

from __future__ import annotations

import sys

from benchmarks.siege.besieged import besieged
from benchmarks.table import run

PARTS = (
    "cancels",
    "unopened",
    "junk",
    "streams",
    "frames",
    "records",
    "shown",
    "bodies",
    "uploads",
    "batches",
    "loris",
    "plans",
)

if __name__ == "__main__":
    with besieged():
        code = run("benchmarks.siege", PARTS)
    sys.exit(code)
