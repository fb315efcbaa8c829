"""Which stage computes when, with one microbatch and with as many as the first stage chooses?

`python -m benchmarks.engine.pictures [FILE]` runs both on two real stages over links and writes
docs/pictures/microbatches.svg.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.engine.models import model_folder
from benchmarks.engine.rig.rates import steady_rate
from benchmarks.engine.rig.rig import Load, Rig
from benchmarks.engine.rig.steps import Step
from benchmarks.engine.serving import CUTS

FILE = Path("docs/pictures/microbatches.svg")
CLIENTS, NEW_TOKENS, LATENCY_MS = 32, 24, 64.0
SHOWN_S = 1.0
WIDTH, LEFT, TITLE, ROW = 960, 118, 28, 32
PALETTE = (
    "#8dd3c7",
    "#fdb462",
    "#bebada",
    "#fb8072",
    "#80b1d3",
    "#ffed6f",
    "#b3de69",
    "#fccde5",
    "#ccebc5",
    "#bc80bd",
    "#d9b38c",
    "#9ecae1",
)


@dataclass(frozen=True)
class Lane:
    """One stage in the shown second: its steps, and the share of the time that it computed."""

    steps: Sequence[Step]
    busy: float


@dataclass(frozen=True)
class Panel:
    """One run of the load."""

    title: str
    lanes: Sequence[Lane]


def lanes_of(stages: Sequence[Sequence[Step]], shown_s: float = SHOWN_S) -> list[Lane]:
    """The middle of a run in which every stage only decoded, shifted to begin at 0."""
    decoded = [[s for s in steps if not s.prompts] for steps in stages]
    first = max(steps[0].began_s for steps in decoded)
    last = min(steps[-1].ended_s for steps in decoded)
    began_s = max(first, (first + last - shown_s) / 2)
    ended_s = began_s + shown_s
    lanes = []
    for steps in decoded:
        inside = [s for s in steps if s.ended_s > began_s and s.began_s < ended_s]
        busy_s = sum(min(s.ended_s, ended_s) - max(s.began_s, began_s) for s in inside)
        shifted = [s._replace(ended_s=s.ended_s - began_s) for s in inside]
        lanes.append(Lane(shifted, busy_s / shown_s))
    return lanes


def colours_of(lanes: Sequence[Lane]) -> dict[str, int]:
    """A number for each microbatch, the same at every stage, in the order in which they come."""
    found: dict[str, int] = {}
    for step in sorted((s for lane in lanes for s in lane.steps), key=lambda s: s.began_s):
        found.setdefault(step.job, len(found) % len(PALETTE))
    return found


def svg_of(panels: Sequence[Panel]) -> str:
    """A row of bars for each stage, time from left to right, one colour for each microbatch."""
    scale = (WIDTH - LEFT - 12) / SHOWN_S
    stages = len(panels[0].lanes)
    panel_height = TITLE + stages * ROW + 14
    height = len(panels) * panel_height + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11" role="img" '
        'aria-label="Which stage computes which microbatch when">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        top = number * panel_height
        colours = colours_of(panel.lanes)
        lines.append(f'<text x="{LEFT}" y="{top + 19}" font-size="13">{escape(panel.title)}</text>')
        for row, lane in enumerate(panel.lanes):
            y = top + TITLE + row * ROW
            lines.append(
                f'<rect x="{LEFT}" y="{y}" width="{SHOWN_S * scale:.1f}" height="{ROW - 5}" '
                'fill="#f1f1f1"/>'
            )
            lines.append(
                f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">'
                f"stage {row}, {lane.busy:.0%} busy</text>"
            )
            lines += [_bar(step, y, scale, PALETTE[colours[step.job]]) for step in lane.steps]
    foot = len(panels) * panel_height
    for tenth in range(11):
        x = LEFT + tenth * SHOWN_S * scale / 10
        lines.append(f'<path d="M{x:.1f} {foot - 6}v5" stroke="#666"/>')
        text, anchor = f"{tenth * SHOWN_S * 100:.0f}", "middle"
        if tenth == 10:
            text, anchor = f"{text} ms", "end"
        lines.append(f'<text x="{x:.1f}" y="{foot + 11}" text-anchor="{anchor}">{text}</text>')
    lines.append(
        f'<text x="{LEFT}" y="{foot + 28}" fill="#444">'
        "a colour is a microbatch, the number in it its rows; grey: the stage waits</text>"
    )
    return "\n".join([*lines, "</svg>\n"])


def _bar(step: Step, y: float, scale: float, colour: str) -> str:
    first, last = max(0.0, step.began_s), min(SHOWN_S, step.ended_s)
    x, width = LEFT + first * scale, (last - first) * scale
    text = ""
    if width > 15:
        text = f'<text x="{x + width / 2:.1f}" y="{y + 18}" text-anchor="middle">{step.rows}</text>'
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 5}" fill="{colour}" '
        f'stroke="#fff" stroke-width="0.7"/>{text}'
    )


async def _panels() -> list[Panel]:
    load, found = Load(CLIENTS, new_tokens=NEW_TOKENS), []
    async with Rig(model_folder("llama"), [CUTS["llama"]], peer=False) as rig:
        for _ in range(2):  # the ring and its steps are learnt
            await rig.run(load, latency_ms=LATENCY_MS)
        for tickets, name in (
            (None, "as many microbatches as the first stage chooses"),
            (1, "one microbatch"),
        ):
            if tickets is not None:
                await rig.stages[0].ask("tickets", tickets=tickets)
            ran = await rig.run(load, latency_ms=LATENCY_MS)
            lanes = lanes_of(ran.steps)
            title = (
                f"{name}: {steady_rate(ran.times):.0f} tokens/s "
                f"({CLIENTS} clients, {LATENCY_MS:g} ms one way)"
            )
            found.append(Panel(title, lanes))
    return found[::-1]


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(svg_of(asyncio.run(_panels())), encoding="utf-8")
