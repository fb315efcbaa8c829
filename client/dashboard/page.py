"""What is a page: its address, its name, what it loads, and the templates that show it?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from client.dashboard.sources.sources import PageSources


@dataclass(frozen=True)
class PageRequest:
    """What a request for a page says."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    has_session: bool
    url: str

    @property
    def before(self) -> int | None:
        text = self.query.get("before", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


Load = Callable[[PageSources, PageRequest], Awaitable[Any]]


@dataclass(frozen=True)
class Page:
    """One address. `live` is a template that is sent again and again, `content` one sent once."""

    path: str
    name: str
    load: Load
    live: str = ""
    content: str = ""
    form: str = ""
    script: str = ""
    lead: str = ""
    here: str = ""


PAGES: list[Page] = []


def page(path: str, name: str, live: str = "", **more: str) -> Callable[[Load], Load]:
    """A decorator: the function reads what this page shows."""

    def add(load: Load) -> Load:
        PAGES.append(Page(path, name, load, live, **more))
        return load

    return add
