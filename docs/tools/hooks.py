"""What does the site's builder do besides?

It adds the pages that are made from the code, and a place in the menu for each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE.parents[1], HERE):  # the packages, and the generators
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from sitegen.site import generated  # noqa: E402

#: Where a page of the docs folder goes that no entry of the menu names.
SECTION_OF_OTHERS = "How it works"
_pages: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the pages; drop entries of the menu whose page does not exist; add pages that nobody
    listed.
    """
    _pages.clear()
    _pages.update(generated())
    there = {path.name for path in Path(config.docs_dir).glob("*.md")}
    menu: list[Any] = list(config.nav or [])
    listed = set(_targets(menu))
    _drop(menu, {"operations.md"} - set(_pages))
    for entry in menu:
        if isinstance(entry, dict) and SECTION_OF_OTHERS in entry:
            entry[SECTION_OF_OTHERS] += sorted(there - listed)
    config.nav = menu
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Hand the pages and files to the builder."""
    for path, content in _pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def _targets(menu: Any) -> Iterator[str]:
    if isinstance(menu, str):
        yield menu
    elif isinstance(menu, list):
        for entry in menu:
            yield from _targets(entry)
    elif isinstance(menu, dict):
        for entry in menu.values():
            yield from _targets(entry)


def _drop(menu: list[Any], missing: set[str]) -> None:
    menu[:] = [entry for entry in menu if not set(_targets(entry)) & missing or _is_section(entry)]
    for entry in menu:
        if _is_section(entry):
            for inner in entry.values():
                _drop(inner, missing)


def _is_section(entry: Any) -> bool:
    return isinstance(entry, dict) and any(isinstance(inner, list) for inner in entry.values())
