"""A number over time, as a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from client.dashboard.pictures.svg import element, picture, text

WIDTH, HEIGHT = 480, 150
LEFT, RIGHT, TOP, BOTTOM = 54, 8, 12, 24

Points = Sequence[tuple[int, float | None]]  # (ms, value); None is a gap


def line_chart(
    points: Points, label: str, show: Callable[[float], str], now_ms: int, span_ms: int
) -> Markup:
    """The last `span_ms` from left to right, zero at the bottom, gaps where none was measured."""
    known = [value for _, value in points if value is not None]
    top = nice_ceiling(max(known, default=0.0))
    parts = [_grid(top, show) if known else _floor(), _times(span_ms)]
    for run in _runs(points):
        parts += _run(run, top, now_ms, span_ms)
    summary = (
        f"{label}: now {show(known[-1])}, most {show(max(known))}"
        if known
        else f"{label}: nothing yet"
    )
    if not known:
        parts.append(text(LEFT + (WIDTH - LEFT) / 2, HEIGHT / 2, "nothing yet", "hint", "middle"))
    return picture(WIDTH, HEIGHT, summary, *parts, class_="chart")


NOTHING = 1e-12


def nice_ceiling(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten; 1 for nothing, and for less than `NOTHING`."""
    if value < NOTHING:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value * (1 - 1e-9))


def _runs(points: Points) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for at_ms, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at_ms, value))
    return [run for run in runs if run]


def _run(run: list[tuple[int, float]], top: float, now_ms: int, span_ms: int) -> list[Markup]:
    spots = [(_x(at, now_ms, span_ms), _y(value, top)) for at, value in run]
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    floor = _y(0, top)
    area = f"M{spots[0][0]:.1f} {floor:.1f} L{path} L{spots[-1][0]:.1f} {floor:.1f} Z"
    x, y = spots[-1]
    return [
        element("path", d=area, class_="area"),
        element("path", d=f"M{path}", class_="line"),
        element("circle", cx=x, cy=y, r=3, class_="dot"),
    ]


def _grid(top: float, show: Callable[[float], str]) -> Markup:
    rows = []
    for share in (0.0, 0.5, 1.0):
        y = _y(top * share, top)
        rows.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        rows.append(text(LEFT - 8, y + 4, show(top * share), "tick", "end"))
    return element("g", Markup("").join(rows))


def _floor() -> Markup:
    """The axis alone: where nothing is known there is no scale."""
    y = _y(0.0, 1.0)
    return element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid")


def _times(span_ms: int) -> Markup:
    minutes = span_ms / 60_000
    ago = f"{minutes:g} min ago" if minutes < 60 else f"{minutes / 60:g} h ago"
    marks = ((LEFT, ago, "start"), (WIDTH - RIGHT, "now", "end"))
    return element(
        "g", Markup("").join(text(x, HEIGHT - 6, name, "tick", anchor) for x, name, anchor in marks)
    )


def _x(at_ms: int, now_ms: int, span_ms: int) -> float:
    share = 1 - (now_ms - at_ms) / span_ms
    return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, share))


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(1.0, value / top))
