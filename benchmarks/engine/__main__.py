"""Print the table: `python -m benchmarks.engine [--json] [--only PART]`; exit 1 when a row is not reached."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from importlib import import_module

from benchmarks.engine.rows import Row, table

PARTS = ("decode", "exactness", "overhead", "offload")


def main() -> int:
    """Run the parts in order and print every row."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    asked.add_argument("--json", action="store_true", help="rows as JSON")
    asked.add_argument("--only", choices=PARTS, help="one part of the table")
    options = asked.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    rows: list[Row] = []
    for part in PARTS if options.only is None else (options.only,):
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        rows += import_module(f"benchmarks.engine.{part}").rows()
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
    else:
        print(table(rows))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
