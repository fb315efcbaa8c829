"""`python -m tests.house [--json]`: what can be counted, and how much of it is allowed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tests.house import reach, tree, ways

#: Lines of the product before the house was put in order: Python, Solidity and C.
LINES_BEFORE = 95_300 + 8_600 + 900


@dataclass(frozen=True)
class Row:
    item: str
    reach: int
    ours: int

    @property
    def reached(self) -> bool:
        return self.ours <= self.reach


def rows() -> Iterator[Row]:
    fullest = max(len(files) for files in tree.rooms().values())
    yield Row("files in the fullest room", tree.MAX_FILES, fullest)
    for title, files in ways.ways().items():
        yield Row(f"files crossed: {title[0].lower()}{title[1:]}", ways.MOST[title], len(files))
    yield Row("import circles", 0, len(tree.circles()))
    yield Row("class names with several meanings", 0, len(tree.shared_class_names()))
    lines = tree.line_count(tree.sources(".py", ".sol", ".c", ".h"))
    yield Row("lines of the product", LINES_BEFORE - 4_000, lines)
    long = sum(tree.long_lines(tree.sources(".py", ".sol", ".c", ".h")).values())
    yield Row("lines over 100 columns", 0, long)
    yield Row("definitions that no program reaches", 0, len(reach.unreached()))


def main() -> None:
    found = list(rows())
    if "--json" in sys.argv[1:]:
        print(json.dumps([asdict(row) | {"reached": row.reached} for row in found], indent=2))
        return
    for row in found:
        mark = "reached" if row.reached else "NOT reached"
        print(f"{row.item:48} {row.ours:>8,} of {row.reach:>8,}  {mark}")


if __name__ == "__main__":
    main()
