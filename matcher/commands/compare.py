"""What do commands print of the matcher's API, how do two matchers differ, and how is one drawn?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from core.runtime.commands.results import Result

Json = dict[str, Any]

# Machine, Route, Status and Export are what the API is known to say; commands print all that it
# says.


class MachineRow(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
    """`registry ls` and `registry show`: one machine as the matcher sees it, with ages."""

    operator: str
    short_id: str
    state: str
    alive: bool
    age_ms: int
    endpoint: str
    model_id: str
    layers: list[int] | None
    assigned: list[int] | None
    can_work: bool
    #: Class and memory of its owner's machines, as the chain lists them.
    registered: list[dict[str, Any]]
    standing: str
    standing_why: str


class RouteRow(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
    """`routes`: one chain that serves now."""

    model_id: str
    stages: list[dict[str, Any]]
    latency_ms: float
    used_slots: int
    max_slots: int


class MatcherStatus(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
    """`status`."""

    matcher: str
    ready: bool
    models: int
    machines: int


class Export(Result, frozen=True, forbid_unknown_fields=False):
    """`export`: machines, routes and models at one moment."""

    models: list[dict[str, Any]]
    miners: list[dict[str, Any]]
    routes: list[dict[str, Any]]


class Difference(Result, frozen=True, rename="camel"):
    """`registry diff`: what one replica knows of a machine and the other not, or not as new."""

    miner: str
    operator: str
    here: str
    there: str


def differences(ours: Sequence[Json], theirs: Sequence[Json]) -> list[Difference]:
    """A row per machine that one of two does not know, or knows by an older record or in another
    state.

    Compared is what machines sign (sequence, state, layers), not what each matcher makes of it. By
    operator.
    """
    here = {machine["operator"]: machine for machine in ours}
    there = {machine["operator"]: machine for machine in theirs}
    rows = []
    for operator in sorted({*here, *there}):
        mine, other = here.get(operator), there.get(operator)
        if mine is not None and other is not None and _key(mine) == _key(other):
            continue
        known = mine or other
        assert known is not None
        rows.append(
            Difference(
                miner=known["shortId"], operator=operator, here=_seen(mine), there=_seen(other)
            )
        )
    return rows


def _key(machine: Json) -> tuple[Any, ...]:
    layers = machine["layers"]
    return machine["state"], machine["alive"], tuple(layers) if layers else None


def _seen(machine: Json | None) -> str:
    if machine is None:
        return "unknown"
    at = machine["layers"]
    layers = f" layers {at[0]}-{at[1] - 1}" if at else ""
    state = machine["state"] if machine["alive"] else "GONE"
    return f"{state}{layers}, record {machine['sequence']}, {machine['ageMs'] / 1000:.1f} s old"


def network_dot(miners: Sequence[Json], routes: Sequence[Json]) -> str:
    """The network for Graphviz: machines by first layer, and the chains that serve."""
    lines = ["digraph network {", "  rankdir=LR;", "  node [shape=box];"]
    names = {machine["operator"]: machine["shortId"] for machine in miners}
    for machine in sorted(miners, key=lambda m: (m["layers"] or [1 << 16], m["operator"])):
        at = machine["layers"]
        layers = f"layers {at[0]}-{at[1] - 1}" if at else "no layers"
        style = "" if machine["alive"] else ", style=dashed"
        label = f"{machine['shortId']}\\n{layers}\\n{machine['tauMsPerLayer']:.2f} ms/layer"
        lines.append(f'  "{machine["shortId"]}" [label="{label}"{style}];')
    for number, route in enumerate(routes):
        stages = [names.get(s["operator"], s["operator"][:10]) for s in route["stages"]]
        for a, b in pairwise(stages):
            label = f"{route['latencyMs']:.1f} ms" if a == stages[0] else ""
            lines.append(
                f'  "{a}" -> "{b}" [label="{label}", colorscheme=dark28, color={number % 8 + 1}];'
            )
    return "\n".join([*lines, "}"])
