"""The `matcher` program: start the daemon, plan a made-up fleet, look at the registry and the
routes.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.runtime.commands.cli import App, Run
from matcher.commands import network_commands

if TYPE_CHECKING:
    from core.runtime.commands.results import Results
    from core.runtime.settings import Settings

app = App("matcher", help="Match orders to machines: plan, route, open and settle jobs.")
registry = app.group("registry", help="Machines as the running matcher sees them.")
audits = app.group("audits", help="Audits that this matcher pays.")
network_commands.mount(app.group("network", network_commands.HELP, bare="show"))


class ExportKind(StrEnum):
    """How a network is exported."""

    JSON = "json"
    GRAPHVIZ = "graphviz"


class PlanForm(StrEnum):
    """How a plan is shown."""

    TABLE = "table"
    DOT = "dot"


@app.command(daemon=True)
async def start(
    run: Run,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the API.")] = None,
    peers: Annotated[
        str | None, typer.Option(help="Swarm peers to join through, by comma.")
    ] = None,
    db: Annotated[str | None, typer.Option(help="SQLAlchemy URL of the database.")] = None,
    placement: Annotated[
        str | None, typer.Option(help="auto, simulated, parallax, helix or memory.")
    ] = None,
    routing: Annotated[str | None, typer.Option(help="fastest or iwrr.")] = None,
    replan_every: Annotated[str | None, typer.Option(help="Such as 10s.")] = None,
    fee_bps: Annotated[int | None, typer.Option(help="What it asks of each job.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Metrics on a port of their own.")
    ] = None,
    relay: Annotated[
        bool | None,
        typer.Option("--relay/--no-relay", help="Pass on bytes for machines nobody can dial."),
    ] = None,
) -> None:
    """Serve until stopped. Pays fees from the configured wallet; holds nobody's money."""
    host, port = _host_and_port(listen)
    settings = run.load(
        {
            "matcher.listen_host": host,
            "matcher.listen_port": port,
            "matcher.peers": peers,
            "matcher.db_url": db,
            "matcher.placement": placement,
            "matcher.routing": routing,
            "matcher.replan_interval": replan_every,
            "matcher.fee_bps": fee_bps,
            "matcher.metrics_port": metrics_port,
            "matcher.relay": relay,
        }
    )
    signer = run.unlock()
    import asyncio

    from matcher.daemon.start import running

    async with running(settings, signer) as started:
        run.emit(started, human=f"matcher {started.matcher} at {started.url}")
        await asyncio.Event().wait()


_NODES = typer.Option(help="JSON file: fleet/1, cluster/1 or machines by hand.")
Nodes = Annotated[Path, _NODES]
Model = Annotated[str | None, typer.Option(help="Which of the file's models.")]
Profiles = Annotated[
    Path | None, typer.Option(help="gpu_profiles/1 file of a cluster; found beside it if there.")
]


@app.command()
def plan(
    run: Run,
    nodes: Annotated[Path | None, _NODES] = None,
    models: Annotated[
        Path | None, typer.Option(help="JSON file of several models and GPU types: models/1.")
    ] = None,
    model: Model = None,
    method: Annotated[str, typer.Option(help="See `matcher methods`.")] = "auto",
    profiles: Profiles = None,
    time_limit: Annotated[
        str | None, typer.Option(help="Such as 10s: the best plan found by then.")
    ] = None,
    form: Annotated[
        PlanForm, typer.Option("--format", help="A table, or Graphviz; JSON with --json.")
    ] = PlanForm.TABLE,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why: bottleneck, gap, price of each machine.")
    ] = False,
) -> None:
    """Who would hold which layers, or which GPUs would serve which model? Needs no network."""
    import time

    from core.protocol.errors import UsageError
    from core.protocol.units import parse_duration
    from matcher.planning.plan_file import (
        machine_rows,
        plan_dot,
        plan_reasons,
        plan_rows,
        plan_summary,
        plan_what_if,
        read_what_if,
    )

    if models is not None:
        others = [nodes, model, profiles, time_limit, explain, form is PlanForm.DOT]
        _place(run, models, [*others, method != "auto"])
        return
    if nodes is None:
        raise UsageError(
            "no file to plan",
            why="neither --nodes nor --models names one",
            next_step="pass --nodes FILE for one model, --models FILE for several",
        )
    asked = read_what_if(nodes, model, profiles)
    limit_s = None if time_limit is None else parse_duration(time_limit)
    result = plan_what_if(asked, method, time.monotonic, limit_s)
    if run.options.json:
        run.emit(result)
        return
    if form is PlanForm.DOT:
        typer.echo(plan_dot(result))  # not through the console, which reads [brackets] as colours
        return
    run.emit(plan_rows(result))
    if explain:
        run.emit(machine_rows(result))
    for line in [*plan_summary(result), *(plan_reasons(result) if explain else ())]:
        run.note(line)
    if not explain:
        for ignored in result.ignored:
            run.note(f"{ignored['machine']} is ignored: {ignored['why']}")


