"""What a matcher says is on offer: models with their prices, and the machines that serve them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from client.context import matchers_of, model_name, open_context
from client.orders.matcher_api import MatcherApi
from core.protocol import ids
from core.protocol.errors import MatcherUnreachable
from core.runtime.commands.results import Result
from core.runtime.settings import Settings

T = TypeVar("T", bound=Result)
Listing = Callable[[MatcherApi], Awaitable[list[dict[str, Any]]]]


class ModelOffer(Result, frozen=True, rename="camel"):
    """`models`."""

    model: str
    id: str | None
    layers: int | None
    context: int | None
    serving: int | None
    copies: int | None
    covered: bool | None
    price_in: str | None
    price_out: str | None
    ms_per_token: float | None


class MinerOffer(Result, frozen=True, rename="camel"):
    """`miners ls`."""

    miner: str | None
    model: str
    operator: str | None
    state: str | None
    stake: str | None
    layers: list[int] | None
    price_in_shown: str | None
    price_out_shown: str | None
    age_ms: int | None


class Miner(Result, frozen=True, kw_only=True, forbid_unknown_fields=False, rename="camel"):
    """`miners show`: what the chain says of a machine, beside what the matcher says of it."""

    operator: str
    short_id: str | None = None
    owner: str | None = None
    stake_units: int | None = None
    stake: str | None = None
    can_work: bool | None = None
    standing: str | None = None
    standing_why: str | None = None
    state: str
    alive: bool | None = None
    age_ms: int | None = None
    endpoint: str | None = None
    region: str | None = None
    model_id: str | None = None
    layers: list[int] | None = None
    assigned: list[int] | None = None
    fixed_by_owner: bool | None = None
    standby: bool | None = None
    memory_bytes: int | None = None
    tflops: float | None = None
    bandwidth_gb_s: float | None = None
    tau_ms_per_layer: float | None = None
    rho_ms: dict[str, float] | None = None
    context: int | None = None
    kv_free_tokens: int | None = None
    max_requests: int | None = None
    active_requests: int | None = None
    reserved_requests: int | None = None
    price_in: int | None = None
    price_out: int | None = None
    price_in_shown: str | None = None
    price_out_shown: str | None = None
    sequence: int | None = None
    allocation: int | None = None
    model: str
    strikes: int
    open_disputes: int
    leaving: str


#: How `client models offers --sort` orders: the best first, what nobody serves last.
SORTS: dict[str, Callable[[ModelOffer], Any]] = {
    "price": lambda row: _unit_price(row.price_out),
    "speed": lambda row: row.ms_per_token if row.ms_per_token is not None else float("inf"),
    "trust": lambda row: -(row.copies or 0),
}


def _unit_price(shown: str | None) -> float:
    digits = "".join(c for c in (shown or "").partition("/")[0] if c.isdigit() or c == ".")
    return float(digits) if digits else float("inf")


async def list_models(settings: Settings, sort: str | None = None) -> list[ModelOffer]:
    """A row per model. Raises MatcherUnreachable or ConfigError."""
    routes = await _ask(settings, MatcherApi.routes)
    fastest: dict[str, float] = {}
    for route in routes:
        model, ms = str(route["modelId"]), float(route["latencyMs"])
        fastest[model] = min(ms, fastest.get(model, ms))
    rows = [
        _model_row(settings, model, fastest) for model in await _ask(settings, MatcherApi.models)
    ]
    return sorted(rows, key=SORTS[sort]) if sort else rows


async def show_miner(settings: Settings, typed: str) -> Miner:
    """One machine, with its record on chain. Raises IdInvalid, MatcherUnreachable."""
    found = await _ask(settings, MatcherApi.miners)
    miner = ids.find(ids.Kind.MINER, typed, found, lambda row: str(row["operator"]))
    async with open_context(settings) as context:
        owner = await context.chain.read("MinerRegistry", "ownerOf", miner["operator"])
        standing = await context.chain.read("MinerRegistry", "minerOf", owner)
    of_chain = {
        "model": model_name(str(miner.get("modelId")), settings) or "",
        "strikes": standing["strikes"],
        "openDisputes": standing["openDisputes"],
        "leaving": settings.show_token(standing["leaving"]),
    }
    return _typed(Miner, miner | of_chain)


def _model_row(settings: Settings, model: dict[str, Any], fastest: dict[str, float]) -> ModelOffer:
    model_id, price = str(model.get("modelId")), model.get("lowestPrice") or {}
    known = {
        "model": model_name(model_id, settings) or "",
        "id": model.get("shortId"),
        "priceIn": price.get("priceInShown"),
        "priceOut": price.get("priceOutShown"),
        "msPerToken": fastest.get(model_id),
    }
    return _picked(ModelOffer, model | known)


async def list_miners(settings: Settings) -> list[MinerOffer]:
    """A row per machine. Raises MatcherUnreachable or ConfigError."""
    rows = []
    for miner in await _ask(settings, MatcherApi.miners):
        model_id = miner.get("modelId")
        model = model_name(str(model_id), settings) or _short_model(model_id)
        known = {"miner": miner.get("shortId"), "model": model}
        rows.append(_picked(MinerOffer, miner | known))
    return rows


def _picked(kind: type[T], entry: dict[str, Any]) -> T:
    """The fields of this result from an entry that may have more of them, or less."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return _typed(kind, {name: entry.get(name) for name in names})


def _typed(kind: type[T], entry: dict[str, Any]) -> T:
    """A result from what a matcher said. Raises MatcherUnreachable for values of other types."""
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise MatcherUnreachable("the matcher does not answer like one", str(error)) from None


def miner_facts(miner: Miner) -> dict[str, Any]:
    """One machine as people read it."""
    at, told = miner.layers, miner.assigned
    return {
        "miner": miner.short_id,
        "operator": miner.operator,
        "owner": miner.owner,
        "stake": f"{miner.stake}, {miner.leaving} leaving",
        "record": f"{miner.strikes} strikes, {miner.open_disputes} open disputes",
        "state": f"{miner.state}, seen {(miner.age_ms or 0) / 1000:.1f} s ago",
        "model": miner.model,
        "layers": f"{at[0]}-{at[1] - 1}" if at else "none",
        "told to hold": f"{told[0]}-{told[1] - 1}" if told else "its owner's choice",
        "price": f"{miner.price_in_shown} in, {miner.price_out_shown} out",
        "speed": f"{miner.tau_ms_per_layer} ms per layer, {miner.tflops} Tflop/s, "
        f"{miner.bandwidth_gb_s} GB/s",
        "memory": f"{(miner.memory_bytes or 0) / 2**20:,.0f} MiB",
        "places": f"{miner.active_requests} of {miner.max_requests} taken",
        "endpoint": miner.endpoint,
    }


def miner_row(miner: MinerOffer) -> dict[str, Any]:
    """A machine as people read it."""
    at = miner.layers
    return {
        "miner": miner.miner,
        "model": miner.model,
        "state": miner.state,
        "layers": f"{at[0]}-{at[1] - 1}" if at else "",
        "price in": miner.price_in_shown,
        "price out": miner.price_out_shown,
        "stake": miner.stake,
        "age": f"{(miner.age_ms or 0) / 1000:.1f}s",
        "operator": miner.operator,
    }


def _short_model(model_id: Any) -> str:
    return ids.short(ids.Kind.MODEL, model_id) if isinstance(model_id, str) else ""


async def _ask(settings: Settings, what: Listing) -> list[dict[str, Any]]:
    api = matchers_of(settings)
    try:
        return await api.ask(what)
    finally:
        await api.close()
