"""How much of something is used, as a bar."""

from __future__ import annotations

from markupsafe import Markup

from client.dashboard.pictures.svg import element, picture

WIDTH, HEIGHT = 240, 10
WARN_AT, FULL_AT = 0.75, 0.95


def bar(part: float, whole: float, label: str) -> Markup:
    """A bar that fills from left to right; it changes its colour when little is left."""
    share = 0.0 if whole <= 0 else min(1.0, max(0.0, part / whole))
    level = "bad" if share >= FULL_AT else "warn" if share >= WARN_AT else "good"
    return _bar(share, label, level)


def progress(part: float, whole: float, label: str) -> Markup:
    """A bar of work done; full is good."""
    return _bar(0.0 if whole <= 0 else min(1.0, max(0.0, part / whole)), label, "accent")


def _bar(share: float, label: str, level: str) -> Markup:
    back = {"x": 0, "y": 0, "height": HEIGHT, "rx": 5}
    filled = max(HEIGHT, WIDTH * share) if share else 0
    return picture(
        WIDTH,
        HEIGHT,
        f"{label}: {share:.0%}",
        element("rect", **back, width=WIDTH, class_="bar-back"),
        element("rect", **back, width=filled, class_=f"bar-{level}"),
        class_="bar",
    )
