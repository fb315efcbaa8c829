"""Which machine holds which layers, chained as they serve, and how fast are their links?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from client.dashboard.pictures.svg import element, link, picture, text, title

WIDTH, LEFT, RIGHT = 760, 12, 12
BOX = 46
#: From a row's top to its boxes, without and with the times of links above them.
ABOVE, ABOVE_WITH_LINKS, BELOW = 20, 36, 8
AXIS = 26
LABEL_PER_CHARACTER = 6.2
NARROW = 92  # a box narrower than this shows its name above itself


@dataclass(frozen=True)
class Box:
    """A machine's span of layers [start, end)."""

    name: str
    href: str
    start: int
    end: int
    kind: str  # serving, loading, standby, gone
    note: str = ""
    load: float | None = None  # the share of its slots that are taken
    link_ms: float | None = None  # one way to the next box of the row


@dataclass(frozen=True)
class Row:
    """One chain, or machines side by side that are in none."""

    label: str
    boxes: tuple[Box, ...]
    is_chain: bool = True


def pipelines(rows: Sequence[Row], layers: int, label: str) -> Markup:
    """A row per chain over one axis of layers."""
    height = AXIS + (sum(map(_height, rows)) or ABOVE + BOX + BELOW) + 8
    parts = [_axis(layers, height)]
    if not rows:
        parts.append(text(WIDTH / 2, AXIS + BOX, "no machine serves this model", "hint", "middle"))
    top = AXIS
    for row in rows:
        boxes_at = top + _above(row)
        behind = LABEL_PER_CHARACTER * len(row.label)
        parts.append(
            element("rect", x=LEFT, y=top + 3, width=behind, height=15, class_="label-back")
        )
        parts.append(text(LEFT, top + 14, row.label, "row-label"))
        parts += [_box(box, layers, boxes_at) for box in row.boxes]
        if row.is_chain:
            parts += _links(row.boxes, layers, boxes_at)
        top += _height(row)
    return picture(WIDTH, height, label, *parts, class_="pipelines", role="group")


def _above(row: Row) -> int:
    known = row.is_chain and any(box.link_ms is not None for box in row.boxes[:-1])
    return ABOVE_WITH_LINKS if known else ABOVE


def _height(row: Row) -> int:
    return _above(row) + BOX + BELOW


def _x(layer: float, layers: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * layer / max(1, layers)


def _axis(layers: int, height: float) -> Markup:
    step = max(1, next((s for s in (1, 2, 5, 10, 20, 50, 100) if layers / s <= 12), layers // 10))
    parts = []
    for layer in [*range(0, layers, step), layers]:
        if layer != layers and layers - layer < step * 0.6:
            continue
        x = _x(layer, layers)
        anchor = "start" if layer == 0 else "end" if layer == layers else "middle"
        parts.append(element("line", x1=x, x2=x, y1=18, y2=height - 4, class_="grid"))
        parts.append(text(x, 12, f"{layer}", "tick", anchor))
    return element("g", Markup("").join(parts))


def _box(box: Box, layers: int, top: float) -> Markup:
    left, right = _x(box.start, layers) + 1, _x(box.end, layers) - 1
    width, middle = max(2.0, right - left), (left + right) / 2
    parts = [
        title(f"{box.name}, layers {box.start}–{box.end - 1}, {box.kind}. {box.note}"),
        element("rect", x=left, y=top, width=width, height=BOX, rx=7, class_=f"box {box.kind}"),
    ]
    if width >= NARROW:
        parts.append(text(middle, top + 19, box.name, "box-name", "middle"))
        parts.append(text(middle, top + 34, span_of(box.start, box.end), "box-note", "middle"))
    else:
        parts.append(text(middle, top + 27, span_of(box.start, box.end), "box-note", "middle"))
    if box.load is not None and width > 24:
        place = {"x": left + 8, "y": top + BOX - 7, "height": 3, "rx": 1.5}
        parts.append(element("rect", **place, width=width - 16, class_="bar-back"))
        parts.append(element("rect", **place, width=(width - 16) * box.load, class_="bar-accent"))
    return link(box.href, *parts)


def span_of(start: int, end: int) -> str:
    """Layers [start, end) as people count them: `4–11`."""
    return f"{start}–{end - 1}" if end - start > 1 else f"{start}"


def _links(boxes: Sequence[Box], layers: int, top: float) -> list[Markup]:
    """One-way times to the next machine, over the cut between both; none where not measured."""
    parts = []
    for box in boxes[:-1]:
        x = _x(box.end, layers)
        parts.append(element("circle", cx=x, cy=top + BOX / 2, r=3.5, class_="joint"))
        if box.link_ms is not None:
            parts.append(text(x, top - 5, f"{box.link_ms:.3g} ms ▸", "link-ms", "middle"))
    return parts
