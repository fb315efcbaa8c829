"""May this key ask for this, at this price, and which prompts does a request become?"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import msgspec

from client.gateway.errors import ModelNotAllowed
from client.orders.orders import Prompt
from core.protocol.errors import PriceAboveCap

if TYPE_CHECKING:
    from client.gateway.money.keyring import ApiKey
    from client.gateway.openai.fields import RequestBody
    from client.gateway.openai.models import Catalogue, ServedModel
    from client.sessions.answering import AskTerms, PricedRequest
    from core.runtime.settings import Settings


async def served_model(
    settings: Settings, catalogue: Catalogue, key: ApiKey, name: str
) -> ServedModel:
    """The model of this name; of an alias, the first for which the key is and that is served.

    Where none is served it is the first one, so that the request waits for it, or says why not.
    Raises ModelNotAllowed, ModelUnknown, ModelMissing.
    """
    models = settings.gateway.aliases.get(name)
    if models is None or name in key.limits.models:
        check_model(key, name)
    if models is None:
        return await catalogue.find(name)
    named = key.limits.models
    fitting = [one for one in models if not named or name in named or one in named]
    if not fitting:
        check_model(key, name)
    covered = {offer.model.name for offer in await catalogue.ls() if offer.is_covered}
    chosen = next((one for one in fitting if one in covered), fitting[0])
    return await catalogue.find(chosen)


def check_model(key: ApiKey, model: str) -> None:
    """Raise ModelNotAllowed when the key is not for this model."""
    if key.limits.models and model not in key.limits.models:
        raise ModelNotAllowed(
            f"key '{key.name}' may not use '{model[:80]}'",
            f"it is for {', '.join(key.limits.models)}",
            param="model",
        )


def check_price(settings: Settings, priced: PricedRequest, terms: AskTerms) -> None:
    """Raise PriceAboveCap when the offer is above what the request allows."""
    for what, price, cap in (
        ("prompt", priced.price_in, terms.cap_in),
        ("answer", priced.price_out, terms.cap_out),
    ):
        if cap is not None and price > cap:
            show = settings.show_price
            raise PriceAboveCap(
                f"nobody serves {what} tokens within X-Max-Price",
                f"the cap is {show(cap)}",
                nearest_offer=show(price),
                param="X-Max-Price",
            )


def make_prompts(
    wanted: RequestBody, served: ServedModel, name: str, default_max_tokens: int
) -> tuple[list[tuple[Prompt, int]], int]:
    """A prompt for each answer, `n` of each of the request's, and the tokens of these counted once.

    A choice's noise depends on the request's seed and the choice's number alone. Raises UsageError,
    ContextTooLong.
    """
    found, tokens_in, drawn = [], 0, served.sampling(wanted)
    for number, ids in enumerate(served.prompts(wanted)):
        most = served.max_new_tokens(wanted, len(ids), default_max_tokens)
        tokens_in += len(ids)
        for choice in range(wanted.n):
            sampling = msgspec.structs.replace(
                drawn,
                max_new_tokens=most,
                min_new_tokens=min(drawn.min_new_tokens, most),
                seed=seed_of(drawn.seed, choice),
                key_index=0,
            )
            index = number * wanted.n + choice
            found.append((Prompt(f"{name}.{index}", ids, sampling, os.urandom(32)), index))
    return found, tokens_in


def seed_of(seed: int, choice: int) -> int:
    """The seed of one of several choices: the request's own for the first."""
    if not choice:
        return seed
    digest = hashlib.sha256(seed.to_bytes(8, "big") + choice.to_bytes(4, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
