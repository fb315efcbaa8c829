"""Amounts per day as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from client.dashboard.pictures.lines import nice_ceiling
from client.dashboard.pictures.svg import element, picture, text, title

WIDTH, HALF_WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 480, 170, 84, 12, 24
WIDEST = 36.0


def columns(
    days: Sequence[tuple[str, int]], label: str, show: Callable[[int], str], width: int = WIDTH
) -> Markup:
    """(day, amount), oldest first; on as many units of width."""
    most = max((amount for _, amount in days), default=0)
    if not most:
        nothing = text(width / 2, HEIGHT / 2, "nothing yet", "hint", "middle")
        return picture(width, HEIGHT, f"{label}: nothing yet", nothing, class_="chart")
    top = nice_ceiling(most)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        parts.append(element("line", x1=LEFT, x2=width, y1=y, y2=y, class_="grid"))
        if (top * share).is_integer():
            parts.append(text(LEFT - 8, y + 4, show(int(top * share)), "tick", "end"))
    step = (width - LEFT) / len(days)
    for position, (day, amount) in enumerate(days):
        height = (HEIGHT - TOP - BOTTOM) * amount / top
        wide = min(WIDEST, step * 0.7)
        x, y = LEFT + step * (position + 0.5) - wide / 2, HEIGHT - BOTTOM - height
        place = {"x": x, "width": wide, "y": y, "height": height, "rx": 2}
        name = title(f"{day}: {show(amount)}")
        parts.append(element("rect", name, **place, class_="column"))
    parts.append(text(LEFT, HEIGHT - 6, days[0][0], "tick", "start"))
    if len(days) > 1:
        parts.append(text(width, HEIGHT - 6, days[-1][0], "tick", "end"))
    return picture(width, HEIGHT, label, *parts, class_="chart")
