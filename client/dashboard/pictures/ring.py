"""How does an answer travel? The requester and the machines of one chain, in a circle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from client.dashboard.pictures.svg import element, link, picture, text, title

WIDTH, HEIGHT = 760, 330
CARD, SMALL_CARD = (158, 78), (104, 46)
#: Up to so many machines have a card with everything, and a card with their name; then dots.
MOST_CARDS, MOST_SMALL = 6, 13
DOT = 7
RADIUS_YOU = 30


@dataclass(frozen=True)
class RingStage:
    """A machine of the chain. `load` is the share of its slots that are taken, 0 to 1."""

    name: str
    href: str
    layers: str
    memory: str
    load: float
    kind: str  # serving, or what else it is
    link_ms: float | None = None  # one way to the next machine


def ring(stages: Sequence[RingStage], label: str) -> Markup:
    """Clockwise from the requester, who is at the left and gets the tokens back."""
    card = CARD if len(stages) <= MOST_CARDS else SMALL_CARD
    places = [_place(position, len(stages) + 1, card) for position in range(len(stages) + 1)]
    parts = []
    is_busy = any(stage.load for stage in stages)
    for position, (at, to) in enumerate(zip(places, [*places[1:], places[0]], strict=True)):
        ends = {"x1": at[0], "y1": at[1], "x2": to[0], "y2": to[1]}
        parts.append(element("line", **ends, class_="way flow" if is_busy else "way"))
        known = stages[position - 1].link_ms if position else None
        if known is not None and position < len(stages):
            parts += _time((at[0] + to[0]) / 2, (at[1] + to[1]) / 2, f"{known:.3g} ms")
    parts += _you(*places[0])
    small = len(stages) > MOST_CARDS
    for stage, (x, y) in zip(stages, places[1:], strict=True):
        body = _dot if len(stages) > MOST_SMALL else _small if small else _card
        said = f"{stage.name}, layers {stage.layers}, {stage.kind}, {stage.load:.0%} of its slots"
        parts.append(link(stage.href, title(said), *body(stage, x, y)))
    return picture(WIDTH, HEIGHT, label, *parts, class_="ring", role="group")


def _place(position: int, count: int, card: tuple[int, int]) -> tuple[float, float]:
    """On an ellipse in which all cards fit, from its left end over the top."""
    angle = math.pi + 2 * math.pi * position / count
    across, down = (WIDTH - card[0]) / 2 - 6, (HEIGHT - card[1]) / 2 - 6
    return WIDTH / 2 + across * math.cos(angle), HEIGHT / 2 + down * math.sin(angle)


def _you(x: float, y: float) -> list[Markup]:
    return [
        element("circle", cx=x, cy=y, r=RADIUS_YOU, class_="you"),
        text(x, y + 4, "you", "you-name", "middle"),
    ]


def _time(x: float, y: float, shown: str) -> list[Markup]:
    width = 7.0 * len(shown) + 8
    back = {"x": x - width / 2, "y": y - 10, "width": width, "height": 20, "rx": 10}
    return [
        element("rect", **back, class_="time-back"),
        text(x, y + 4, shown, "link-ms", "middle"),
    ]


def _card(stage: RingStage, x: float, y: float) -> list[Markup]:
    width, height = CARD
    left, top = x - width / 2, y - height / 2
    return [
        *_box(stage, left, top, CARD),
        text(left + 12, top + 22, stage.name, "box-name"),
        text(left + 12, top + 40, f"layers {stage.layers}", "box-note"),
        text(left + width - 12, top + 40, stage.memory, "box-note", "end"),
        *_load(stage, left + 12, top + height - 22, width - 24),
    ]


def _small(stage: RingStage, x: float, y: float) -> list[Markup]:
    left, top = x - SMALL_CARD[0] / 2, y - SMALL_CARD[1] / 2
    return [
        *_box(stage, left, top, SMALL_CARD),
        text(x, top + 20, stage.name, "box-name", "middle"),
        *_load(stage, left + 8, top + 30, SMALL_CARD[0] - 16),
    ]


def _dot(stage: RingStage, x: float, y: float) -> list[Markup]:
    return [element("circle", cx=x, cy=y, r=DOT, class_=f"box {stage.kind}")]


def _box(stage: RingStage, left: float, top: float, size: tuple[int, int]) -> list[Markup]:
    place = {"x": left, "y": top, "width": size[0], "height": size[1], "rx": 10}
    return [
        element("rect", **place, class_="box-back"),
        element("rect", **place, class_=f"box {stage.kind}"),
    ]


def _load(stage: RingStage, left: float, top: float, width: float) -> list[Markup]:
    """Slots taken, as a bar."""
    place = {"x": left, "y": top, "height": 7, "rx": 3.5}
    filled = max(7.0, width * min(1.0, stage.load)) if stage.load else 0.0
    return [
        element("rect", **place, width=width, class_="bar-back"),
        element("rect", **place, width=filled, class_="bar-accent"),
    ]
