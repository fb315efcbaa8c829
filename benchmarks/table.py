"""What is a benchmark's table: its rows, how it prints, and when it fails?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from unittest.mock import patch

from benchmarks.spied import profile


@dataclass(frozen=True)
class Row:
    """One item: what it must reach, our figure, a peer's, the limit no plan passes, and the
    verdict.
    """

    item: str
    reach: str
    ours: str
    peer: str
    limit: str
    reached: bool


def run(package: str, parts: Sequence[str]) -> int:
    """Run the parts (modules of the package with `rows()`) and print every row; 1 when one is
    missed.

    A part with a missed row runs once more under py-spy. What took its time is printed below the
    table, or in JSON with those rows. With `--quick` a part's constants take the values of its
    `QUICK`, and its figures mean nothing. With `--minutes` a part that searches does so for longer.
    """
    asked = argparse.ArgumentParser(
        prog=f"python -m {package}",
        description=f"Print the table: `python -m {package} [--json] [--only PART]`; "
        "exit 1 when a row is not reached.",
    )
    asked.add_argument("--json", action="store_true", help="rows as JSON")
    asked.add_argument("--only", choices=parts, help="one part of the table")
    asked.add_argument(
        "--no-profile", action="store_true", help="do not look where time goes in rows not reached"
    )
    asked.add_argument(
        "--quick", action="store_true", help="the shortest form: every part runs, no figure counts"
    )
    asked.add_argument("--minutes", type=float, help="of each search, in parts that search")
    options = asked.parse_args()
    by_part: dict[str, list[Row]] = {}
    for part in parts if options.only is None else (options.only,):
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        module = import_module(f"{package}.{part}")
        other = dict(getattr(module, "QUICK", {})) if options.quick else {}
        if options.minutes is not None and hasattr(module, "MINUTES"):
            other["MINUTES"] = options.minutes
        # What a part itself prints or logs is no part of the table.
        with (
            redirect_stdout(sys.stderr),
            patch.multiple(module, **other) if other else nullcontext(),
        ):
            by_part[part] = module.rows()
        # The whole takes more than an hour: what a part came to is not lost with a later one.
        print(table(by_part[part]), file=sys.stderr, flush=True)
    missed = [part for part, rows in by_part.items() if not all(row.reached for row in rows)]
    # A profile takes as long as its part did: what is known is said before.
    if not options.json:
        print(table([row for rows in by_part.values() for row in rows]), flush=True)
    profiles: dict[str, list[str]] = {}
    for part in () if options.no_profile else missed:
        print(f"looking where time goes in {part} …", file=sys.stderr, flush=True)
        profiles[part] = profile(package, part)
    if options.json:
        found = [_told(row, profiles.get(part)) for part, rows in by_part.items() for row in rows]
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        for part, lines in profiles.items():
            print("\n".join([f"\nwhat took the time in {part}:", *lines]))
    return 1 if missed else 0


def _told(row: Row, profiled: list[str] | None) -> dict[str, object]:
    # A comparison of numpy's numbers is a numpy bool, which JSON does not know.
    told: dict[str, object] = {**asdict(row), "reached": bool(row.reached)}
    return told if row.reached or profiled is None else {**told, "profile": profiled}


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
