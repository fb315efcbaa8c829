"""How is one request answered: reserve, ask, write, charge, and keep what a retry is told?

Order matters: the reservation is written before anything is asked for, the first token is noted
before the second is passed on, and the end is written before it is sent. A process that dies in
between neither pays twice nor forgets a payment: the next start finds the reservation, and in the
requester's own records what was paid.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from client.gateway.accepting import check_price, make_prompts, served_model
from client.gateway.errors import (
    DuplicateBroken,
    DuplicateDiffers,
    DuplicateRunning,
    Stopping,
    openai_error,
    retry_headers,
)
from client.gateway.exchange import Exchange
from client.gateway.money.ledger import RequestEnding, Reservation
from client.gateway.openai.answer_form import ChoiceText, StreamEnd, Usage
from client.gateway.openai.fields import RESPONSES, Endpoint, RequestBody, read_json, read_wanted
from client.gateway.openai.response_form import ResponseForm
from client.gateway.openai.shapes import (
    choice_of,
    event,
    form_of,
    receipt_of,
    route_shown,
)
from client.gateway.openai.terms import HEADERS, LONGEST_DEADLINE_S, terms_of
from client.gateway.openai.writing import TextPiece, Writer
from client.gateway.records.tables import CANCELLED, DONE, FAILED
from client.gateway.workers import SHORT_BYTES
from client.orders.orders import Prompt
from client.sessions.answering import Answered, Ask, AskTerms, PricedRequest, Said
from core.protocol.errors import DeadlinePassed, HeadraceError
from core.protocol.ids import Kind, short
from core.runtime import logs, origin, tracing

if TYPE_CHECKING:
    from client.gateway.gateway import Gateway
    from client.gateway.money.keyring import ApiKey
    from client.gateway.openai.models import ServedModel

log = logs.get_logger(__name__)
#: How long an answerer may take to say what a broken-off answer comes to.
TOLD_WITHIN_S = 10.0
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
JSON_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True)
class PaidRequest:
    """A request that was understood and is paid for."""

    key: ApiKey
    wanted: RequestBody
    served: ServedModel
    terms: AskTerms
    prompts: tuple[tuple[Prompt, int], ...]  # each with the index of its choice
    tokens_in: int  # of every prompt once
    tokens_most: int
    priced: PricedRequest
    opening: Reservation
    started_s: float
    created: int


@dataclass
class AnswerChoice:
    """One answer on its way."""

    index: int
    writer: Writer
    answered: asyncio.Future[Answered]
    pieces: list[TextPiece] = field(default_factory=list)
    offset: int = 0
    finish: str = ""

    def add(self, piece: TextPiece) -> None:
        if piece:
            self.pieces.append(piece)
            self.offset += len(piece.text)

    def shown(self) -> ChoiceText:
        return choice_of(self.index, self.pieces, self.finish)


async def take(
    gateway: Gateway, key: ApiKey, endpoint: Endpoint, data: bytes, headers: Mapping[str, str]
) -> Exchange:
    """The exchange that answers this request: a new one, one under way, or one that has ended.

    Raises HeadraceError where none begins. The caller joins the exchange before it awaits anything.
    """
    started_s = gateway.clock.monotonic()
    if gateway.exchanges.is_stopping:
        raise Stopping("the gateway is stopping", "it takes no new request")
    named = headers.get("idempotency-key") or None
    if named is not None and len(named) > 255:
        raise DuplicateDiffers("the Idempotency-Key is too long", "at most 255 characters")
    is_retry = headers.get("x-stainless-retry-count", "0") not in ("", "0")
    body_hash = hash_of(endpoint, data, headers)
    request_id = origin.current_id() or origin.new_id()
    exchange = Exchange(request_id, key.key_id, body_hash, named)
    if named is not None or is_retry:
        known = _under_way(gateway, exchange, is_retry) or await _ended(gateway, exchange)
        known = known or _under_way(gateway, exchange, is_retry)
        if known is not None:
            return known
    gateway.exchanges.add(exchange)
    try:
        gateway.limiter.take_request(key)
        work = await _prepare(gateway, key, endpoint, data, headers, exchange, started_s)
        gateway.limiter.take_tokens(key, work.tokens_most)
        try:
            await gateway.ledger.reserve(work.opening)
        except BaseException:
            gateway.limiter.give_back(key, work.tokens_most)
            raise
    except BaseException as error:
        gateway.exchanges.drop(exchange)
        _say_failed(exchange, error)
        raise
    parent = headers.get("traceparent", "")
    gateway.exchanges.start(exchange, _produce(gateway, exchange, work, parent))
    return exchange


def hash_of(endpoint: str, data: bytes, headers: Mapping[str, str]) -> str:
    """What makes two requests the same: endpoint, body and the headers that are terms."""
    terms = "\n".join(f"{name}={headers.get(name, '')}" for name in HEADERS)
    return hashlib.sha256(f"{endpoint}\n{terms}\n".encode() + data).hexdigest()


def _under_way(gateway: Gateway, exchange: Exchange, is_retry: bool) -> Exchange | None:
    """The same request under way: a retry joins it. Raises DuplicateDiffers, DuplicateRunning."""
    named = exchange.idempotency_key
    twin = gateway.exchanges.find(exchange.key_id, named, exchange.body_hash)
    if twin is None:
        return None
    _check_same(twin.body_hash, exchange)
    if not is_retry:
        raise DuplicateRunning(
            "a request with this Idempotency-Key is being answered",
            f"{twin.request_id} is not done",
            state="nothing is paid twice",
            retry_after_s=1,
        )
    return twin


async def _ended(gateway: Gateway, exchange: Exchange) -> Exchange | None:
    """The same request where it ended, as an exchange. Raises DuplicateDiffers, DuplicateBroken."""
    row = await gateway.ledger.twin(exchange.key_id, exchange.idempotency_key, exchange.body_hash)
    if row is None:
        return None
    _check_same(row.body_hash, exchange)
    if row.state == "running":
        return None
    if row.answer is None:
        raise DuplicateBroken(
            "the request with this Idempotency-Key was broken off",
            f"{row.request_id} ended {row.state}",
            state=f"{gateway.show(row.cost_units)} was paid for what came of it",
            receipt=row.receipt_id,
        )
    kept = msgspec.json.decode(row.answer)
    past = Exchange(row.request_id, row.key_id, row.body_hash, row.idempotency_key)
    past.open(row.answer_status, {**kept["headers"], "x-idempotent-replay": "true"})
    past.push(kept["body"].encode())
    past.end()
    return past


def _check_same(body_hash: str, exchange: Exchange) -> None:
    if body_hash != exchange.body_hash:
        raise DuplicateDiffers(
            "the Idempotency-Key was used for another request",
            "its body, endpoint or terms differ from this one's",
        )


def _say_failed(exchange: Exchange, error: BaseException) -> None:
    """Whoever joined meanwhile gets the same refusal."""
    shown = error if isinstance(error, HeadraceError) else HeadraceError("the request failed")
    exchange.open(shown.http_status, {**JSON_HEADERS, **retry_headers(shown)})
    exchange.push(msgspec.json.encode(openai_error(shown)))
    exchange.end()


async def _prepare(
    gateway: Gateway,
    key: ApiKey,
    endpoint: Endpoint,
    data: bytes,
    headers: Mapping[str, str],
    exchange: Exchange,
    started_s: float,
) -> PaidRequest:
    """Understand the request and price it. Raises HeadraceError."""
    of_key, workers = (key.key_id, len(data)), gateway.workers
    wanted = await _understand(gateway, key, endpoint, data)
    known = await gateway.catalogue.operators() if _names_miners(headers) else ()
    terms = terms_of(headers, gateway.settings, known)
    served = await served_model(gateway.settings, gateway.catalogue, key, wanted.model)
    most = gateway.settings.gateway.max_tokens
    if wanted.sampling.grammar or wanted.tools:  # reading one takes as long as a large body
        of_key = key.key_id, SHORT_BYTES + len(data)
    prompts, tokens_in = await workers.run(
        *of_key, make_prompts, wanted, served, exchange.request_id, most
    )
    asked_in = sum(len(prompt.ids) for prompt, _ in prompts)
    asked_out = sum(prompt.sampling.max_new_tokens for prompt, _ in prompts)
    priced = await gateway.prices.price(served.model, asked_in, asked_out, terms)
    check_price(gateway.settings, priced, terms)
    opening = Reservation(
        exchange.request_id,
        receipt_of(exchange.request_id),
        key.key_id,
        endpoint,
        served.name,
        exchange.body_hash,
        exchange.idempotency_key,
        priced.most_units,
    )
    return PaidRequest(
        key,
        wanted,
        served,
        terms,
        tuple(prompts),
        tokens_in,
        asked_in + asked_out,
        priced,
        opening,
        started_s,
        int(gateway.clock.now()),
    )


async def _understand(
    gateway: Gateway, key: ApiKey, endpoint: Endpoint, data: bytes
) -> RequestBody:
    """What the body asks for, with the items that a response goes on from."""
    of_key, workers = (key.key_id, len(data)), gateway.workers
    if endpoint != RESPONSES:
        return await workers.run(*of_key, lambda: read_wanted(read_json(data), endpoint))
    body, earlier = await workers.run(*of_key, read_json, data), list[dict[str, Any]]()
    if body.get("previous_response_id") is not None:
        earlier = await gateway.responses.earlier(key.key_id, body["previous_response_id"])
    return await workers.run(*of_key, read_wanted, body, endpoint, earlier)


def _names_miners(headers: Mapping[str, str]) -> bool:
    named = headers.get("x-trusted-providers", "") + headers.get("x-avoid-providers", "")
    return "mnr_" in named


async def _produce(
    gateway: Gateway, exchange: Exchange, work: PaidRequest, parent: str = ""
) -> None:
    """Answer into the exchange. The ledger has its end whatever happens, cancellation included.

    `parent` is the `traceparent` of the caller's own span, if it has one.
    """
    name = exchange.request_id
    with logs.bound(request_id=name), tracing.span("answer", parent, request_id=name):
        answering = _Answering(gateway, exchange, work)
        gateway.metrics.inflight.inc()
        try:
            await answering.run()
        finally:
            gateway.metrics.inflight.dec()


class _Answering:
    """One request being answered."""

    def __init__(self, gateway: Gateway, exchange: Exchange, work: PaidRequest) -> None:
        self._gateway, self._exchange, self._work = gateway, exchange, work
        wanted, served = work.wanted, work.served
        self._form = form_of(wanted, served, exchange.request_id, work.created)
        loop = asyncio.get_running_loop()
        self._choices = [
            AnswerChoice(index, served.writer(wanted, prompt.custom_id), loop.create_future())
            for prompt, index in work.prompts
        ]
        self._begun: asyncio.Task[None] | None = None
        self._first_token_s: float | None = None
        self._last_token_s = work.started_s
        self._left = len(self._choices)
        #: The end of the last choice, which is sent with the stream's: index, text and its offset.
        self._last_piece = (0, TextPiece(""), 0)
        if wanted.is_stream:
            exchange.early_headers = lambda: {**STREAM_HEADERS, **self._headers(())}

    async def run(self) -> None:
        try:
            await self._answer_all()
        except asyncio.CancelledError:
            await self._end_broken(
                CANCELLED, DuplicateBroken("its reader left", "nobody was listening")
            )
            raise
        except HeadraceError as error:
            await self._end_broken(FAILED, error)
        except Exception as error:
            log.exception("a request failed")
            shown = HeadraceError("a bug on the gateway's side", type(error).__name__)
            await self._end_broken(FAILED, shown)
        else:
            await self._end_done()

    async def _answer_all(self) -> None:
        """Every choice, side by side. Raises the first failure, the others being cancelled."""
        within_s = self._work.terms.deadline_s or LONGEST_DEADLINE_S
        try:
            async with asyncio.timeout(within_s):
                await self._answer_each()
        except TimeoutError:
            raise DeadlinePassed(
                "the answer was not there by its deadline",
                f"X-Deadline was {within_s} s",
                resume="the same request with a later X-Deadline",
            ) from None

    async def _answer_each(self) -> None:
        prompts = [prompt for prompt, _ in self._work.prompts]
        if len(prompts) == 1:
            await self._answer(prompts[0], self._choices[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for prompt, choice in zip(prompts, self._choices, strict=True):
                    group.create_task(self._answer(prompt, choice))
        except* HeadraceError as failed:
            raise _first(failed) from None

    async def _answer(self, prompt: Prompt, choice: AnswerChoice) -> None:
        def told(answered: Answered) -> None:
            if not choice.answered.done():
                choice.answered.set_result(answered)

        ask = Ask(prompt.custom_id, self._work.served.model, prompt, self._work.terms, told)
        try:
            async with aclosing(self._gateway.answerer.answer(ask)) as items:
                async for item in items:
                    if isinstance(item, Said):
                        await self._said(choice, item)
                    else:
                        told(item)
                        self._finish(choice, item)
        except HeadraceError as error:
            answered = error.details.get("answered")
            if isinstance(answered, Answered):
                told(answered)
            raise

    async def _said(self, choice: AnswerChoice, said: Said) -> None:
        now_s = self._gateway.clock.monotonic()
        is_first = self._first_token_s is None
        if is_first:
            self._first_token_s = now_s - self._work.started_s
        else:
            self._gateway.metrics.inter_token.observe(now_s - self._last_token_s)
        self._last_token_s = now_s
        if self._begun is not None and not self._begun.done():
            await asyncio.shield(self._begun)
        piece = choice.writer.push(said)
        if self._work.wanted.is_stream:
            self._open_stream()
            if piece:
                told = choice.index, piece, choice.offset, self._used()
                self._exchange.push(self._form.piece(*told))
        choice.add(piece)
        if is_first:
            self._begun = asyncio.create_task(self._gateway.ledger.begun(self._exchange.request_id))

    def _finish(self, choice: AnswerChoice, answered: Answered) -> None:
        """The answer is whole; of a stream its end is said, unless it is the stream's too."""
        reason = answered.finish or "stop"
        self._left -= 1
        rest = choice.writer.finish(reason)
        choice.finish = choice.writer.end_shown(reason)
        offset = choice.offset
        choice.add(rest)
        self._last_piece = (choice.index, rest, offset)
        if self._work.wanted.is_stream and self._left:
            self._open_stream()
            told = choice.index, rest, offset, self._used()
            self._exchange.push(self._form.piece(*told, choice.finish))

    async def _end_done(self) -> None:
        answers = tuple(choice.answered.result() for choice in self._choices)
        paid, used = self._paid(answers), self._used()
        if self._work.wanted.is_stream:
            self._open_stream()
            headers = dict(self._exchange.head.headers) if self._exchange.head else {}
            index, rest, offset = self._last_piece
            end = StreamEnd(self._choices[index].finish, paid)
            final = self._form.ending(index, rest, offset, used, end)
            body = b"".join([*self._exchange.events, final])
        else:
            headers = self._headers(answers)
            shown = [choice.shown() for choice in self._choices]
            final = body = msgspec.json.encode(self._form.whole(shown, used, paid))
        await self._write(DONE, answers, "", _kept(headers, body), 200)
        await self._keep_response()
        if not self._work.wanted.is_stream:
            self._exchange.open(200, headers)
        self._exchange.push(final)
        self._exchange.end()

    async def _keep_response(self) -> None:
        """Before its end is told: its key may go on from it at once."""
        asked, form = self._work.wanted.response, self._form
        if asked is not None and asked.is_kept and isinstance(form, ResponseForm):
            assert form.told is not None, "its end was made just now"
            await self._gateway.responses.keep(self._work.key.key_id, asked.items, form.told)

    async def _end_broken(self, state: str, error: HeadraceError) -> None:
        """Charge what came, tell those who follow, and keep it for a retry if it was paid for."""
        work = asyncio.ensure_future(self._break_off(state, error))
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                continue  # what was paid is written down before this ends
        work.result()

    async def _break_off(self, state: str, error: HeadraceError) -> None:
        answers = await self._told(state)
        if answers:
            error.details["answered"] = True
            paid = self._gateway.show(sum(answer.cost_units for answer in answers))
            receipt = self._work.opening.receipt_id
            error.state = f"{paid} was paid for the tokens that came; receipt {receipt}"
        shown = openai_error(error)
        if answers:
            shown["error"]["headrace"]["paid"] = self._paid(answers)
        headers, status = {**self._headers(answers), **retry_headers(error)}, error.http_status
        final = msgspec.json.encode(shown)
        if self._exchange.head is not None:  # a stream under way: the event, and no [DONE]
            headers, status = dict(self._exchange.head.headers), self._exchange.head.status
            final = event(shown)
        kept = _kept(headers, b"".join([*self._exchange.events, final])) if answers else None
        await self._write(state, answers, error.api_code, kept, status)
        self._exchange.open(status, headers)
        self._exchange.push(final)
        self._exchange.end()

    async def _told(self, state: str) -> tuple[Answered, ...]:
        """What every answer came to for which something is due; one not told in time, by its
        offered price. One whose reader left before its first token has read its prompt.
        """
        waiting = [c.answered for c in self._choices if c.writer.tokens or state == CANCELLED]
        if waiting:
            await asyncio.wait(waiting, timeout=TOLD_WITHIN_S)
        return tuple(
            choice.answered.result() if choice.answered.done() else self._estimate(number)
            for number, choice in enumerate(self._choices)
            if choice.writer.tokens
            or (choice.answered.done() and choice.answered.result().cost_units)
        )

    def _estimate(self, number: int) -> Answered:
        prompt, tokens = self._work.prompts[number][0], self._choices[number].writer.tokens
        priced = self._work.priced
        cost = (len(prompt.ids) * priced.price_in + tokens * priced.price_out) // 10**6
        log.warning("nobody said what a broken answer cost", estimated_units=cost)
        operators = tuple(stage.operator for stage in priced.plan)
        return Answered("", 0, operators, len(prompt.ids), tokens, "", cost, is_partial=True)

    async def _write(
        self,
        state: str,
        answers: tuple[Answered, ...],
        error_code: str,
        kept: str | None,
        status: int,
    ) -> None:
        gateway, work = self._gateway, self._work
        took_s = gateway.clock.monotonic() - work.started_s
        first_ms = None if self._first_token_s is None else round(self._first_token_s * 1000)
        ending = RequestEnding(
            state, answers, error_code, first_ms, round(took_s * 1000), kept, status
        )
        if self._begun is not None:
            await asyncio.wait({self._begun})
        await gateway.ledger.end(self._exchange.request_id, ending)
        used = sum(answer.tokens_in + answer.tokens_out for answer in answers)
        gateway.limiter.give_back(work.key, max(0, work.tokens_most - used))
        self._count(state, answers, took_s)

    def _count(self, state: str, answers: tuple[Answered, ...], took_s: float) -> None:
        metrics, model = self._gateway.metrics, self._work.served.name
        log.info(
            "request over",
            state=state,
            model=model,
            took_ms=round(took_s * 1000),
            tokens_out=sum(answer.tokens_out for answer in answers),
            jobs=[f"{short(Kind.JOB, a.job_id)}/{a.request_index}" for a in answers if a.job_id],
        )
        metrics.meet(model)
        metrics.requests.labels(model, state).inc()
        metrics.request.observe(took_s)
        if self._first_token_s is not None:
            metrics.first_token.observe(self._first_token_s)
        for answer in answers:
            metrics.paid(model, answer.tokens_in, answer.tokens_out, answer.cost_units)

    # --- what is said ---

    def _open_stream(self) -> None:
        """Begin the response as its form does."""
        if self._exchange.head is not None and self._exchange.events:
            return
        self._exchange.open(200, {**STREAM_HEADERS, **self._headers(())})
        begun = self._form.opening(len(self._choices), self._used())
        if begun:
            self._exchange.push(begun)

    def _used(self) -> Usage:
        return Usage(self._work.tokens_in, sum(choice.writer.tokens for choice in self._choices))

    def _paid(self, answers: tuple[Answered, ...]) -> dict[str, Any]:
        """What the answer cost, and where to look it up."""
        cost = sum(answer.cost_units for answer in answers)
        return {
            "receipt": self._work.opening.receipt_id,
            "cost_units": cost,
            "cost": self._gateway.show(cost),
            "route": route_shown(answers[0].operators) if answers else "",
            "jobs": sorted({answer.job_id for answer in answers}),
        }

    def _headers(self, answers: tuple[Answered, ...]) -> dict[str, str]:
        work, gateway = self._work, self._gateway
        took_ms = round((gateway.clock.monotonic() - work.started_s) * 1000)
        offered = [stage.operator for stage in work.priced.plan]
        headers = {
            **({} if work.wanted.is_stream else JSON_HEADERS),
            "x-request-id": self._exchange.request_id,
            "x-receipt-id": work.opening.receipt_id,
            "x-cost-limit-units": str(work.opening.reserved_units),
            "x-route": route_shown(answers[0].operators if answers else offered),
            "openai-processing-ms": str(took_ms),
            "openai-version": "2020-10-01",
            **gateway.limiter.headers(work.key),
        }
        if answers:
            cost = sum(answer.cost_units for answer in answers)
            headers |= {"x-cost-units": str(cost), "x-cost": gateway.show(cost)}
        return headers


def _kept(headers: Mapping[str, str], body: bytes) -> str:
    return msgspec.json.encode({"headers": dict(headers), "body": body.decode()}).decode()


def _first(group: BaseExceptionGroup[HeadraceError]) -> HeadraceError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, HeadraceError)
    return error
