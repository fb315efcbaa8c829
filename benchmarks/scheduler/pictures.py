"""What does each method's plan of Helix's 42-node cluster look like? `python -m benchmarks.scheduler.pictures FOLDER`

One SVG a method: a bar per machine over the layers it holds, coloured by the share of time it computes while all are fed
the same requests in chunks of 256 tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

from benchmarks.scheduler.helix_served import CHUNK_TOKENS, lengths
from benchmarks.scheduler.worlds import cluster, shipped_placement
from scheduler.dispatch.iwrr import IwrrRouter
from scheduler.fleet import Fleet, ModelShape, Placement
from scheduler.helix.max_flow import max_flow
from scheduler.methods import plan_by
from scheduler.simulate.options import SimOptions
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import ClosedLoop

CLUSTER = "het42"
METHODS = {
    "headrace": "Headrace: candidates ranked by simulation",
    "helix": "Helix: mixed-integer program",
    "swarm": "Swarm: equal stages of equal power",
    "petals": "Petals: where the model is thinnest",
    "separate": "Separate pipelines, the rest mixed (SP+)",
}

WIDTH, LEFT, TOP, ROW = 880, 96, 56, 13


def svg_of(
    title: str,
    caption: str,
    fleet: Fleet,
    model: ModelShape,
    placement: Placement,
    busy: Mapping[str, float],
) -> str:
    """A picture of a placement: rows sorted by first layer, colour from pale (idle) to dark (always computing)."""
    scale = (WIDTH - LEFT - 20) / model.layers
    shards = sorted(placement, key=lambda s: (s.layers.start, s.layers.end, s.machine_id))
    height = TOP + ROW * len(shards) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="10" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="20" font-size="15">{escape(title)}</text>',
        f'<text x="12" y="38" fill="#444">{escape(caption)}</text>',
    ]
    for layer in range(0, model.layers + 1, 10):
        x = LEFT + layer * scale
        lines.append(f'<path d="M{x:.1f} {TOP - 6}V{height - 26}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{layer}</text>')
    for row, (machine_id, layers) in enumerate(shards):
        y, share = TOP + row * ROW, min(1.0, busy.get(machine_id, 0.0))
        name = f"{machine_id} {fleet.by_id[machine_id].kind}"
        lines.append(f'<text x="{LEFT - 6}" y="{y + 9}" text-anchor="end">{escape(name)}</text>')
        lines.append(
            f'<rect x="{LEFT + layers.start * scale:.1f}" y="{y}" '
            f'width="{len(layers) * scale:.1f}" height="{ROW - 2}" fill="{_shade(share)}" '
            f'stroke="#345"><title>{escape(name)}: layers {layers}, {share:.0%} busy</title></rect>'
        )
        x = LEFT + layers.end * scale + 4
        lines.append(f'<text x="{x:.1f}" y="{y + 9}" fill="#444">{share:.0%}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _shade(share: float) -> str:
    pale, dark = (232, 240, 248), (16, 78, 139)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(pale, dark, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def draw(folder: Path) -> None:
    """Write one picture a method into `folder`."""
    fleet, model = cluster(CLUSTER)
    work = ClosedLoop(lengths())
    for name, title in METHODS.items():
        if name in ("helix", "swarm", "petals"):
            placement, _ = shipped_placement(CLUSTER, name, model)
        else:
            method = "serve" if name == "headrace" else "separate+"
            placement = plan_by(method, fleet, model).placement
        flow = max_flow(fleet, model, placement, partial=name == "petals")
        report = simulate(
            fleet,
            model,
            placement,
            IwrrRouter.of(fleet, model, placement, flow.links),
            work,
            SimOptions(warmup_s=150, duration_s=200, chunk_tokens=CHUNK_TOKENS, helix_rules=True),
        )
        busy = {node.machine_id: node.utilisation for node in report.nodes}
        caption = (
            f"{report.decode_tokens_per_s:.0f} output tokens/s served, {report.decode.mean_s:.2f} s a token, "
            f"prompts {report.prompt.mean_s:.2f} s; max flow {flow.tokens_per_s:.0f}; "
            f"machines compute {report.mean_utilisation:.0%} of the time"
        )
        picture = svg_of(title, caption, fleet, model, placement, busy)
        (folder / f"{CLUSTER}-{name}.svg").write_text(picture, encoding="utf-8")
        print(f"{title}: {caption}", flush=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
