"""What is on offer: each model with price, speed now, identity and the machines that serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from client.dashboard.pictures.pipelines import Row
from client.dashboard.sources.cached import Dated
from client.dashboard.views.common import Json, RequestLine, condition, pipeline_rows
from client.dashboard.views.network import MachineLine, miner_line
from client.gateway.copied import copied
from core.models.local import ShownModel, ShownTolerance
from core.protocol.units import price_of_nano


@dataclass(frozen=True)
class ModelFacts:
    """What the chain says of a model, and its manifest where that is on this machine, else None."""

    numerics: str
    judged_by: str  # game, shadow, jury or unreadable
    span_layers: int
    tolerances: tuple[ShownTolerance, ...]
    registrar: str
    names: tuple[str, ...]
    places: tuple[str, ...]
    licence: str | None
    size_bytes: int | None
    files: int | None


@dataclass(frozen=True)
class ModelCard:
    """One model. Prices: base units per Mtok of the cheapest chain, None while none serves it."""

    model_id: str
    name: str
    layers: int
    context: int
    weights_root: str
    facts: ModelFacts | None
    facts_problem: str  # why they are not known, or not anew
    machines: int
    serving: int
    copies: int
    is_covered: bool
    price_in: int | None
    price_out: int | None
    highest_in: int | None
    highest_out: int | None
    chain_ms_per_token: float | None
    measured_tokens_per_s: float | None
    free_slots: int
    providers: tuple[str, ...]  # operators of machines that serve it now
    uptime: float | None  # the share of the last month in which all of its layers were held


@dataclass(frozen=True)
class Models:
    """The page."""

    models: tuple[ModelCard, ...]
    at_ms: int
    problem: str


@dataclass(frozen=True)
class ModelPage:
    """One model with its chains and machines."""

    model: ModelCard
    rows: tuple[Row, ...]
    spec: dict[str, object]
    machines: tuple[MachineLine, ...]  # the cheapest answers first
    at_ms: int


def models(
    found: Dated[list[Json]],
    routes: Dated[list[Json]],
    miners: Dated[list[Json]],
    requests: Sequence[RequestLine],
    uptimes: Mapping[str, float],
    name_of: Callable[[str], str],
    facts: Mapping[str, Dated[ShownModel]],
) -> Models:
    cards = [
        model_card(
            model,
            routes.value or [],
            miners.value or [],
            requests,
            uptimes,
            name_of,
            facts[str(model["modelId"])],
        )
        for model in found.value or []
    ]
    cards.sort(key=lambda card: (not card.is_covered, card.name))
    return Models(tuple(cards), found.at_ms, found.problem)


def model_card(
    model: Json,
    routes: Iterable[Json],
    miners: Iterable[Json],
    requests: Sequence[RequestLine],
    uptimes: Mapping[str, float],
    name_of: Callable[[str], str],
    facts: Dated[ShownModel],
) -> ModelCard:
    model_id, spec = str(model["modelId"]), model.get("spec") or {}
    low, high = model.get("lowestPrice") or {}, model.get("highestPrice") or {}
    units = int(model.get("layerUnits") or 1)
    mine = [route for route in routes if route.get("modelId") == model_id]
    name = name_of(model_id)
    rates = [r.tokens_per_s for r in requests if r.model == name and r.tokens_per_s]

    def price(of: Json, key: str) -> int | None:
        return price_of_nano(int(of[key]), units) if key in of else None

    return ModelCard(
        model_id=model_id,
        name=name,
        layers=int(model.get("layers") or 0),
        context=int(model.get("context") or 0),
        weights_root=str(spec.get("weightsRoot") or spec.get("weights_root") or ""),
        facts=model_facts(facts.value) if facts.value else None,
        facts_problem=facts.problem,
        machines=int(model.get("machines") or 0),
        serving=int(model.get("serving") or 0),
        copies=int(model.get("copies") or 0),
        is_covered=bool(model.get("covered")),
        price_in=price(low, "priceIn"),
        price_out=price(low, "priceOut"),
        highest_in=price(high, "priceIn"),
        highest_out=price(high, "priceOut"),
        chain_ms_per_token=min((float(r["latencyMs"]) for r in mine), default=None),
        measured_tokens_per_s=sum(rates[:20]) / len(rates[:20]) if rates else None,
        free_slots=sum(max(0, int(r["maxSlots"]) - int(r["usedSlots"])) for r in mine),
        providers=tuple(
            str(miner["operator"])
            for miner in miners
            if miner.get("modelId") == model_id and condition(miner) == "serving"
        ),
        uptime=uptimes.get(model_id),
    )


def model_page(
    model: Json,
    routes: Dated[list[Json]],
    miners: Dated[list[Json]],
    requests: Sequence[RequestLine],
    uptimes: Mapping[str, float],
    name_of: Callable[[str], str],
    facts: Dated[ShownModel],
) -> ModelPage:
    known = miners.value or []
    card = model_card(model, routes.value or [], known, requests, uptimes, name_of, facts)
    machines = [m for m in known if m.get("modelId") == card.model_id]
    spec = {
        key: value
        for key, value in (model.get("spec") or {}).items()
        if not str(value).startswith("0x")
    }
    lines = [
        miner_line(machine, model, name_of, miners.at_ms)
        for machine in machines
        if condition(machine) != "gone"
    ]
    return ModelPage(
        model=card,
        rows=tuple(pipeline_rows(card.model_id, routes.value or [], machines)),
        spec=spec,
        machines=tuple(
            sorted(lines, key=lambda line: (line.price_out is None, line.price_out or 0))
        ),
        at_ms=routes.at_ms,
    )


def model_facts(shown: ShownModel) -> ModelFacts:
    lists = {name: tuple(getattr(shown, name)) for name in ("tolerances", "names", "places")}
    return copied(ModelFacts, shown, **lists)
