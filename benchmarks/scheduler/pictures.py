"""What does each method's plan of Helix's 42-node cluster look like? `python -m
benchmarks.scheduler.pictures FOLDER`

One SVG a method: a bar per machine over the layers it holds, coloured by the share of time it
computes while all are fed the same requests in chunks of 256 tokens; and one that sets all methods
side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean

from benchmarks.scheduler.helix_served import (
    CASES,
    CHUNK_TOKENS,
    choose,
    lengths,
    limits_of,
    window,
)
from benchmarks.scheduler.worlds import cluster, shipped_placement
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.max_flow import Flow, max_flow
from scheduler.methods.methods import plan_by
from scheduler.search.candidate import mean_stages
from scheduler.search.candidates import candidates
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import ClosedLoop

CLUSTER = "het42"
#: File, name, what it looks for.
METHODS = (
    ("headrace", "Headrace", "candidates of different depth, ranked by what they serve"),
    ("helix", "Helix", "the largest flow, by a mixed-integer program"),
    ("swarm", "Swarm", "equal stages of equal power"),
    ("petals", "Petals", "each machine where the model is thinnest"),
    ("separate", "Separate pipelines", "one for each kind of machine, the rest mixed"),
)

WIDTH, LEFT, RIGHT, TOP, ROW = 900, 92, 46, 108, 13
#: Colours of 0, 25, 50, 75 and 100 % of the time: pale yellow to dark red.
SHADES = ((255, 250, 225), (254, 217, 118), (253, 141, 60), (227, 26, 28), (110, 0, 28))
INK, GREY, RULE = "#222", "#666", "#d8d8d8"


@dataclass(frozen=True)
class Plan:
    """A method's placement, the flow its requests follow, and how it served."""

    file: str
    name: str
    idea: str
    placement: Placement
    flow: Flow
    report: SimReport


def mean_utilisation(report: SimReport) -> float:
    """Mean over machines of the share of time that they computed."""
    return fmean(node.utilisation for node in report.nodes)


def svg_of(plan: Plan, fleet: Fleet, model: ModelShape) -> str:
    """A picture of a plan: machines by first layer from top to bottom, those that hold nothing
    last.
    """
    scale = (WIDTH - LEFT - RIGHT) / model.layers
    shards = sorted(plan.placement, key=lambda s: (s.layers.start, s.layers.end, s.machine_id))
    held = {shard.machine_id: shard.layers for shard in shards}
    idle = sorted(set(fleet.by_id) - set(held))
    busy = {node.machine_id: node.utilisation for node in plan.report.nodes}
    bottom = TOP + ROW * (len(shards) + len(idle))
    lines = _open(bottom + 62, f"{plan.name} on {CLUSTER}")
    lines += [_text(12, 24, f"{plan.name}: {plan.idea}", size=16)]
    for i, (figure, what) in enumerate(_figures(plan)):
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


def _figures(plan: Plan) -> list[tuple[str, str]]:
    report = plan.report
    return [
        (f"{report.decode_tokens_per_s:,.0f} tokens/s", "output served"),
        (f"{report.decode.mean_s:.2f} s", "for a token, mean"),
        (f"{report.prompt.mean_s:.2f} s", "for a prompt, mean"),
        (f"{mean_utilisation(report):.0%}", "of the time machines compute"),
        (f"{mean_stages(plan.flow):.1f} stages", "on a request's way"),
        (f"{report.mean_in_flight:.0f}", "requests at a time"),
    ]


def overview(plans: Sequence[Plan]) -> str:
    """All methods side by side: what is served as a bar, coloured by how busy machines are, and the
    latencies.
    """
    row, left, right = 46, 150, 330
    bottom = 64 + row * len(plans)
    most = max(plan.report.decode_tokens_per_s for plan in plans)
    lines = _open(bottom + 62, f"All methods on {CLUSTER}")
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
            (206, f"{mean_stages(plan.flow):.1f}"),
            (262, f"{plan.flow.tokens_per_s:,.0f}"),
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


def plans() -> list[Plan]:
    """Every method's plan, served alike: the same trace, chunks, fill and rules."""
    fleet, model = cluster(CLUSTER)
    trace = lengths()
    case = next(case for case in CASES if case.name == CLUSTER)
    options = window(case, CHUNK_TOKENS)
    found = list[Plan]()
    for file, name, idea in METHODS:
        if file == "headrace":
            limits = limits_of(case, fleet, model, trace)
            way = choose(case, fleet, model, trace, candidates(fleet, model), limits, options)
            placement, flow = way.candidate.placement, way.flow
        else:
            placement = (
                plan_by("separate+", fleet, model).placement
                if file == "separate"
                else shipped_placement(CLUSTER, file, model)[0]
            )
            flow = max_flow(fleet, model, placement, partial=file == "petals")
        router = IwrrRouter.of(fleet, model, placement, flow.links)
        report = simulate(fleet, model, placement, router, ClosedLoop(trace), options)
        found.append(Plan(file, name, idea, placement, flow, report))
    return found


def draw(folder: Path) -> None:
    """Write the pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet, model = cluster(CLUSTER)
    drawn = plans()
    for plan in drawn:
        picture = svg_of(plan, fleet, model)
        (folder / f"{CLUSTER}-{plan.file}.svg").write_text(picture, encoding="utf-8")
        print(plan.name, *(f"{figure} {what};" for figure, what in _figures(plan)), flush=True)
    (folder / f"{CLUSTER}-all.svg").write_text(overview(drawn), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
