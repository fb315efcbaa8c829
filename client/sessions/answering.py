"""What do gateway, chat and pages ask of the network: one prompt in, tokens and a cost out?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from client.context import Model
from client.jobs.wishes import Choices, Wishes, wishes_of
from client.orders.orders import Prompt
from client.pipeline.pipeline import Logprobs
from core.protocol.types import Stage

if TYPE_CHECKING:
    from client.orders.matcher_api import Quote
    from core.runtime.settings import Settings


@dataclass(frozen=True)
class AskTerms:
    """What a request insists on; None: as the settings say. Caps: base units per million tokens."""

    cap_in: int | None = None
    cap_out: int | None = None
    trusted: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    deadline_s: int | None = None
    audit_bps: int = 0


@dataclass(frozen=True)
class Ask:
    """One request. `request_id` is the caller's, unique among its own.

    `on_end` is told once what became of a request whose reader has left (`aclose`), or that an
    error ended before its first token: something is due where stages have begun it.
    """

    request_id: str
    model: Model
    prompt: Prompt
    terms: AskTerms = field(default_factory=AskTerms)
    on_end: Callable[[Answered], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Said:
    """Token number `step` of the answer, each once and in order."""

    step: int
    token: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True)
class Answered:
    """What became of a request: who worked for it and what it cost."""

    job_id: str
    request_index: int
    operators: tuple[str, ...]
    tokens_in: int  # of the prompt that was asked
    tokens_out: int
    finish: str  # "" for a part
    cost_units: int  # all that was or will be paid for it
    is_partial: bool


@dataclass(frozen=True)
class PricedRequest:
    """What a request would cost now."""

    price_in: int  # base units per million tokens
    price_out: int
    opening_units: int  # more, where it is the first of its order
    most_units: int  # the most it can come to
    plan: tuple[Stage, ...]


class Answerer(Protocol):
    """Answers requests: over one order each, or over sessions."""

    async def price(
        self, model: Model, tokens_in: int, tokens_out: int, terms: AskTerms
    ) -> PricedRequest:
        """What this much would cost. Raises NoCapacity."""
        ...

    def answer(self, ask: Ask) -> AsyncGenerator[Said | Answered, None]:
        """The tokens in order, then what it cost. `aclose` cancels: what was delivered is paid.

        An error before the first token costs nothing; a later one carries `.details["answered"]`.
        """
        ...

    async def recover(self) -> None:
        """Pay for what an earlier life of the program was given, as far as that can be done now."""
        ...

    async def close(self) -> None:
        """Pay for everything that was delivered, then let go of streams and files."""
        ...


def priced(model: Model, quote: Quote, tokens_in: int, tokens_out: int) -> PricedRequest:
    """A matcher's offer for so many tokens as people read it."""
    most_units = quote.lock(model.spec, tokens_in, tokens_out)
    prices = quote.prices(model.spec)
    return PricedRequest(*prices, quote.opening_fee, most_units, quote.plan)


def wishes_with(settings: Settings, terms: AskTerms) -> Wishes:
    """The settings' wishes with what one request insists on instead."""
    wishes = wishes_of(settings, Choices())
    own = {name: getattr(terms, name) for name in ("cap_in", "cap_out", "deadline_s")}
    return replace(wishes, **{name: value for name, value in own.items() if value is not None})
