"""How does a view become HTML? Templates, filters, pictures, hashed addresses of static files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from client.dashboard import present
from client.dashboard.pictures.bars import bar, progress
from client.dashboard.pictures.days import HALF_WIDTH, WIDTH, columns
from client.dashboard.pictures.lines import line_chart
from client.dashboard.pictures.path import path
from client.dashboard.pictures.pipelines import pipelines
from client.dashboard.pictures.ring import ring
from core.protocol import ids
from core.protocol.errors import HeadraceError
from core.runtime.settings import Settings

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
NAVIGATION = (
    ("", (("/", "Overview"),)),
    ("Use", (("/chat", "Chat"), ("/models", "Models"), ("/jobs", "Jobs"), ("/connect", "Connect"))),
    ("Pay", (("/wallet", "Wallet"), ("/keys", "Keys"))),
    (
        "Look inside",
        (
            ("/network", "Network"),
            ("/history", "History"),
            ("/disputes", "Disputes"),
            ("/explorer", "Explorer"),
        ),
    ),
    ("Serve", (("/earnings", "Earnings"), ("/planner", "Planner"))),
)


@dataclass(frozen=True)
class StaticFile:
    """A file of the package as it is sent."""

    content: bytes
    media_type: str
    tag: str


class Renderer:
    """The templates, loaded once."""

    def __init__(self, settings: Settings) -> None:
        here = resources.files("client.dashboard")
        self.static = {
            file.name: _static_file(file.name, file.read_bytes())
            for file in here.joinpath("static").iterdir()
            if file.name.rpartition(".")[2] in TYPES
        }
        self._templates = Environment(
            loader=FileSystemLoader(str(here.joinpath("templates"))),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= present.filters(settings) | {
            "age": present.age,
            "moment": moment,
            "short_receipt": short_id,
            "plain_job": plain_job,
        }
        charts: dict[str, Callable[[float], str]] = {
            "compact": present.compact,
            "ms": lambda value: present.duration(value / 1000),
        }

        def chart(points: Any, label: str, show_as: str, now_ms: int, span_ms: int) -> Markup:
            return line_chart(points, label, charts[show_as], now_ms, span_ms)

        def money(units: float) -> str:
            exact = settings.show_token(int(units))
            return settings.money(exact) or exact

        def day_columns(
            days: Any, amount: str, label: str, show_as: str, width: int = WIDTH
        ) -> Markup:
            points = [(day.day, getattr(day, amount)) for day in days]
            return columns(points, label, (charts | {"token": money})[show_as], width)

        def stations(steps: Any, label: str) -> Markup:
            return path([(step.name, step.state) for step in steps], label)

        self._templates.globals |= {
            "navigation": NAVIGATION,
            "network_name": settings.network.name,
            "static": self._address,
            "bar": bar,
            "progress": progress,
            "pipelines": pipelines,
            "ring": ring,
            "line_chart": chart,
            "columns": day_columns,
            "half_width": HALF_WIDTH,
            "path": stations,
        }

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        return self._templates.get_template(template).render(values)

    def _address(self, name: str) -> str:
        return f"/static/{name}?v={self.static[name].tag}"


def _static_file(name: str, content: bytes) -> StaticFile:
    tag = hashlib.sha256(content).hexdigest()[:16]
    return StaticFile(content, TYPES[name.rpartition(".")[2]], tag)


def moment(at_s: int | None) -> str:
    """A time as a date, UTC."""
    if not at_s:
        return present.DASH
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def short_id(text: str) -> str:
    """`rcpt_0123456789…` → its first characters."""
    return text if len(text) <= 16 else f"{text[:14]}…"


def plain_job(job_id: str) -> str:
    """A job's printed id without a link."""
    try:
        return ids.short(ids.Kind.JOB, job_id)
    except HeadraceError:
        return job_id
