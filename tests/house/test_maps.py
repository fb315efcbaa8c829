"""The docstring of a room names what lies in it: one line for each file and sub-folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.tree import COLUMNS, PACKAGES, ROOT, parsed, tracked

#: Folders whose rooms have no maps yet; the folder and all that lies below it.
NOT_YET: tuple[str, ...] = ()
_LINE = re.compile(r"`([^`]+)` +\S")


def test_every_map_names_what_lies_in_its_room():
    wrong = {}
    for room in _rooms():
        named, there = _named(room), _content(room)
        twice = sorted({name for name in named if named.count(name) > 1})
        missing, gone = sorted(there - set(named)), sorted(set(named) - there)
        if twice or missing or gone:
            wrong[str(room)] = {"not named": missing, "not there": gone, "named twice": twice}
    assert not wrong, wrong


def test_every_map_fits_the_page():
    long = [
        (str(room), line)
        for room in _rooms()
        for line in _docstring(room).splitlines()
        if len(line) > COLUMNS
    ]
    assert not long, long


def _rooms() -> list[Path]:
    """The packages of the product in which more than one thing lies."""
    rooms = {p.parent for p in tracked() if p.name == "__init__.py" and p.parts[0] in PACKAGES}
    passed_over = {room for room in rooms for late in NOT_YET if room.is_relative_to(late)}
    return sorted(room for room in rooms - passed_over if len(_content(room)) > 1)


def _content(room: Path) -> set[str]:
    """Modules by name, other files with their suffix, sub-folders with a slash."""
    found = set()
    for path in tracked():
        if path.is_relative_to(room) and path != room / "__init__.py":
            name, *below = path.relative_to(room).parts
            found.add(f"{name}/" if below else name.removesuffix(".py"))
    return found


def _docstring(room: Path) -> str:
    path = room / "__init__.py"
    assert (ROOT / path).is_file(), path
    return ast.get_docstring(parsed(path)) or ""


def _named(room: Path) -> list[str]:
    """The names at the beginnings of a map's lines, below its first line."""
    lines = _docstring(room).splitlines()[1:]
    return [found[1] for line in lines if (found := _LINE.match(line))]
