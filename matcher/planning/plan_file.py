"""What would the scheduler do with a fleet that exists only in a file?

Reads `fleet/1`, `cluster/1` (with a `gpu_profiles/1` file) and machines listed by hand
(`docs/scheduler.md` has them all)::

    {"model": {"layers": 30, "hidden": 576, "intermediate": 1536, "heads": 9, "kv_heads": 3,
               "vocab": 49152, "tied": true},
     "machines": [{"id": "a", "memory": "6GiB", "tflops": 20, "bandwidth_gb_s": 300,
                   "region": "eu"}],
     "links": {"rho_ms": {"a": {"b": 12.5}}, "mbit_s": {"a": {"b": 900}}, "default_ms": 50}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from core.protocol.errors import HeadraceError, NoCapacity, UsageError
from core.protocol.foreign import read_json_file, shown
from core.protocol.units import parse_bytes
from core.runtime.commands.results import Result
from scheduler.fleet.costs import hop_ms
from scheduler.fleet.errors import FleetError, PlanError
from scheduler.fleet.files import read_cluster, read_fleet, read_placement
from scheduler.fleet.fleet import (
    UNMEASURED_RHO_MS,
    Fleet,
    Link,
    Links,
    Machine,
    ModelShape,
    Placement,
)
from scheduler.methods.explain_plan import NAMED, explain_plan
from scheduler.methods.methods import METHODS, Budget, MethodPlan, plan_by
from scheduler.routing.parallax_route import NoRoute, Route, RouteQuery, disjoint_backups, route
from scheduler.routing.routing_table import prepare

PROFILES_FILE = "gpu_profiles.json"
MAX_DOCUMENT_BYTES = 64 * 2**20
#: Chains with less than this share of the tokens, beyond the first few, are one row in a table.
NARROW, SHOWN = 0.01, 3
_MACHINE_KEYS = {item.name for item in fields(Machine)} - {"profile"} | {"memory"}
_SHAPE_KEYS = {item.name for item in fields(ModelShape)}
MODEL_KEYS = {
    "layers",
    "hidden",
    "intermediate",
    "heads",
    "kv_heads",
    "vocab",
    "tied",
    "head_dim",
    "bytes_per_parameter",
    "kv_bytes_per_value",
    "activation_bytes_per_value",
    "layer_bytes",
    "experts",
    "experts_per_token",
    "expert_intermediate",
}


class Plan(Result, frozen=True, forbid_unknown_fields=False):
    """`plan`: pipelines, what they carry, and why not more."""

    id: str
    method: str
    pipelines: list[dict[str, Any]]
    disjoint: bool
    layers: dict[str, list[int]]
    k: int
    stages: int
    stages_per_request: float | None
    score: float | None
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


@dataclass(frozen=True)
class WhatIf:
    """A fleet and a model to plan for."""

    id: str
    fleet: Fleet
    model: ModelShape


def read_what_if(path: Path, model: str | None = None, profiles: Path | None = None) -> WhatIf:
    """The world in a file. Raises UsageError naming the entry that is wrong."""
    content = read_document(path)
    measured = None
    if isinstance(content, Mapping) and content.get("schema") == "cluster/1":
        measured = read_document(profiles or _profiles_beside(path))
    return what_if_of(content, str(path), model, measured)


def what_if_of(content: Any, name: str, model: str | None = None, measured: Any = None) -> WhatIf:
    """The world in a document; `measured` are the GPU profiles that a `cluster/1` needs.

    Raises UsageError naming the entry that is wrong.
    """
    with saying_where(name):
        schema = content.get("schema") if isinstance(content, Mapping) else None
        if schema == "fleet/1":
            fleet, shape = read_fleet(content, _only_model(content, model))
        elif schema == "cluster/1":
            if measured is None:
                raise FleetError("it names GPUs but not what they do: give their profiles")
            fleet, shape = read_cluster(content, measured, model)
        elif schema is None:
            fleet, shape = _by_hand(content, model)
        else:
            raise FleetError(f"schema {schema!r} is not fleet/1 or cluster/1")
        return WhatIf(str(content.get("id", Path(name).stem)), fleet, shape)


@contextmanager
def saying_where(name: str) -> Iterator[None]:
    """What is wrong with a document becomes a UsageError that says which one."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"{name} is incomplete", why=f"{error} is missing") from None
    except (FleetError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{name} cannot be planned", why=str(error)) from None
    except ArithmeticError as error:
        raise out_of_range(name, error) from None


def out_of_range(name: str, error: ArithmeticError) -> UsageError:
    """The error for numbers that are allowed one by one but not together."""
    why = f"its numbers are too large or too small together: {error}"
    return UsageError(f"{name} cannot be planned", why=why)


def read_document(path: Path) -> Any:
    """The JSON in a file. Raises UsageError where there is none."""
    try:
        return read_json_file(path, most_bytes=MAX_DOCUMENT_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror or str(error)) from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON", why=str(error)) from None


def _only_model(document: Mapping[str, Any], wanted: str | None) -> str:
    models = sorted(document.get("models", {}))
    if wanted is None and len(models) != 1:
        raise FleetError(f"it has {len(models)} models: choose one with --model: {shown(models)}")
    return wanted or models[0]


def _profiles_beside(path: Path) -> Path:
    for folder in (path.parent, path.parent.parent):
        if (folder / PROFILES_FILE).exists():
            return folder / PROFILES_FILE
    raise UsageError(
        f"{path.name} names GPUs but not what they do",
        why=f"no {PROFILES_FILE} beside it or one folder up",
        next_step="pass --profiles FILE",
    )


def _by_hand(content: Any, wanted: str | None) -> tuple[Fleet, ModelShape]:
    if wanted is not None:
        raise FleetError("it describes its one model itself: leave out --model")
    document = checked_table(content, "the file", {"id", "model", "shape", "machines", "links"})
    if "shape" in document:  # bytes and flops already counted
        shape = ModelShape(**checked_table(document["shape"], "shape", _SHAPE_KEYS))
    else:
        shape = ModelShape.dense(**checked_table(document["model"], "model", MODEL_KEYS))
    machines = tuple(
        _machine(entry, f"machines[{i}]") for i, entry in enumerate(document["machines"])
    )
    return Fleet(machines, _links(document.get("links", {}))), shape


def checked_table(value: Any, name: str, known: set[str]) -> dict[str, Any]:
    """A copy of a table. Raises TypeError naming it where it is none or has unknown keys."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is not a table")
    unknown = set(value) - known
    if unknown:
        raise TypeError(f"{name} has unknown keys [{shown(unknown)}]; known: {sorted(known)}")
    return dict(value)


def _machine(entry: Any, name: str) -> Machine:
    values = checked_table(entry, name, _MACHINE_KEYS)
    try:
        if "memory" in values:
            values["memory_bytes"] = parse_bytes(str(values.pop("memory")))
        return Machine(**values)
    except HeadraceError as error:
        raise TypeError(f"{name}: {error.what}") from None


def _links(entry: Any) -> Links:
    values = checked_table(entry, "links", {"rho_ms", "mbit_s", "default_ms", "default_mbit_s"})
    mbit_s = _pairs(values.get("mbit_s"))
    pairs = {
        pair: Link(ms, mbit_s.pop(pair, None)) for pair, ms in _pairs(values.get("rho_ms")).items()
    }
    if mbit_s:
        a, b = min(mbit_s)
        raise FleetError(f"links: mbit_s has {a} → {b}, of which rho_ms does not say how far it is")
    return Links(
        pairs,
        default_ms=_number_or_none(values.get("default_ms", UNMEASURED_RHO_MS)),
        default_mbit_s=_number_or_none(values.get("default_mbit_s")),
    )


def _pairs(table: Any) -> dict[tuple[str, str], float]:
    return {
        (a, b): float(value) for a, to in dict(table or {}).items() for b, value in dict(to).items()
    }


def _number_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


def list_methods() -> list[Method]:
    """Every method that can plan, with what it does."""
    return [Method(name, what) for name, (what, _) in METHODS.items()]


def plan_what_if(
    asked: WhatIf, method: str, clock: Callable[[], float], limit_s: float | None
) -> Plan:
    """The plan of a method.

    Raises NoCapacity when the fleet cannot hold the model (what is short, and by how much),
    UsageError when the method has no answer.
    """
    started = clock()
    budget = Budget() if limit_s is None else Budget(clock, started + limit_s)
    try:
        found = plan_by(method, asked.fleet, asked.model, budget)
        solve_s = clock() - started
        return _plan(asked, found, solve_s)
    except FleetError as error:
        text = str(error)
        if text.startswith("no plan: "):
            raise NoCapacity(
                f"{asked.id} cannot hold the model",
                why=text.removeprefix("no plan: "),
                next_step="add machines or memory, or choose a smaller model",
            ) from None
        raise UsageError("this cannot be planned", why=text) from None


def _plan(asked: WhatIf, found: MethodPlan, solve_s: float) -> Plan:
    fleet, model = asked.fleet, asked.model
    stages = sum(len(chain.stages) for chain in found.chains)
    carried = found.tokens_per_s
    mean_ms = (
        sum(chain.latency_ms * chain.tokens_per_s for chain in found.chains) / carried
        if carried
        else None
    )
    best = route(prepare(fleet, model, found.placement), _query(asked))
    explained = explain_plan(found, fleet, model)
    return Plan(
        id=asked.id,
        method=found.method,
        pipelines=[
            {
                "stages": [
                    [shard.machine_id, shard.layers.start, shard.layers.end]
                    for shard in chain.stages
                ],
                "tokens_per_s": round(chain.tokens_per_s, 3),
                "latency_ms": round(chain.latency_ms, 3),
            }
            for chain in found.chains
        ],
        disjoint=found.disjoint,
        layers={s.machine_id: [s.layers.start, s.layers.end] for s in found.placement},
        k=len(found.chains),
        stages=stages,
        stages_per_request=round(
            sum(len(chain.stages) * chain.tokens_per_s for chain in found.chains) / carried, 3
        )
        if carried
        else None,
        # Paths share machines: only of disjoint pipelines is k²/stages a score.
        score=round(len(found.chains) ** 2 / stages, 6) if found.disjoint else None,
        tokens_per_s={
            "disjoint" if found.disjoint else "paths": round(carried, 3),
            "flow": round(explained.flow_tokens_per_s, 3),
            "at_most": round(found.at_most, 3),
        },
        token_ms={
            "mean": None if mean_ms is None else round(mean_ms, 3),
            "best": round(best.latency_ms, 3) if isinstance(best, Route) else None,
        },
        gap=None if found.gap != found.gap else round(found.gap, 6),
        solve_s=round(solve_s, 4),
        standby=list(found.standby),
        ignored=[{"machine": machine, "why": why} for machine, why in found.ignored],
        explanation=[*explained.sentences, *found.notes],
        bottleneck=list(explained.bottleneck),
        machines=[
            {
                "machine": use.machine_id,
                "layers": [use.layers.start, use.layers.end],
                "tokens_per_s": round(use.tokens_per_s, 3),
                "used": round(use.used, 4),
                "price": round(use.price, 6),
            }
            for use in explained.machines
        ],
    )


def plan_rows(result: Plan) -> list[dict[str, Any]]:
    """One row a chain, for people; the narrowest together in one."""
    least = NARROW * sum(chain["tokens_per_s"] for chain in result.pipelines)
    rows = list[dict[str, Any]]()
    narrow = list[Mapping[str, Any]]()
    for number, chain in enumerate(result.pipelines, start=1):
        if number > SHOWN and chain["tokens_per_s"] < least:
            narrow.append(chain)
            continue
        rows.append(
            {
                "chain": str(number),
                "tokens/s": f"{chain['tokens_per_s']:.1f}",
                "ms/token": f"{chain['latency_ms']:.1f}",
                "stages": _stages(chain),
            }
        )
    if narrow:
        times = [chain["latency_ms"] for chain in narrow]
        rows.append(
            {
                "chain": f"{len(narrow)} more",
                "tokens/s": f"{sum(chain['tokens_per_s'] for chain in narrow):.1f}",
                "ms/token": f"{min(times):.1f}-{max(times):.1f}",
                "stages": "narrower paths: --json lists them",
            }
        )
    return rows


def _stages(chain: Mapping[str, Any]) -> str:
    return " → ".join(f"{machine} [{start}-{end - 1}]" for machine, start, end in chain["stages"])


def machine_rows(result: Plan) -> list[dict[str, Any]]:
    """One row a machine with its price, the dearest first, for people."""
    return [
        {
            "machine": use["machine"],
            "layers": f"{use['layers'][0]}-{use['layers'][1] - 1}",
            "tokens/s": f"{use['tokens_per_s']:.1f}",
            "used": f"{use['used']:.0%}",
            "price": f"{use['price']:.3f}",
        }
        for use in sorted(result.machines, key=lambda use: -use["price"])
    ]


def plan_reasons(result: Plan) -> list[str]:
    """Bottleneck and gap, then everything else that explains the plan."""
    binding = result.bottleneck
    named = ", ".join(binding[:NAMED]) + (
        f" and {len(binding) - NAMED} more" if len(binding) > NAMED else ""
    )
    flow, most = result.tokens_per_s["flow"], result.tokens_per_s["at_most"]
    return [
        f"bottleneck: {named or 'nothing flows'}",
        f"gap: {_gap(result)} to the best of what {result.method} looks for; "
        f"{1 - flow / most:.2%} to the tokens/s that no "
        "plan passes",
        "price: what a token/s of a machine's rate is worth to the plan, in tokens/s",
        *result.explanation,
    ]


def _gap(result: Plan) -> str:
    return "unknown" if result.gap is None else f"{result.gap:.2%}"


def plan_summary(result: Plan) -> list[str]:
    """The figures of a plan in three lines."""
    rates, times = result.tokens_per_s, result.token_ms
    kind = "disjoint" if result.disjoint else "paths"
    best = "none" if times["best"] is None else f"{times['best']:.1f}"
    mean = "none" if times["mean"] is None else f"{times['mean']:.1f}"
    gap = f"gap {_gap(result)}, solved in {result.solve_s:.3f} s"
    if result.disjoint:
        head = f"k {result.k}, {result.stages} stages, score {result.score:.3f}, {gap}"
    else:
        machines, mean_stages = len(result.layers), result.stages_per_request or 0.0
        head = (
            f"k {result.k} paths over {machines} machines, {mean_stages:.1f} stages a request, "
            f"{gap}"
        )
    return [
        f"{result.method}: {head}",
        f"tokens/s: {rates[kind]:.1f} over {'disjoint pipelines' if result.disjoint else 'paths'}, "
        f"{rates['flow']:.1f} with partial slices, at most {rates['at_most']:.1f}",
        f"ms a token: mean {mean}, best chain {best}",
    ]


def plan_dot(result: Plan) -> str:
    """The plan for Graphviz: machines from left to right by first layer, links with the tokens/s
    they carry.
    """
    carried: dict[tuple[str, str], float] = {}
    for pipeline in result.pipelines:
        names = ["in", *(stage[0] for stage in pipeline["stages"]), "out"]
        for a, b in pairwise(names):
            carried[a, b] = carried.get((a, b), 0.0) + pipeline["tokens_per_s"]
    title = _quoted(f"{result.id} by {result.method}")
    lines = [f"digraph {title} {{", "  rankdir=LR;"]
    lines += ['  "in" [shape=point];', '  "out" [shape=point];']
    for machine, (start, end) in sorted(result.layers.items(), key=lambda item: item[1]):
        label = _quoted(f"{machine}\n{start}-{end - 1}")
        lines.append(f"  {_quoted(machine)} [shape=box, label={label}];")
    for (a, b), rate in sorted(carried.items()):
        lines.append(f'  {_quoted(a)} -> {_quoted(b)} [label="{rate:.0f}"];')
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    """A string for Graphviz; a machine's id may hold anything."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def read_what_if_placement(path: Path, asked: WhatIf, name: str | None) -> Placement:
    """Who holds what: the JSON of `matcher plan`, or a `placements/1` file with the name of one of
    its placements.
    """
    content = read_document(path)
    try:
        if not isinstance(content, Mapping):
            raise FleetError("the file is not a table")
        if content.get("schema") == "placements/1":
            known = content["clusters"].get(asked.id, {}).get("placements", {})
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise FleetError(f"{asked.id} has the placements {listed}: choose with --name")
            layers = known[name]["layers"]
        else:
            layers = content.get("result", content)["layers"]
        return read_placement(layers, asked.model)
    except KeyError as error:
        raise UsageError(f"{path} is not a placement", why=f"{error} is missing") from None
    except (FleetError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a placement", why=str(error)) from None


def route_what_if(
    asked: WhatIf, placement: Placement, without: Iterable[str], backups: int
) -> Routed:
    """The best chain over a placement and as many node-disjoint ones as asked for.

    Raises UsageError for a machine that is not in the file, NoCapacity when no chain is left.
    """
    excluded = frozenset(without)
    if unknown := sorted(excluded - set(asked.fleet.by_id)):
        raise UsageError(f"no machine {unknown[0]}", why=f"{asked.id} does not list it")
    try:
        table = prepare(asked.fleet, asked.model, placement)
    except PlanError as error:
        raise UsageError("this is no placement of these machines", why=str(error)) from None
    if table.dropped:
        stranger = table.dropped[0].machine_id
        raise UsageError("this is no placement of these machines", why=f"{stranger} is unknown")
    query = _query(asked, excluded)
    found = route(table, query)
    if isinstance(found, NoRoute):
        raise NoCapacity(
            f"no chain of {asked.id} covers the model",
            why=found.text,
            next_step="do without fewer machines, or place those layers on more of them",
        )
    others = disjoint_backups(table, found, backups, query)
    return Routed(
        id=asked.id,
        best=_route_json(found),
        backups=[_route_json(backup) for backup in others],
        backups_missing=max(0, backups - len(others)),
    )


def _query(asked: WhatIf, excluded: frozenset[str] = frozenset()) -> RouteQuery:
    """Partial slices, from the coordinator and back where there is one."""
    at, links, model = asked.fleet.coordinator, asked.fleet.links, asked.model
    if at is None:
        return RouteQuery(partial=True, excluded=excluded)
    machines = asked.fleet.machines
    return RouteQuery(
        partial=True,
        excluded=excluded,
        client_rho_ms={m.id: hop_ms(links, at, m, model) for m in machines},
        client_back_ms={m.id: hop_ms(links, m, at, model) for m in machines},
    )


def _route_json(found: Route) -> dict[str, Any]:
    return {
        "stages": [[s.machine_id, s.layers.start, s.layers.end] for s in found.stages],
        "latency_ms": round(found.latency_ms, 3),
    }


def route_rows(result: Routed) -> list[dict[str, Any]]:
    """One row a chain, for people."""
    chains = [("best", result.best)]
    chains += [(f"backup {i}", chain) for i, chain in enumerate(result.backups, start=1)]
    return [
        {
            "chain": name,
            "ms/token": f"{chain['latency_ms']:.1f}",
            "stages": _stages(chain),
        }
        for name, chain in chains
    ]
