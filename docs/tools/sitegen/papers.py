"""Where is each published system in the code?

From `docs/tools/papers.toml`, whose every name is looked up.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sitegen.places import ROOT
from sitegen.text import code, prose, table

FILE = ROOT / "docs" / "tools" / "papers.toml"


@dataclass(frozen=True)
class Entry:
    """One thing that a paper says, and the names of what does it here: dotted Python, or paths of
    Solidity files.
    """

    where: str
    what: str
    code: tuple[str, ...]
    ours: str = ""


@dataclass(frozen=True)
class Paper:
    """One system."""

    name: str
    title: str
    note: str
    entries: tuple[Entry, ...]


def papers() -> tuple[Paper, ...]:
    """All five, in the order of the file."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(
        Paper(
            paper["name"],
            paper["title"],
            paper.get("note", ""),
            tuple(
                Entry(e["where"], e["what"], tuple(e["code"]), e.get("ours", ""))
                for e in paper["entry"]
            ),
        )
        for paper in document["paper"]
    )


def resolve(name: str) -> Any:
    """What a name of the map stands for. Raises LookupError when there is no such thing."""
    if "/" in name:
        path, _, function = name.partition("#")
        if not (ROOT / path).exists():
            raise LookupError(f"there is no {path}")
        if function and f"function {function}(" not in (ROOT / path).read_text(encoding="utf-8"):
            raise LookupError(f"{path} has no function {function}")
        return ROOT / path
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        module = ".".join(parts[:size])
        try:
            found: Any = import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            continue
        for attribute in parts[size:]:
            if not hasattr(found, attribute):
                raise LookupError(f"{name}: {found!r} has no {attribute}")
            found = getattr(found, attribute)
        return found
    raise LookupError(f"there is no module {name}")


def papers_page() -> dict[str, str]:
    """`papers.md`."""
    parts = [_HEAD]
    for paper in papers():
        parts.append(f"## {paper.name} {{#{paper.name.lower()}}}\n")
        parts.append(f"*{paper.title}*\n")
        if paper.note:
            parts.append(f"{prose(paper.note)}\n")
        rows = (
            (e.where, prose(e.what), "<br>".join(code(name) for name in e.code), prose(e.ours))
            for e in paper.entries
        )
        parts.append(table(("in the paper", "what", "here", "what differs"), rows))
    return {"papers.md": "\n".join(parts)}


_HEAD = """# Five papers and their code

Headrace builds on five published systems. Each table says where a section or an equation of the
paper is in the code. Names with dots are Python modules, functions and classes; names with slashes
are files, `#` is a function in them. A test looks up every one.
"""
