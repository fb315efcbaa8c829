"""Amounts per day as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from client.dashboard.pictures.lines import nice_ceiling
from client.dashboard.pictures.svg import element, picture, text, title

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 170, 84, 12, 24
WIDEST = 36.0


def columns(days: Sequence[tuple[str, int]], label: str, show: Callable[[int], str]) -> Markup:
    """(day, amount), oldest first."""
    top = nice_ceiling(max((amount for _, amount in days), default=0))
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        parts.append(element("line", x1=LEFT, x2=WIDTH, y1=y, y2=y, class_="grid"))
        parts.append(text(LEFT - 8, y + 4, show(int(top * share)), "tick", "end"))
    step = (WIDTH - LEFT) / max(1, len(days))
    for position, (day, amount) in enumerate(days):
        height = (HEIGHT - TOP - BOTTOM) * amount / top
        width = min(WIDEST, step * 0.7)
        x, y = LEFT + step * (position + 0.5) - width / 2, HEIGHT - BOTTOM - height
        place = {"x": x, "width": width, "y": y, "height": height, "rx": 2}
        name = title(f"{day}: {show(amount)}")
        parts.append(element("rect", name, **place, class_="column"))
    if days:
        parts.append(text(LEFT, HEIGHT - 6, days[0][0], "tick", "start"))
        if len(days) > 1:
            parts.append(text(WIDTH, HEIGHT - 6, days[-1][0], "tick", "end"))
    else:
        parts.append(text((LEFT + WIDTH) / 2, HEIGHT / 2, "nothing yet", "hint", "middle"))
    return picture(WIDTH, HEIGHT, label, *parts, class_="chart")
