"""What do the matcher's commands print with --json? One type per command; published schemas are made from them."""

from __future__ import annotations

from typing import Any

from core.runtime.commands.results import Result


class Identity(Result, frozen=True, rename="camel"):
    """`start`, once it answers."""

    matcher: str
    fee_bps: int
    chain_id: int
    task_registry: str
    network: str
    swarm: list[str]
    audits: dict[str, Any] | None
    url: str


class Plan(Result, frozen=True, forbid_unknown_fields=False):
    """`plan`: pipelines, what they carry, and why not more."""

    id: str
    method: str
    pipelines: list[dict[str, Any]]
    disjoint: bool
    layers: dict[str, list[int]]
    tokens_per_s: dict[str, float]
    token_ms: dict[str, float | None]
    gap: float | None
    solve_s: float
    standby: list[str]
    ignored: list[dict[str, str]]
    explanation: list[str]
    bottleneck: list[str]
    machines: list[dict[str, Any]]


class Method(Result, frozen=True):
    """`methods`."""

    method: str
    what: str


class Routed(Result, frozen=True):
    """`route`: the best chain over a placement and those that would stand in."""

    id: str
    best: dict[str, Any]
    backups: list[dict[str, Any]]
    backups_missing: int


class Machine(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
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
    standing: str
    standing_why: str


class Route(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
    """`routes`: one chain that serves now."""

    model_id: str
    stages: list[dict[str, Any]]
    latency_ms: float
    used_slots: int
    max_slots: int


class Status(Result, frozen=True, forbid_unknown_fields=False, rename="camel"):
    """`status`."""

    matcher: str
    ready: bool
    models: int
    machines: int


class Difference(Result, frozen=True, rename="camel"):
    """`registry diff`: what one replica knows of a machine and the other does not, or not as new."""

    miner: str
    operator: str
    here: str
    there: str


class Export(Result, frozen=True, forbid_unknown_fields=False):
    """`export`: machines, routes and models at one moment."""

    models: list[dict[str, Any]]
    miners: list[dict[str, Any]]
    routes: list[dict[str, Any]]


class Audit(Result, frozen=True):
    """`audits ls`: a request that was drawn for an auditor. `stage` is where what was found is worst."""

    job: str
    request: int
    auditor: str
    found: str
    stage: int | None
    fee: str
    state: str
    tx: str


class AuditorPaid(Result, frozen=True):
    """`audits auditors`: counts of requests by state, and of the newest jobs that it cleared how many the chain holds a stage guilty in."""

    auditor: str
    drawn: int
    late: int
    owed: int
    being_paid: int
    paid: int
    owed_amount: str
    cleared_jobs: int
    contradicted: int


class AuditPaid(Result, frozen=True):
    """`audits pay`: a transfer of this time, or an earlier one that was not final."""

    auditor: str
    amount: str
    state: str
    tx: str


RESULTS: dict[str, tuple[Any, ...]] = {
    "start": (Identity,),
    "plan": (Plan,),
    "methods": (list[Method],),
    "route": (Routed,),
    "registry ls": (list[Machine],),
    "registry show": (Machine,),
    "registry diff": (list[Difference],),
    "routes": (list[Route],),
    "export": (Export,),
    "status": (Status,),
    "audits ls": (list[Audit],),
    "audits auditors": (list[AuditorPaid],),
    "audits pay": (list[AuditPaid],),
}
