"""Which method would serve a fleet best? The live one or one in a file, methods side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.protocol.errors import NoCapacity, UsageError
from core.protocol.foreign import shown
from matcher.planning.pictures import DrawnPlan, overview_svg, plan_svg
from matcher.planning.plan_file import WhatIf
from matcher.planning.simulated import (
    Routing,
    Simulated,
    SimulatedPlan,
    best_first,
    mean_stages,
    play_method,
    served_by,
)
from matcher.planning.trace_file import built_in, read_trace
from scheduler.fleet.errors import FleetError
from scheduler.methods.methods import METHODS
from scheduler.simulate.options import SimOptions
from scheduler.simulate.work import ClosedLoop, Work


@dataclass(frozen=True)
class Asked:
    """What to simulate. Without a trace it is the built-in one, without a rate at full load."""

    world: WhatIf
    methods: Sequence[str]
    warmup_s: float
    duration_s: float
    limit_s: float
    routing: Routing | None = None
    trace: Path | None = None
    requests_per_s: float | None = None


def simulate_methods(
    asked: Asked, clock: Callable[[], float] = time.monotonic
) -> tuple[Simulated, list[SimulatedPlan]]:
    """Every method fed the same requests, and their plans; those that serve most come first.

    Raises UsageError for what cannot be simulated, NoCapacity when no method has a plan.
    """
    unknown = [name for name in asked.methods if name not in METHODS]
    if unknown:
        why = f"there are {', '.join(METHODS)}"
        raise UsageError(f"no method [{shown(unknown)}]", why=why, next_step="matcher methods")
    work, said = _work(asked)
    try:
        options = SimOptions(warmup_s=asked.warmup_s, duration_s=asked.duration_s)
    except FleetError as error:
        raise UsageError("no such window", why=str(error)) from None
    played, refused = list[SimulatedPlan](), list[dict[str, str]]()
    for method in dict.fromkeys(asked.methods):
        try:
            played.append(
                play_method(asked.world, method, work, options, clock, asked.limit_s, asked.routing)
            )
        except (FleetError, ArithmeticError) as error:  # one method's, not the others'
            refused.append({"method": method, "why": str(error)})
    if not played:
        raise NoCapacity(
            f"no method has a plan for {asked.world.id}",
            why=refused[0]["why"],
            next_step="add machines or memory, or choose another model or method",
        )
    played = best_first(played)
    found = Simulated(
        id=asked.world.id,
        requests=said,
        warmup_s=asked.warmup_s,
        duration_s=asked.duration_s,
        methods=[served_by(one) for one in played],
        refused=refused,
    )
    return found, played


def _work(asked: Asked) -> tuple[Work, str]:
    """The requests, and what they are for people."""
    until_s = asked.warmup_s + asked.duration_s
    if asked.trace is None:
        work = built_in(asked.requests_per_s, until_s)
        if isinstance(work, ClosedLoop):
            return work, "built-in conversations, as many as keep KV caches filled"
        return work, f"built-in conversations, {asked.requests_per_s:g} a second"
    if asked.requests_per_s is not None:
        raise UsageError(
            "--rate goes with the built-in trace alone",
            why=f"{asked.trace} says itself when its requests come",
            next_step="leave out --rate or --trace",
        )
    trace = read_trace(asked.trace)
    return trace, f"{len(trace)} requests of {asked.trace.name}"


def draw_methods(asked: Asked, played: Sequence[SimulatedPlan], folder: Path) -> list[Path]:
    """A picture of each plan and one of all, in a folder that is made where it is missing.

    Raises UsageError where it cannot be written.
    """
    world = asked.world
    plans = [
        DrawnPlan(
            file=one.method,
            name=one.method,
            idea=METHODS[one.method][0],
            placement=one.placement,
            stages=mean_stages(one.report),
            flow_tokens_per_s=one.flow_tokens_per_s,
            report=one.report,
        )
        for one in played
    ]
    drawn = {
        f"{plan.file}.svg": plan_svg(plan, world.fleet, world.model, world.id) for plan in plans
    }
    drawn["all.svg"] = overview_svg(plans, world.id)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in drawn.items():
            (folder / name).write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}", why=error.strerror or str(error)) from None
    return [folder / name for name in drawn]


def world_of(answer: Any, model: str) -> WhatIf:
    """The live fleet as the running matcher answers it at `GET /v1/fleet`."""
    from matcher.planning.plan_file import what_if_of

    return what_if_of(answer["document"], f"the fleet of {model}")
