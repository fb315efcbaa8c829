"""What do the gateway, the chat and the pages ask of the network: one prompt in, tokens as they come, and what it cost?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from client.context import Context, Model
from client.jobs import Policy, Requester, new_submission_id, run_batch
from client.orders import Prompt
from client.session import Logprobs, Match
from client.submission import (
    Choices,
    Prepared,
    Wishes,
    ask_price,
    check_caps,
    ending_by,
    limits_of,
    maximum,
    terms_for,
    wishes_of,
    within_limits,
)
from core.protocol import pricing, units
from core.protocol.errors import HeadraceError
from core.protocol.types import Order, Stage
from core.runtime.clock import SystemClock
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.matcher_api import Quote
    from core.engine.tokenizer import Tokenizer
    from core.protocol.signing import DigestSigner
    from core.runtime.settings import Settings

log = get_logger(__name__)


@dataclass(frozen=True)
class AskTerms:
    """What a request insists on; None: the settings' default. Caps are base units per million tokens."""

    cap_in: int | None = None
    cap_out: int | None = None
    trusted: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    deadline_s: int | None = None
    audit_bps: int = 0


@dataclass(frozen=True)
class Ask:
    """One request. `request_id` is the caller's, unique among its own.

    `on_end` is told once what became of it when it has tokens, also when the reader has left (`aclose`) or an error ended it.
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
    """What became of a request: who worked for it and what it cost. `finish` is "" for a part.

    `tokens_in` are those of the prompt that was asked; `cost_units` is all that was or will be paid for it.
    """

    job_id: str
    request_index: int
    operators: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    finish: str
    cost_units: int
    is_partial: bool


@dataclass(frozen=True)
class Priced:
    """What a request would cost now: base units per million tokens, and the most it can come to."""

    price_in: int
    price_out: int
    most_units: int
    plan: tuple[Stage, ...]


class Answerer(Protocol):
    """Whoever answers requests: over one order each, or over sessions."""

    async def price(self, model: Model, tokens_in: int, tokens_out: int, terms: AskTerms) -> Priced:
        """What this much would cost. Raises NoCapacity."""
        ...

    def answer(self, ask: Ask) -> AsyncGenerator[Said | Answered, None]:
        """The tokens in order, then what it cost. `aclose` cancels: miners stop, what was delivered is paid.

        An error before the first token costs nothing; a later one carries `.details["answered"]`.
        """
        ...

    async def close(self) -> None:
        """Pay for everything that was delivered, then let go of streams and files."""
        ...


class OrderEach:
    """One order, one lock and one transaction for each request, as batches have them."""

    def __init__(self, context: Context, signer: DigestSigner) -> None:
        self._context, self._signer = context, signer
        self._store, self._matcher = context.store(), context.matcher()
        self._tokenizers: dict[str, Tokenizer] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def price(self, model: Model, tokens_in: int, tokens_out: int, terms: AskTerms) -> Priced:
        quote = await self._matcher.quote(model.model_id, tokens_in, tokens_out)
        return priced(model, quote, tokens_in, tokens_out)

    async def answer(self, ask: Ask) -> AsyncGenerator[Said | Answered, None]:
        told = _Told(ask)
        task = asyncio.create_task(self._run(ask, told), name=f"ask {ask.request_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            while True:
                item = await told.queue.get()
                if isinstance(item, HeadraceError):
                    raise item
                yield item
                if isinstance(item, Answered):
                    return
        finally:
            if not told.is_over:
                task.cancel()  # the batch pays for what came, then stops

    async def close(self) -> None:
        for task in self._running:
            log.info("waiting until answers are paid", task=task.get_name())
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._matcher.close()
        self._store.close()

    async def _run(self, ask: Ask, told: _Told) -> None:
        try:
            await self._order(ask, told)
        except HeadraceError as error:
            told.fail(error)
        except Exception as error:
            log.exception("an answer failed", request=ask.request_id)
            told.fail(HeadraceError("the request failed", repr(error)))
        finally:
            told.leave()  # the reader may have gone long before

    async def _order(self, ask: Ask, told: _Told) -> None:
        context, model, settings = self._context, ask.model, self._context.settings
        wishes = await within_limits(context, wishes_with(settings, ask.terms), Choices())
        prepared = Prepared([replace_id(ask.prompt, ask.request_id)], [])
        price = await ask_price(context, model, prepared)
        check_caps(settings, wishes, model.spec.layer_units, price, maximum(model, price, prepared))
        tokenizer = await self._tokenizer(model)
        requester = Requester(
            context.chain,
            self._matcher,
            self._signer,
            self._store,
            SystemClock(),
            model.model_id,
            model.spec,
            ending_by(tokenizer),
        )
        policy = Policy(
            terms_of=lambda now: terms_for(context, wishes, price, now),
            limits=limits_of(settings),
        )
        result = await run_batch(requester, prepared.prompts, policy, told, new_submission_id())
        for error in result.unfinished.values():
            told.fail(error)

    async def _tokenizer(self, model: Model) -> Tokenizer:
        from core.engine.tokenizer import Tokenizer

        if model.model_id not in self._tokenizers:
            folder = model.folder(self._context.settings)
            self._tokenizers[model.model_id] = await asyncio.to_thread(Tokenizer, folder)
        return self._tokenizers[model.model_id]


class _Told:
    """A `Watcher` of one request: what its batch says, as items for whoever reads the answer."""

    def __init__(self, ask: Ask) -> None:
        self.queue: asyncio.Queue[Said | Answered | HeadraceError] = asyncio.Queue()
        self.is_over = False
        self._ask = ask
        self._parts: list[tuple[Match, int]] = []  # jobs, and at which token each began
        self._tokens = 0

    def order_signed(self, order: Order, locked_units: int) -> None: ...

    def job_opened(self, match: Match) -> None:
        self._parts.append((match, self._tokens))

    def token(self, custom_id: str, step: int, token: int) -> None:
        if step == self._tokens:
            self._tokens += 1
            self.queue.put_nowait(Said(step, token))

    def request_finished(self, custom_id: str, finish: str) -> None:
        self._end(self.answered(finish))

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None: ...

    def acknowledged(self, match: Match, paid_units: int) -> None: ...

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None: ...

    def leave(self) -> None:
        """Nobody reads any more: say what it came to, unless it was said."""
        if self._tokens and not self.is_over:
            self._end(self.answered(""))

    def fail(self, error: HeadraceError) -> None:
        """No answer, or no more of it."""
        if self._tokens:
            error.details["answered"] = self.answered("")
        self._end(error)

    def answered(self, finish: str) -> Answered:
        """The answer as far as it came."""
        match = self._parts[-1][0]
        return Answered(
            job_id=match.job_id,
            request_index=0,
            operators=tuple(stage.operator for stage in match.plan),
            tokens_in=len(self._ask.prompt.ids),
            tokens_out=self._tokens,
            finish=finish,
            cost_units=sum(self._cost(part) for part in range(len(self._parts))),
            is_partial=not finish,
        )

    def _cost(self, part: int) -> int:
        match, began = self._parts[part]
        ended = self._parts[part + 1][1] if part + 1 < len(self._parts) else self._tokens
        if ended == began:
            return 0
        tokens_in = len(self._ask.prompt.ids) + began
        order, spec = match.signed.order, self._ask.model.spec
        return sum(pricing.split(order, match.plan, spec, tokens_in, ended - began).gross)

    def _end(self, item: Answered | HeadraceError) -> None:
        if not self.is_over:
            self.is_over = True
            self.queue.put_nowait(item)
            ended = item.details.get("answered") if isinstance(item, HeadraceError) else item
            if self._ask.on_end is not None and ended is not None:
                self._ask.on_end(ended)


def priced(model: Model, quote: Quote, tokens_in: int, tokens_out: int) -> Priced:
    """A matcher's offer for so many tokens as people read it."""
    layer_units = model.spec.layer_units
    return Priced(
        price_in=units.price_of_nano(quote.price_in, layer_units),
        price_out=units.price_of_nano(quote.price_out, layer_units),
        most_units=pricing.cost(
            layer_units, tokens_in, tokens_out, quote.price_in, quote.price_out
        ),
        plan=quote.plan,
    )


def wishes_with(settings: Settings, terms: AskTerms) -> Wishes:
    """The settings' wishes with what one request insists on instead."""
    wishes = wishes_of(settings, Choices())
    return replace(
        wishes,
        cap_in=wishes.cap_in if terms.cap_in is None else terms.cap_in,
        cap_out=wishes.cap_out if terms.cap_out is None else terms.cap_out,
        deadline_s=wishes.deadline_s if terms.deadline_s is None else terms.deadline_s,
    )


def replace_id(prompt: Prompt, custom_id: str) -> Prompt:
    """The same prompt under the caller's name for it."""
    return replace(prompt, custom_id=custom_id)
