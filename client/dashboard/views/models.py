"""What is on offer: each model with price, speed now, identity and the machines that serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from client.dashboard.pictures.pipelines import Row
from client.dashboard.sources.cached import Dated
from client.dashboard.views.common import Json, RequestLine, condition, pipeline_rows
from core.protocol.signing import name_hash
from core.protocol.units import price_of_nano

_DTYPES = (
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "int8-weight-only",
    "int8-weight-only-bfloat16",
    "int4-weight-only",
)


@dataclass(frozen=True)
class ModelCard:
    """One model. Prices: base units per Mtok of the cheapest chain, None while none serves it."""

    model_id: str
    name: str
    layers: int
    context: int
    precision: str
    weights_root: str
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
    operators: tuple[str, ...]
    at_ms: int


def models(
    found: Dated[list[Json]],
    routes: Dated[list[Json]],
    miners: Dated[list[Json]],
    requests: Sequence[RequestLine],
    uptimes: Mapping[str, float],
    name_of: Callable[[str], str],
) -> Models:
    cards = [
        model_card(model, routes.value or [], miners.value or [], requests, uptimes, name_of)
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
        precision=precision(str(spec.get("dtype", ""))),
        weights_root=str(spec.get("weightsRoot") or spec.get("weights_root") or ""),
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
) -> ModelPage:
    known = miners.value or []
    card = model_card(model, routes.value or [], known, requests, uptimes, name_of)
    machines = [m for m in known if m.get("modelId") == card.model_id]
    spec = {
        key: value
        for key, value in (model.get("spec") or {}).items()
        if not str(value).startswith("0x")
    }
    return ModelPage(
        model=card,
        rows=tuple(pipeline_rows(card.model_id, routes.value or [], machines)),
        spec=spec,
        operators=tuple(str(m["operator"]) for m in machines if condition(m) != "gone"),
        at_ms=routes.at_ms,
    )


def precision(dtype_hash: str) -> str:
    """The name of a number format from its hash, else the hash: the chain keeps only that."""
    return next(
        (name for name in _DTYPES if name_hash(name) == dtype_hash), dtype_hash or "unknown"
    )
