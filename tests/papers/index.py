"""Which tests does a file's docstring name as holding an item, and do they exist?"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent


@cache
def defined() -> frozenset[str]:
    """The names of all tests of the planner and the matcher."""
    names: set[str] = set()
    for folder in ("scheduler", "matcher", "papers"):
        for path in (TESTS / folder).rglob("test_*.py"):
            names |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    return frozenset(names)


def rows(docstring: str) -> dict[int, list[str]]:
    """Tests by number of item, from rows "| number … | file: test_a, test_b; file: test_c |".

    A row goes on in indented lines.
    """
    found = {}
    for number, text in re.findall(r"^\| (\d+)(.*(?:\n +.*)*)", docstring, re.MULTILINE):
        held_by = re.sub(r"test_\w+:", "", text)  # the files
        found[int(number)] = re.findall(r"\btest_\w+", held_by)
    return found


def check(docstring: str, here: set[int], last: int) -> None:
    """Every number up to `last` is here or in the index, and every test of the index exists."""
    index = rows(docstring)
    assert here | set(index) == set(range(1, last + 1))
    for number, names in index.items():
        assert names, f"row {number} names no test"
        assert set(names) <= defined(), f"row {number}: {set(names) - defined()} are gone"