def _place(run: Run, models: Path, others: list[object]) -> None:
    from core.protocol.errors import UsageError
    from matcher.planning.models_file import model_rows, models_summary, place_models, read_models

    if any(others):
        raise UsageError(
            "--models goes with no other option of `plan`",
            why="the file states models, GPUs and what is asked for",
            next_step="leave the others out",
        )
    result = place_models(read_models(models))
    run.emit(result if run.options.json else model_rows(result))
    if not run.options.json:
        for line in models_summary(result):
            run.note(line)


@app.command()
def methods(run: Run) -> None:
    """The methods that `matcher plan` knows."""
    from matcher.planning.plan_file import list_methods

    run.emit(list_methods())


@app.command(name="route")
def best_route(
    run: Run,
    nodes: Nodes,
    placement: Annotated[
        Path, typer.Option(help="JSON of `matcher plan --json`, or a placements/1 file.")
    ],
    model: Model = None,
    profiles: Profiles = None,
    name: Annotated[
        str | None, typer.Option(help="Which placement of a placements/1 file.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A machine to do without; repeatable.")
    ] = None,
    backups: Annotated[int, typer.Option(min=0, help="Node-disjoint chains besides.")] = 2,
) -> None:
    """Which chain over a placement is fastest, and which would stand in? Needs no network."""
    from matcher.planning.plan_file import (
        read_what_if,
        read_what_if_placement,
        route_rows,
        route_what_if,
    )

    asked = read_what_if(nodes, model, profiles)
    held = read_what_if_placement(placement, asked, name)
    result = route_what_if(asked, held, without or (), backups)
    run.emit(result if run.options.json else route_rows(result))
    if result.backups_missing:
        run.note(f"{result.backups_missing} backups less: no other chain shares no machine")


class Routing(StrEnum):
    """How simulated requests get their chains."""

    OWN = "own"
    FASTEST = "fastest"
    IWRR = "iwrr"


