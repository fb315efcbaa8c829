"""Print the table: `python -m benchmarks.scheduler [--json] [--only TEXT]`; exit 1 when a row is not reached."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module

from benchmarks.scheduler.rows import Row

PARTS = (
    "score",
    "utility",
    "helix_flow",
    "helix_served",
    "simulator",
    "fabric",
    "routing",
    "load",
    "loss",
    "robustness",
)


def main() -> int:
    """Run the parts in order and print every row."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__)
    asked.add_argument("--json", action="store_true", help="rows as JSON")
    asked.add_argument("--only", choices=PARTS, help="one part of the table")
    options = asked.parse_args()
    rows: list[Row] = []
    for part in PARTS if options.only is None else (options.only,):
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        rows += import_module(f"benchmarks.scheduler.{part}").rows()
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
    else:
        print(_table(rows))
    return 0 if all(row.reached for row in rows) else 1


def _table(rows: list[Row]) -> str:
    head = ("item", "reach", "ours", "peer", "limit", "")
    lines = [head] + [
        (r.item, r.reach, r.ours, r.peer, r.limit, "reached" if r.reached else "NOT REACHED")
        for r in rows
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())
