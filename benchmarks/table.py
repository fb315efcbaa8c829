"""What is a benchmark's table: its rows, how it prints, and when it fails?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module


@dataclass(frozen=True)
class Row:
    """One item: what it must reach, our figure, the peer's, the limit that nobody can pass, and whether it is reached."""

    item: str
    reach: str
    ours: str
    peer: str
    limit: str
    reached: bool


def run(package: str, parts: Sequence[str]) -> int:
    """Run the parts (modules of the package with `rows()`) and print every row; 1 when one is not reached."""
    asked = argparse.ArgumentParser(
        prog=f"python -m {package}",
        description=f"Print the table: `python -m {package} [--json] [--only PART]`; exit 1 when a row is not reached.",
    )
    asked.add_argument("--json", action="store_true", help="rows as JSON")
    asked.add_argument("--only", choices=parts, help="one part of the table")
    options = asked.parse_args()
    rows: list[Row] = []
    for part in parts if options.only is None else (options.only,):
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        rows += import_module(f"{package}.{part}").rows()
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
    else:
        print(table(rows))
    return 0 if all(row.reached for row in rows) else 1


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
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
