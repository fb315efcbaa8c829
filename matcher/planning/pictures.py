"""What do plans look like, and what did they serve? Pictures in SVG.

A bar per machine over the layers it holds, coloured by the share of time that it computes; and one
picture that sets all methods side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.simulate.report import SimReport

WIDTH, LEFT, RIGHT, TOP, ROW = 900, 92, 46, 108, 13
#: Colours of 0, 25, 50, 75 and 100 % of the time: pale yellow to dark red.
SHADES = ((255, 250, 225), (254, 217, 118), (253, 141, 60), (227, 26, 28), (110, 0, 28))
INK, GREY, RULE = "#222", "#666", "#d8d8d8"


@dataclass(frozen=True)
class DrawnPlan:
    """A method's plan and how it served, with stages on a request's way and its largest flow."""

    file: str
    name: str
    idea: str
    placement: Placement
    stages: float
    flow_tokens_per_s: float
    report: SimReport


def mean_utilisation(report: SimReport) -> float:
    """Mean over machines of the share of time that they computed."""
    return fmean(node.utilisation for node in report.nodes)


def plan_svg(plan: DrawnPlan, fleet: Fleet, model: ModelShape, world: str) -> str:
    """A picture of a plan: machines by first layer from top to bottom, those that hold nothing
    last.
    """
    scale = (WIDTH - LEFT - RIGHT) / model.layers
    shards = sorted(plan.placement, key=lambda s: (s.layers.start, s.layers.end, s.machine_id))
    held = {shard.machine_id: shard.layers for shard in shards}
    idle = sorted(set(fleet.by_id) - set(held))
    busy = {node.machine_id: node.utilisation for node in plan.report.nodes}
    bottom = TOP + ROW * (len(shards) + len(idle))
    lines = _open(bottom + 62, f"{plan.name} on {world}")
    lines += [_text(12, 24, f"{plan.name}: {plan.idea}", size=16)]
    for i, (figure, what) in enumerate(figures(plan)):
        lines += [_text(12 + 150 * i, 56, figure, size=20), _text(12 + 150 * i, 72, what, GREY)]
    for layer in range(0, model.layers + 1, 10):
        x = LEFT + layer * scale
        lines.append(f'<path d="M{x:.1f} {TOP - 8}V{bottom + 2}" stroke="{RULE}"/>')
        lines.append(_text(x, TOP - 12, str(layer), GREY, anchor="middle"))
    lines.append(_text(LEFT - 8, TOP - 12, "layer", GREY, anchor="end"))
    for row, machine_id in enumerate([*held, *idle]):
        y, share = TOP + row * ROW, min(1.0, busy.get(machine_id, 0.0))
        lines.append(
            _text(LEFT - 8, y + 9, f"{machine_id} {fleet.by_id[machine_id].kind}", anchor="end")
        )
        if machine_id not in held:
            lines.append(_text(LEFT, y + 9, "holds nothing", GREY))
            continue
        layers = held[machine_id]
        x, width = LEFT + layers.start * scale, len(layers) * scale
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 2}" '
            f'fill="{_shade(share)}" '
            f'stroke="#555" stroke-width="0.6"/>'
        )
        lines.append(_text(x + width + 4, y + 9, f"{share:.0%}"))
    lines += _legend(bottom + 24)
    return "\n".join([*lines, "</svg>\n"])


def figures(plan: DrawnPlan) -> list[tuple[str, str]]:
    """(figure, what it is) of how a plan served, for people."""
    report = plan.report
    return [
        (f"{report.decode_tokens_per_s:,.0f} tokens/s", "output served"),
        (f"{report.decode.mean_s:.2f} s", "for a token, mean"),
        (f"{report.prompt.mean_s:.2f} s", "for a prompt, mean"),
        (f"{mean_utilisation(report):.0%}", "of the time machines compute"),
        (f"{plan.stages:.1f} stages", "on a request's way"),
        (f"{report.mean_in_flight:.0f}", "requests at a time"),
    ]


def overview_svg(plans: Sequence[DrawnPlan], world: str) -> str:
    """All methods side by side: what is served as a bar, coloured by how busy machines are, and the
    latencies.
    """
    row, left, right = 46, 150, 330
    bottom = 64 + row * len(plans)
    most = max(plan.report.decode_tokens_per_s for plan in plans)
    lines = _open(bottom + 62, f"All methods on {world}")
    lines.append(
        _text(12, 24, "Output tokens/s that each method's plan serves, all fed alike", size=16)
    )
    lines.append(_text(WIDTH - right + 8, 52, "s a token", GREY))
    lines.append(_text(WIDTH - right + 78, 52, "s a prompt", GREY))
    lines.append(_text(WIDTH - right + 156, 52, "busy", GREY))
    lines.append(_text(WIDTH - right + 206, 52, "stages", GREY))
    lines.append(_text(WIDTH - right + 262, 52, "max flow", GREY))
    for i, plan in enumerate(plans):
        y, report = 64 + i * row, plan.report
        width = (WIDTH - left - right - 60) * report.decode_tokens_per_s / most
        lines.append(_text(left - 10, y + 20, plan.name, size=13, anchor="end"))
        lines.append(
            f'<rect x="{left}" y="{y + 2}" width="{width:.1f}" height="{row - 18}" '
            f'fill="{_shade(mean_utilisation(report))}" stroke="#555" stroke-width="0.6"/>'
        )
        served = f"{report.decode_tokens_per_s:,.0f}"
        lines.append(_text(left + width + 6, y + 21, served, size=14))
        for x, figure in (
            (8, f"{report.decode.mean_s:.2f}"),
            (78, f"{report.prompt.mean_s:.2f}"),
            (156, f"{mean_utilisation(report):.0%}"),
            (206, f"{plan.stages:.1f}"),
            (262, f"{plan.flow_tokens_per_s:,.0f}"),
        ):
            lines.append(_text(WIDTH - right + x, y + 20, figure, size=12))
    lines += _legend(bottom + 24)
    return "\n".join([*lines, "</svg>\n"])


def _open(height: float, label: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" '
        f'height="{height:.0f}" font-family="Helvetica, Arial, sans-serif" role="img" '
        f'aria-label="{escape(label)}">',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>',
    ]


def _text(
    x: float, y: float, text: str, colour: str = INK, *, size: int = 10, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _legend(y: float) -> list[str]:
    lines = [_text(12, y + 10, "colour: share of the time that a machine computes", GREY)]
    for i in range(11):
        x = 270 + 26 * i
        lines.append(
            f'<rect x="{x}" y="{y}" width="26" height="12" fill="{_shade(i / 10)}" stroke="#999" '
            'stroke-width="0.4"/>'
        )
        if i % 5 == 0:
            lines.append(_text(x + 13, y + 25, f"{i * 10} %", GREY, anchor="middle"))
    return lines


def _shade(share: float) -> str:
    at = min(1.0, max(0.0, share)) * (len(SHADES) - 1)
    low = min(int(at), len(SHADES) - 2)
    red, green, blue = (
        round(a + (b - a) * (at - low)) for a, b in zip(SHADES[low], SHADES[low + 1], strict=True)
    )
    return f"#{red:02x}{green:02x}{blue:02x}"