@app.command()
async def simulate(
    run: Run,
    nodes: Annotated[
        Path | None,
        typer.Option(help="A file as `matcher plan` reads it; without: the running matcher's."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Which of the file's models; of a running matcher, its id.")
    ] = None,
    profiles: Profiles = None,
    method: Annotated[
        list[str] | None, typer.Option(help="See `matcher methods`; repeatable.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="JSON file of requests: trace/1; without: built-in.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Built-in requests a second; without: at full load.")
    ] = None,
    warmup: Annotated[str, typer.Option(help="Simulated first and not counted.")] = "60s",
    duration: Annotated[str, typer.Option(help="Simulated and counted.")] = "120s",
    routing: Annotated[
        Routing, typer.Option(help="own: iwrr for helix and behind a coordinator, else fastest.")
    ] = Routing.OWN,
    time_limit: Annotated[str, typer.Option(help="For each method's plan.")] = "20s",
    pictures: Annotated[
        Path | None, typer.Option(help="Folder for an SVG of each plan and one of all.")
    ] = None,
) -> None:
    """What would each method's plan serve of the same requests? Changes nothing."""
    import asyncio

    from core.protocol.errors import UsageError
    from core.protocol.units import parse_duration
    from matcher.commands.simulate import Asked, draw_methods, simulate_methods, world_of
    from matcher.planning.plan_file import read_what_if
    from matcher.planning.simulated import METHODS, simulated_rows

    if nodes is not None:
        world = read_what_if(nodes, model, profiles)
    elif model is None:
        raise UsageError(
            "no fleet to simulate",
            why="neither --nodes names a file nor --model a model of the running matcher",
            next_step="pass --nodes FILE, or --model with an id of `client models`",
        )
    else:
        world = world_of(await _ask(run.settings, "/v1/fleet", model=model), model)
    asked = Asked(
        world=world,
        methods=method or METHODS,
        warmup_s=parse_duration(warmup),
        duration_s=parse_duration(duration),
        limit_s=parse_duration(time_limit),
        routing=None if routing is Routing.OWN else routing.value,
        trace=trace,
        requests_per_s=rate,
    )
    found, played = await asyncio.to_thread(simulate_methods, asked)
    run.emit(found if run.options.json else simulated_rows(found))
    run.note(f"{found.id}: {found.requests}, {found.duration_s:g} s after {found.warmup_s:g} s")
    for refused in found.refused:
        run.note(f"{refused['method']} has no plan: {refused['why']}")
    if pictures is not None:
        for path in draw_methods(asked, played, pictures):
            run.note(f"drawn: {path}")


@registry.command("ls")
async def registry_ls(run: Run) -> None:
    """Every machine the matcher knows, with the age of what it knows."""
    found = (await _ask(run.settings, "/v1/miners"))["miners"]
    run.emit(found if run.options.json else [_miner_row(miner) for miner in found])


@registry.command("show")
async def registry_show(
    run: Run, operator: Annotated[str, typer.Argument(help="mnr_… or an operator's address.")]
) -> None:
    """One machine in full."""
    from core.protocol import ids

    found = (await _ask(run.settings, "/v1/miners"))["miners"]
    one = ids.find(ids.Kind.MINER, operator, found, lambda miner: miner["operator"])
    shown = {key: _layers(one[key]) for key in ("layers", "assigned")}
    run.emit(one if run.options.json else one | shown)


@registry.command("diff")
async def registry_diff(
    run: Run, peer: Annotated[str, typer.Argument(help="URL of another matcher.")]
) -> None:
    """Where another matcher sees machines otherwise than ours does."""
    from matcher.commands.compare import differences

    ours = (await _ask(run.settings, "/v1/miners"))["miners"]
    theirs = (await _ask(run.settings, "/v1/miners", at=peer))["miners"]
    run.emit(differences(ours, theirs))


@app.command()
async def export(
    run: Run,
    form: Annotated[
        ExportKind, typer.Option("--format", help="json, or graphviz for `dot`.")
    ] = ExportKind.JSON,
) -> None:
    """Machines, routes and models at this moment, for other programs."""
    from matcher.commands.compare import network_dot

    found = {
        name: (await _ask(run.settings, f"/v1/{name}"))[name]
        for name in ("models", "miners", "routes")
    }
    if form is ExportKind.GRAPHVIZ and not run.options.json:
        typer.echo(network_dot(found["miners"], found["routes"]))
        return
    run.emit(found, human=lambda: json_text(found))


@app.command()
async def routes(
    run: Run, model: Annotated[str | None, typer.Option(help="Only this model.")] = None
) -> None:
    """Chains that serve now, fastest first, and how busy they are."""
    found = (await _ask(run.settings, "/v1/routes", model=model))["routes"]
    run.emit(found if run.options.json else [_route_row(route) for route in found])


@app.command()
async def status(run: Run) -> None:
    """Is the matcher ready, and what does it see?"""
    run.emit(await _ask(run.settings, "/v1/status"))


@audits.command("ls")
def audits_ls(
    run: Run, limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 100
) -> None:
    """Requests drawn for auditors, what was found, and whether it is paid; newest first."""
    from matcher.commands.audit_lists import list_audits

    run.emit(list_audits(run.settings, limit))


@audits.command("auditors")
async def audits_auditors(
    run: Run,
    limit: Annotated[
        int,
        typer.Option(
            help="Of the jobs that they cleared, ask the chain about the newest so many.", min=1
        ),
    ] = 100,
) -> None:
    """How each auditor does, and how often the chain convicted a stage that it cleared."""
    from matcher.commands.audit_lists import list_auditors

    run.emit(await list_auditors(run.settings, limit))


@audits.command("pay")
async def audits_pay(run: Run) -> None:
    """Pay auditors what they earned, in one transfer each; again pays nothing twice."""
    from matcher.commands.pay_audits import pay_audits

    await pay_audits(run)


def _host_and_port(listen: str | None) -> tuple[str | None, int | None]:
    if listen is None:
        return None, None
    from core.protocol.errors import UsageError

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--listen {listen}", why="it is not HOST:PORT")
    return host.strip("[]"), int(port)


def json_text(found: Any) -> str:
    """Indented, for people and for files."""
    import json

    return json.dumps(found, indent=2)


async def _ask(
    settings: Settings, path: str, *, at: str | None = None, **params: str | None
) -> Any:
    import httpx2

    from core.protocol.errors import MatcherUnreachable, UsageError, error_from
    from core.runtime.http_client import NoAnswer, ask_json

    own = f"http://{settings.matcher.listen_host}:{settings.matcher.listen_port}"
    url = (at or settings.network.matcher_url or own).rstrip("/")
    wanted = {key: value for key, value in params.items() if value is not None}
    try:
        async with httpx2.AsyncClient() as client:
            status, document = await ask_json(
                client, "GET", url + path, params=wanted, within_s=10.0
            )
    except NoAnswer as error:
        raise MatcherUnreachable(f"no matcher answers at {url}", why=str(error)) from None
    if not isinstance(document, dict):
        raise MatcherUnreachable(f"{url} does not answer like a matcher", f"{path} is no table")
    if not 200 <= status < 300:
        refused = document.get("error")
        told = refused if isinstance(refused, dict) else {"why": f"HTTP {status}"}
        raise error_from(
            {"what": "the matcher refused", **told, "code": UsageError.code}, UsageError
        )
    return document


def _miner_row(miner: dict[str, Any]) -> dict[str, Any]:
    taken = max(miner["activeRequests"], miner["reservedRequests"])
    return {
        "miner": miner["shortId"],
        "state": miner["state"] if miner["alive"] else "GONE",
        "layers": _layers(miner["layers"]),
        "assigned": "owner" if miner["fixedByOwner"] else _layers(miner["assigned"]),
        "may work": miner["canWork"],
        "registered": "; ".join(_registered(one) for one in miner["registered"]),
        "standing": miner["standing"],
        "stake": miner["stake"],
        "ms/layer": miner["tauMsPerLayer"],
        "slots": f"{taken}/{miner['maxRequests']}",
        "age": f"{miner['ageMs'] / 1000:.1f}s",
        "endpoint": miner["endpoint"],
    }


def _registered(machine: dict[str, Any]) -> str:
    """A machine as the chain lists it."""
    return f"{machine['class']}, {machine['memoryBytes'] / 2**30:.1f} GiB"


def _route_row(route: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": route["modelId"][:10],
        "chain": " → ".join(
            f"{stage['operator'][:8]} [{stage['layerFrom']}-{stage['layerTo'] - 1}]"
            for stage in route["stages"]
        ),
        "ms/token": route["latencyMs"],
        "slots": f"{route['usedSlots']}/{route['maxSlots']}",
    }


def _layers(at: list[int] | None) -> str:
    return "" if at is None else f"{at[0]}-{at[1] - 1}"


@app.results
def _results() -> Results:
    """What each command prints with --json."""
    from matcher.commands import audit_lists, compare
    from matcher.commands import pay_audits as paying
    from matcher.daemon import start
    from matcher.planning import models_file, plan_file, simulated

    return {
        **network_commands.printed(),
        "start": (start.Started,),
        "plan": (plan_file.Plan, models_file.PlacedModels),
        "methods": (list[plan_file.Method],),
        "route": (plan_file.Routed,),
        "simulate": (simulated.Simulated,),
        "registry ls": (list[compare.MachineRow],),
        "registry show": (compare.MachineRow,),
        "registry diff": (list[compare.Difference],),
        "routes": (list[compare.RouteRow],),
        "export": (compare.Export,),
        "status": (compare.MatcherStatus,),
        "audits ls": (list[audit_lists.Audit],),
        "audits auditors": (list[audit_lists.AuditorPaid],),
        "audits pay": (list[paying.AuditPaid],),
    }


main = app.main

if __name__ == "__main__":
    sys.exit(main())
