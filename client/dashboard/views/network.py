"""The network: chains over layers, machines with their links, and one machine's own page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from client.dashboard.pictures.pipelines import Row
from client.dashboard.sources.cached import Dated
from client.dashboard.views.common import Json, condition, pipeline_rows
from client.dashboard.views.explorer import EventLine
from client.dashboard.views.overview import NetworkCard, network_card
from core.protocol.units import price_of_nano

#: Events that accuse an owner, and all events of its owner in a machine's history.
ACCUSED = ("DisputeOpened", "GameOpened")
OF_OWNER = (
    *ACCUSED,
    "StakeAdded",
    "ExitRequested",
    "ExitCancelled",
    "Withdrawn",
    "Slashed",
    "Jailed",
    "Unjailed",
)


@dataclass(frozen=True)
class MinerLink:
    """One-way latency to another machine, as this one measured it."""

    operator: str
    rho_ms: float


@dataclass(frozen=True)
class MachineLine:
    """A machine: its own words, the chain's and the matcher's."""

    operator: str
    owner: str | None
    model_id: str
    model: str
    condition: str
    layers: tuple[int, int] | None
    assigned: tuple[int, int] | None
    is_fixed_by_owner: bool
    can_work: bool
    standing: str  # good, or how the matcher has it
    standing_why: str
    stake_units: int | None
    registered: tuple[tuple[str, int], ...]  # class and bytes of its owner's machines, on chain
    price_in: int | None
    price_out: int | None
    active_requests: int
    max_requests: int
    kv_free_tokens: int
    memory_bytes: int
    tflops: float
    bandwidth_gb_s: float
    tau_ms_per_layer: float
    region: str
    endpoint: str
    links: tuple[MinerLink, ...]
    age_ms: int
    at_ms: int


@dataclass(frozen=True)
class ModelChains:
    """A model with its picture's rows and why the machines hold what they hold."""

    model_id: str
    model: str
    layers: int
    is_covered: bool
    copies: int
    rows: tuple[Row, ...]
    reason: str
    explanation: tuple[str, ...]
    decided_at_ms: int | None


@dataclass(frozen=True)
class NetworkPage:
    """The page."""

    card: NetworkCard
    chains: tuple[ModelChains, ...]
    miners: tuple[MachineLine, ...]
    at_ms: int
    problem: str


@dataclass(frozen=True)
class MinerPage:
    """One machine with what the chain remembers of its owner and it."""

    miner: MachineLine | None
    operator: str
    owner: str | None
    jailed_until: int
    strikes: int
    open_disputes: int
    stake_units: int | None
    leaving_units: int
    leave_at: int
    jobs_matched: int
    disputes: int
    events: tuple[EventLine, ...]
    next_before: int | None
    at_ms: int


def network(
    status: Dated[Json],
    models: Dated[list[Json]],
    miners: Dated[list[Json]],
    routes: Dated[list[Json]],
    allocations: Dated[list[Json]],
    name_of: Callable[[str], str],
) -> NetworkPage:
    offered, machines = models.value or [], miners.value or []
    specs = {str(model["modelId"]): model for model in offered}
    told = {str(found["modelId"]): found for found in allocations.value or []}
    chains = [
        _chains(model, routes.value or [], machines, told.get(model_id), name_of)
        for model_id, model in specs.items()
    ]
    chains.sort(key=lambda one: (not one.rows, one.model))
    lines = [
        miner_line(m, specs.get(str(m.get("modelId"))), name_of, miners.at_ms) for m in machines
    ]
    lines.sort(key=lambda line: (line.condition == "gone", line.model, line.layers or (999, 999)))
    return NetworkPage(
        network_card(status, models, miners),
        tuple(chains),
        tuple(lines),
        miners.at_ms,
        miners.problem,
    )


def _chains(
    model: Json,
    routes: Iterable[Json],
    miners: Iterable[Json],
    told: Json | None,
    name_of: Callable[[str], str],
) -> ModelChains:
    model_id = str(model["modelId"])
    return ModelChains(
        model_id=model_id,
        model=name_of(model_id),
        layers=int(model["layers"]),
        is_covered=bool(model.get("covered")),
        copies=int(model.get("copies") or 0),
        rows=tuple(pipeline_rows(model_id, routes, miners)),
        reason=str(told["reason"]) if told else "",
        explanation=tuple(map(str, told["explanation"])) if told else (),
        decided_at_ms=int(told["decidedAtMs"]) if told else None,
    )


def miner_line(
    miner: Json, model: Json | None, name_of: Callable[[str], str], at_ms: int
) -> MachineLine:
    units = int((model or {}).get("layerUnits") or 0)

    def price(key: str) -> int | None:
        nano = miner.get(key)
        return price_of_nano(int(nano), units) if units and nano is not None else None

    def span(key: str) -> tuple[int, int] | None:
        found = miner.get(key)
        return (int(found[0]), int(found[1])) if found else None

    links = [
        MinerLink(peer, float(rho))
        for peer, rho in (miner.get("rhoMs") or {}).items()
        if isinstance(rho, int | float)
    ]
    model_id = str(miner.get("modelId") or "")
    return MachineLine(
        operator=str(miner["operator"]),
        owner=miner.get("owner"),
        model_id=model_id,
        model=name_of(model_id) if model_id else "",
        condition=condition(miner),
        layers=span("layers"),
        assigned=span("assigned"),
        is_fixed_by_owner=bool(miner.get("fixedByOwner")),
        can_work=bool(miner.get("canWork")),
        standing=str(miner.get("standing") or ""),
        standing_why=str(miner.get("standingWhy") or ""),
        stake_units=miner.get("stakeUnits"),
        registered=tuple(
            (str(one["class"]), int(one["memoryBytes"])) for one in miner.get("registered") or ()
        ),
        price_in=price("priceIn"),
        price_out=price("priceOut"),
        active_requests=int(miner.get("activeRequests") or 0),
        max_requests=int(miner.get("maxRequests") or 0),
        kv_free_tokens=int(miner.get("kvFreeTokens") or 0),
        memory_bytes=int(miner.get("memoryBytes") or 0),
        tflops=float(miner.get("tflops") or 0),
        bandwidth_gb_s=float(miner.get("bandwidthGbS") or 0),
        tau_ms_per_layer=float(miner.get("tauMsPerLayer") or 0),
        region=str(miner.get("region") or ""),
        endpoint=str(miner.get("endpoint") or ""),
        links=tuple(sorted(links, key=lambda link: link.rho_ms)),
        age_ms=int(miner.get("ageMs") or 0),
        at_ms=at_ms - int(miner.get("ageMs") or 0),
    )
