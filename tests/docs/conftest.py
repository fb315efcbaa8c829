"""The generators on the path, and the built site: once for all workers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))


class _Reader(HTMLParser):
    """What a page links to, what it loads, and which places of it can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
            return
        self.loaded += [given[n] for n in ("src", "href", "data", "poster", "action") if n in given]
        self.loaded += [part.split()[0] for part in given.get("srcset", "").split(",") if part]

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @cached_property
    def all_text(self) -> str:
        return "".join(self.text)


@dataclass(frozen=True)
class Site:
    """The folder of built pages."""

    folder: Path

    @cached_property
    def pages(self) -> dict[str, _Reader]:
        """Every HTML page by its path."""
        found = {}
        for path in sorted(self.folder.rglob("*.html")):
            reader = _Reader()
            reader.feed(path.read_text(encoding="utf-8"))
            found[str(path.relative_to(self.folder))] = reader
        return found

    def text(self, page: str) -> str:
        """What a reader of the page sees, roughly."""
        return self.pages[page].all_text


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """`make docs` into a folder of this run; a warning of the builder fails it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "site"
    with FileLock(shared / "site.lock"):
        if not (folder / "index.html").exists():
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
    return Site(folder)
