"""What a matcher says is on offer: models with their prices, and the machines that serve them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from client.context import model_name
from client.matcher_api import MatcherApi
from core.protocol import ids
from core.runtime.settings import Settings

Listing = Callable[[MatcherApi], Awaitable[list[dict[str, Any]]]]
MODEL_FIELDS = ("layers", "context", "serving", "copies", "covered")
MINER_FIELDS = ("operator", "state", "stake", "layers", "priceInShown", "priceOutShown", "ageMs")


async def list_models(settings: Settings) -> list[dict[str, Any]]:
    """A row per model. Raises MatcherUnreachable or ConfigError."""
    return [
        {
            "model": model_name(str(model.get("modelId")), settings) or "",
            "id": model.get("shortId"),
            **{field: model.get(field) for field in MODEL_FIELDS},
            "priceIn": (model.get("lowestPrice") or {}).get("priceInShown"),
            "priceOut": (model.get("lowestPrice") or {}).get("priceOutShown"),
        }
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


def _short_model(model_id: Any) -> str:
    return ids.short(ids.Kind.MODEL, model_id) if isinstance(model_id, str) else ""


async def _ask(settings: Settings, what: Listing) -> list[dict[str, Any]]:
    api = MatcherApi(settings.require_matcher_url())
    try:
        return await what(api)
    finally:
        await api.close()
