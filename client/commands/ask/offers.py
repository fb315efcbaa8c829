"""What a matcher says is on offer: models with their prices, and the machines that serve them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from client.context import model_name
from client.orders.matcher_api import MatcherApi
from core.protocol import ids
from core.runtime.settings import Settings

Listing = Callable[[MatcherApi], Awaitable[list[dict[str, Any]]]]
MODEL_FIELDS = ("layers", "context", "serving", "copies", "covered")
MINER_FIELDS = ("operator", "state", "stake", "layers", "priceInShown", "priceOutShown", "ageMs")


#: How `client models --sort` orders: the best first, what nobody serves last.
SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "price": lambda row: _unit_price(row["priceOut"]),
    "speed": lambda row: row["msPerToken"] if row["msPerToken"] is not None else float("inf"),
    "trust": lambda row: -(row["copies"] or 0),
}


def _unit_price(shown: str | None) -> float:
    digits = "".join(c for c in (shown or "").partition("/")[0] if c.isdigit() or c == ".")
    return float(digits) if digits else float("inf")


async def list_models(settings: Settings, sort: str | None = None) -> list[dict[str, Any]]:
    """A row per model. Raises MatcherUnreachable or ConfigError."""
    routes = await _ask(settings, MatcherApi.routes)
    fastest: dict[str, float] = {}
    for route in routes:
        model, ms = str(route["modelId"]), float(route["latencyMs"])
        fastest[model] = min(ms, fastest.get(model, ms))
    rows = [
        row | {"msPerToken": fastest.get(model_id)} for model_id, row in await _model_rows(settings)
    ]
    return sorted(rows, key=SORTS[sort]) if sort else rows


async def show_miner(settings: Settings, typed: str) -> dict[str, Any]:
    """One machine in full, with what the chain holds against it. Raises IdInvalid, MatcherUnreachable."""
    from client.context import open_context

    found = await _ask(settings, MatcherApi.miners)
    miner = ids.find(ids.Kind.MINER, typed, found, lambda row: str(row["operator"]))
    async with open_context(settings) as context:
        owner = await context.chain.read("MinerRegistry", "ownerOf", miner["operator"])
        standing = await context.chain.read("MinerRegistry", "minerOf", owner)
    return miner | {
        "model": model_name(str(miner.get("modelId")), settings) or "",
        "strikes": standing["strikes"],
        "openDisputes": standing["openDisputes"],
        "leaving": settings.show_token(standing["leaving"]),
    }


async def _model_rows(settings: Settings) -> list[tuple[str, dict[str, Any]]]:
    return [
        (
            str(model.get("modelId")),
            {
                "model": model_name(str(model.get("modelId")), settings) or "",
                "id": model.get("shortId"),
                **{field: model.get(field) for field in MODEL_FIELDS},
                "priceIn": (model.get("lowestPrice") or {}).get("priceInShown"),
                "priceOut": (model.get("lowestPrice") or {}).get("priceOutShown"),
            },
        )
        for model in await _ask(settings, MatcherApi.models)
    ]


async def list_miners(settings: Settings) -> list[dict[str, Any]]:
    """A row per machine. Raises MatcherUnreachable or ConfigError."""
    return [
        {
            "miner": miner.get("shortId"),
            "model": model_name(str(miner.get("modelId")), settings)
            or _short_model(miner.get("modelId")),
            **{field: miner.get(field) for field in MINER_FIELDS},
        }
        for miner in await _ask(settings, MatcherApi.miners)
    ]


def miner_facts(miner: dict[str, Any]) -> dict[str, Any]:
    """One machine as people read it."""
    at, told = miner.get("layers"), miner.get("assigned")
    return {
        "miner": miner.get("shortId"),
        "operator": miner["operator"],
        "owner": miner.get("owner"),
        "stake": f"{miner.get('stake')}, {miner['leaving']} leaving",
        "record": f"{miner['strikes']} strikes, {miner['openDisputes']} open disputes",
        "state": f"{miner['state']}, seen {(miner.get('ageMs') or 0) / 1000:.1f} s ago",
        "model": miner["model"],
        "layers": f"{at[0]}-{at[1] - 1}" if at else "none",
        "told to hold": f"{told[0]}-{told[1] - 1}" if told else "its owner's choice",
        "price": f"{miner.get('priceInShown')} in, {miner.get('priceOutShown')} out",
        "speed": f"{miner.get('tauMsPerLayer')} ms per layer, {miner.get('tflops')} Tflop/s, {miner.get('bandwidthGbS')} GB/s",
        "memory": f"{(miner.get('memoryBytes') or 0) / 2**20:,.0f} MiB",
        "places": f"{miner.get('activeRequests')} of {miner.get('maxRequests')} taken",
        "endpoint": miner.get("endpoint"),
    }


def miner_row(miner: dict[str, Any]) -> dict[str, Any]:
    """A machine as people read it."""
    at = miner["layers"]
    return {
        "miner": miner["miner"],
        "model": miner["model"],
        "state": miner["state"],
        "layers": f"{at[0]}-{at[1] - 1}" if at else "",
        "price in": miner["priceInShown"],
        "price out": miner["priceOutShown"],
        "stake": miner["stake"],
        "age": f"{(miner['ageMs'] or 0) / 1000:.1f}s",
        "operator": miner["operator"],
    }


def _short_model(model_id: Any) -> str:
    return ids.short(ids.Kind.MODEL, model_id) if isinstance(model_id, str) else ""


async def _ask(settings: Settings, what: Listing) -> list[dict[str, Any]]:
    api = MatcherApi(settings.require_matcher_url())
    try:
        return await what(api)
    finally:
        await api.close()
