"""What does the matcher say about models, machines and jobs?"""

from __future__ import annotations

from typing import Any

from core.protocol.errors import MatcherUnreachable
from core.runtime.settings import Settings

ANSWER_WITHIN_S = 10.0


async def ask(settings: Settings, path: str, **params: str) -> dict[str, Any]:
    """The JSON at a path of the network's first matcher that answers.

    Raises ConfigError (there is none), MatcherUnreachable (of the last one).
    """
    *others, last = [url for url, _ in settings.require_matchers()]
    for url in others:
        try:
            return await _ask(url, path, params)
        except MatcherUnreachable:
            continue
    return await _ask(last, path, params)


async def _ask(url: str, path: str, params: dict[str, str]) -> dict[str, Any]:
    import httpx2

    from core.runtime.http_client import NoAnswer, ask_json

    try:
        async with httpx2.AsyncClient() as client:
            status, found = await ask_json(
                client, "GET", url + path, params=params, within_s=ANSWER_WITHIN_S
            )
    except NoAnswer as error:
        raise MatcherUnreachable(f"no matcher answers at {url}", str(error)) from None
    if not 200 <= status < 300:
        raise MatcherUnreachable(f"no matcher answers at {url}", f"HTTP {status}")
    if not isinstance(found, dict):
        raise MatcherUnreachable(f"{url} does not answer like a matcher", f"{path} is no table")
    return found


def model_id_of(settings: Settings) -> str:
    """The id of the configured model in lower case, or its name where it has none."""
    name = settings.miner.model
    return settings.network.models.get(name, name).lower()
