"""Plans of several methods beside each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from client.dashboard.pictures.pipelines import Box, Row
from client.dashboard.views.common import Json, miner_href, short_miner

#: What the page offers first, with what a person should know of each.
METHODS = (
    ("auto", "what this network itself would do"),
    ("utility", "disjoint pipelines by throughput and latency"),
    ("score", "Parallax, proven"),
    ("greedy", "Parallax without a solver"),
    ("helix", "Helix's mixed-integer program"),
    ("stages", "one pipeline of shared stages"),
    ("swarm", "Swarm: equal stages of equal power"),
    ("petals", "Petals: where the model is thinnest"),
    ("memory", "layers in proportion to memory"),
    ("even", "layers in equal parts"),
)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}\b")
CHOSEN = ("auto", "score", "stages", "even")
#: A made-up fleet to start from.
EXAMPLE = """{
 "id": "three machines",
 "model": {"layers": 30, "hidden": 576, "intermediate": 1536, "heads": 9, "kv_heads": 3,
           "vocab": 49152, "tied": true},
 "machines": [
  {"id": "desk", "memory": "450MiB", "tflops": 0.2, "bandwidth_gb_s": 10, "region": "eu"},
  {"id": "loft", "memory": "350MiB", "tflops": 0.1, "bandwidth_gb_s": 10, "region": "eu"},
  {"id": "shed", "memory": "450MiB", "tflops": 0.1, "bandwidth_gb_s": 8, "region": "us"}
 ],
 "links": {"rho_ms": {"desk": {"loft": 2.5}}, "default_ms": 50}
}"""


@dataclass(frozen=True)
class PlanLine:
    """One method's answer, or why it has none."""

    method: str
    tokens_per_s: float | None = None
    at_most: float | None = None
    ms_per_token: float | None = None
    stages: int | None = None
    pipelines: int | None = None
    solve_s: float | None = None
    gap: float | None = None
    bottleneck: str = ""
    explanation: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Plans:
    """The answer below the form."""

    fleet: str
    layers: int
    machines: int
    plans: tuple[PlanLine, ...]
    best: str
    at_ms: int


@dataclass(frozen=True)
class Planner:
    """The page's form."""

    models: tuple[tuple[str, str], ...]  # (id, name)
    methods: tuple[tuple[str, str], ...]
    chosen: tuple[str, ...]
    example: str
    at_ms: int


def plans(document: Json, answers: Iterable[Json], fleet: str, now_ms: int) -> Plans:
    """What the matcher answered about a document; `fleet` is what people call it."""
    shape = document.get("shape") or document.get("model") or {}
    lines = tuple(plan_line(answer) for answer in answers)
    rated = [line for line in lines if line.tokens_per_s is not None]
    layers = int(shape.get("layers") or 0) or max(
        (box.end for line in lines for row in line.rows for box in row.boxes), default=0
    )
    return Plans(
        fleet=fleet or "A fleet of your own",
        layers=layers,
        machines=len(document.get("machines") or document.get("nodes") or ()),
        plans=lines,
        best=max(rated, key=lambda line: line.tokens_per_s or 0.0).method if rated else "",
        at_ms=now_ms,
    )


def plan_line(answer: Json) -> PlanLine:
    method, error = str(answer.get("method")), answer.get("error")
    if error:
        why = f"{error.get('what')}: {error.get('why')}"
        return PlanLine(method, error=_ADDRESS.sub(lambda found: short_miner(found[0]), why))
    plan = answer["plan"]
    rates = plan["tokens_per_s"]
    return PlanLine(
        method=method,
        tokens_per_s=rates.get("disjoint", rates.get("paths")),
        at_most=rates.get("at_most"),
        ms_per_token=plan["token_ms"].get("best"),
        stages=plan["stages"],
        pipelines=plan["k"],
        solve_s=plan["solve_s"],
        gap=plan["gap"],
        bottleneck=", ".join(map(str, plan["bottleneck"][:3])),
        explanation=tuple(map(str, plan["explanation"])),
        rows=tuple(_rows(plan)),
    )


def _rows(plan: Json) -> Iterable[Row]:
    for number, chain in enumerate(plan["pipelines"][:6], start=1):
        boxes = tuple(
            Box(_name(machine), _href(machine), start, end, "serving")
            for machine, start, end in chain["stages"]
        )
        speed = f"{chain['tokens_per_s']:.1f} tokens/s   {chain['latency_ms']:.1f} ms a token"
        yield Row(f"{number}   {speed}", boxes)


def _name(machine: str) -> str:
    return short_miner(machine) if machine.startswith("0x") and len(machine) == 42 else machine


def _href(machine: str) -> str:
    return miner_href(machine) if machine.startswith("0x") and len(machine) == 42 else "#plans"
