"""The stations of a dispute from left to right: behind us, here, ahead."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from client.dashboard.pictures.svg import element, picture, text

WIDTH, HEIGHT, MARGIN = 820, 64, 60


def path(stations: Sequence[tuple[str, str]], label: str) -> Markup:
    """(name, done | now | later) for each station."""
    last = max(1, len(stations) - 1)
    xs = [MARGIN + (WIDTH - 2 * MARGIN) * position / last for position in range(len(stations))]
    parts = []
    for position, (x, following) in enumerate(pairwise(xs)):
        state = "done" if stations[position + 1][1] != "later" else "later"
        parts.append(element("line", x1=x, x2=following, y1=22, y2=22, class_=f"way {state}"))
    for x, (name, state) in zip(xs, stations, strict=True):
        parts.append(element("circle", cx=x, cy=22, r=9, class_=f"station {state}"))
        if state == "done":
            parts.append(element("path", d=f"M{x - 4:.1f} 22 l3 3 l5 -6", class_="tick-mark"))
        parts.append(text(x, 52, name, f"station-name {state}", "middle"))
    return picture(WIDTH, HEIGHT, label, *parts, class_="path")
