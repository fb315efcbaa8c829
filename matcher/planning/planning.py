"""How does a running matcher answer which plan a fleet would get, without being held up by it?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import msgspec

from core.protocol.errors import DeadlinePassed, NoCapacity, UsageError
from core.protocol.types import Value
from core.runtime.logs import get_logger
from matcher.fleet.fleet_view import Sighting, fleet_of, plannable
from scheduler.fleet.fleet import ModelShape

MAX_PLAN_BODY_BYTES = 1024 * 1024
MAX_MACHINES, MAX_METHODS = 512, 16
MAX_LIMIT_S = 60.0
#: For starting Python and a solver, and for the last step of a method.
GRACE_S = 15.0
_MACHINE_FIELDS = (
    "id",
    "memory_bytes",
    "tflops",
    "bandwidth_gb_s",
    "region",
    "weight_fraction",
    "kv_fraction",
    "max_concurrent",
    "tau_ms_per_layer",
)
log = get_logger(__name__)


class PlanBody(Value, frozen=True):
    """What `POST /v1/plan` takes: a fleet as `matcher plan` reads it, and methods to compare."""

    document: dict[str, Any]
    methods: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_METHODS)]
    limit_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_LIMIT_S)] = 10.0
    model: str | None = None
    profiles: dict[str, Any] | None = None


def fleet_document(name: str, shape: ModelShape, present: Sequence[Sighting]) -> dict[str, Any]:
    """The machines there now as a document for `matcher plan` and `POST /v1/plan`."""
    fleet = fleet_of(plannable(present))
    links = fleet.links
    rho_ms: dict[str, dict[str, float]] = {}
    mbit_s: dict[str, dict[str, float]] = {}
    for (a, b), link in links.pairs.items():
        rho_ms.setdefault(a, {})[b] = link.latency_ms
        if link.bandwidth_mbit_s is not None:
            mbit_s.setdefault(a, {})[b] = link.bandwidth_mbit_s
    return {
        "id": name,
        "shape": asdict(shape),
        "machines": [
            {field: getattr(machine, field) for field in _MACHINE_FIELDS}
            for machine in fleet.machines
        ],
        "links": {
            "rho_ms": rho_ms,
            "mbit_s": mbit_s,
            "default_ms": links.default_ms,
            "default_mbit_s": links.default_mbit_s,
        },
    }


class PlanDesk:
    """One question at a time, each in a process that is ended when its time is over."""

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self._busy = asyncio.Lock()
        self._grace_s = grace_s

    async def plan(self, body: PlanBody) -> dict[str, Any]:
        """`{"plans": [{"method", "plan"} or {"method", "error"}]}`.

        Raises UsageError for a fleet that cannot be read or is too large, NoCapacity while another
        question is planned, DeadlinePassed when the methods do not end.
        """
        _check_size(body.document)
        if self._busy.locked():
            raise NoCapacity(
                "another plan is being made",
                why="a matcher plans one question at a time",
                next_step="ask again in a few seconds, or run `matcher plan` yourself",
            )
        async with self._busy:
            return await self._ask(body)

    async def _ask(self, body: PlanBody) -> dict[str, Any]:
        argv = ["nice", "-n", "10", sys.executable, "-m", "matcher.planning.plan_child"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
        child = await asyncio.create_subprocess_exec(*argv, **pipes)
        question = msgspec.json.encode(msgspec.structs.asdict(body))
        try:
            async with asyncio.timeout(body.limit_s + self._grace_s):
                out, err = await child.communicate(question)
        except TimeoutError:
            raise DeadlinePassed(
                "no plan in time",
                f"the methods had {body.limit_s:g} s",
                resume="fewer methods, a smaller fleet, or more time",
            ) from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            log.warning(
                "a planning process failed",
                code=child.returncode,
                stderr=err[-2000:].decode(errors="replace"),
            )
            raise NoCapacity(
                "the planner gave up on this fleet",
                why=f"its process ended with {child.returncode}",
                next_step="try fewer machines or another method",
            )
        found: dict[str, Any] = msgspec.json.decode(out)
        if "error" in found:
            raise UsageError(found["error"]["what"], found["error"]["why"])
        return found


def _check_size(document: Mapping[str, Any]) -> None:
    for name in ("machines", "nodes", "groups"):
        listed = document.get(name)
        if isinstance(listed, list) and len(listed) > MAX_MACHINES:
            raise UsageError(
                f"the fleet lists {len(listed)} {name}", why=f"the limit is {MAX_MACHINES}"
            )


__all__ = ["MAX_PLAN_BODY_BYTES", "PlanBody", "PlanDesk", "fleet_document"]
