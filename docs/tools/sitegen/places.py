"""Where is what the pages are made from?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: The packages that people install.
PACKAGES = ("core", "scheduler", "matcher", "miner", "client", "devnet")
#: Program → module and attribute of its App.
PROGRAMS = {
    "miner": "miner.cli",
    "client": "client.cli",
    "auditor": "client.auditor_cli",
    "matcher": "matcher.cli",
    "devnet": "devnet.cli",
}


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Every module of the packages that has to do with errors, by its dotted name, parsed."""
    return tuple(_walk())


def _walk() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            if (
                "errors" in text or '"E-' in text
            ):  # parsing all of them takes most of the build's time
                yield name, ast.parse(text)
