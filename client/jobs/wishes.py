"""What does a submission ask for, is the offer within it, and which files does it end in?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from client.context import Context, Model
from client.jobs.answer_lines import answer_line
from client.jobs.batch import BatchResult, FinishedAnswer, TermsElsewhere, TermsOf
from client.options import OrderOptions
from client.orders.arbitrator import arbitrator_of, check_named
from client.orders.demands import audit_bps
from client.orders.matcher_api import Quote
from client.orders.matchers import Matchers
from client.orders.orders import OrderTerms, Prompt, make_prompt, route_text
from client.orders.requests import ChatRequest, read_requests
from client.pipeline.pipeline import Logprobs, PipelinePatience
from core.engine.sampling.grammar import check_grammar, grammar_of
from core.engine.sampling.stops import AnswerEnding
from core.engine.weights.tokenizer import Tokenizer
from core.protocol import ids, units, wire
from core.protocol.errors import (
    HeadraceError,
    LineInvalid,
    ModelUnsupported,
    NoCapacity,
    PriceAboveCap,
    UsageError,
)
from core.protocol.types import ZERO_ADDRESS, SamplingParams, Terms
from core.runtime.commands.results import Result
from core.runtime.network.pulse import Beat
from core.runtime.settings import THE_MATCHERS, Settings

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CLOCK_SLACK_S = 60  # between our look at the chain's clock and the block that opens the job


@dataclass(frozen=True, kw_only=True)
class Choices(OrderOptions):
    """The flags of `client submit`, as typed."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    ack: str = "now"
    out: Path | None = None
    text: bool = True
    name: str = ""
    detach: bool = False
    on_chain: bool = False


class Offer(Result, frozen=True):
    """`quote`: what is on offer for a file. The last four are said where they apply."""

    model: str
    requests: str
    tokens: str
    price: str
    cost: str
    route: str
    replicas: str | msgspec.UnsetType = msgspec.UNSET
    other_routes: str | msgspec.UnsetType = msgspec.UNSET
    audited: str | msgspec.UnsetType = msgspec.UNSET
    auditor: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Wishes:
    """What the requester insists on, whatever is offered."""

    max_cost: int  # base units
    max_opening_fee: int
    cap_in: int | None  # base units per Mtok
    cap_out: int | None
    deadline_s: int
    window_s: int
    auditor: str  # an address, zero for nobody, or `THE_MATCHERS`: see `auditor_of`
    acknowledge: bool
    arbitrator: str = ""  # game, jury, an address, or "": see `within_limits`
    audit_bps: int = 0


@dataclass(frozen=True)
class Prepared:
    """A file as prompts that fit the model, and (custom id, why) of the other lines."""

    prompts: list[Prompt]
    rejected: list[tuple[str, HeadraceError]]

    @property
    def tokens_in(self) -> int:
        return sum(len(p.ids) for p in self.prompts)

    @property
    def max_tokens_out(self) -> int:
        return sum(p.sampling.max_new_tokens for p in self.prompts)


def wishes_of(settings: Settings, choices: Choices) -> Wishes:
    """Flags and settings as values. Raises UsageError for any that cannot be read."""
    if choices.ack not in ("now", "later"):
        raise UsageError(f"--ack {choices.ack}", "it is now or later")
    ours = settings.client
    caps = [choices.price_cap or ours.price_cap_in, choices.price_cap or ours.price_cap_out]
    cap_in, cap_out = [None if cap is None else settings.price(cap) for cap in caps]
    return Wishes(
        max_cost=settings.token(choices.max_cost or ours.max_cost_per_job),
        max_opening_fee=settings.token(ours.max_opening_fee),
        cap_in=cap_in,
        cap_out=cap_out,
        deadline_s=units.parse_duration(choices.deadline) if choices.deadline else ours.deadline_s,
        window_s=units.parse_duration(choices.window) if choices.window else ours.window_s,
        auditor=named_auditor(choices.auditor or ours.auditor),
        acknowledge=choices.ack == "now",
        arbitrator=check_named(choices.arbitrator or ours.arbitrator),
        audit_bps=audit_bps(choices.verify or ours.verify, ours.verify),
    )


def named_auditor(named: str) -> str:
    """An auditor that is typed: an address, matcher, or none. Raises IdInvalid."""
    if named in ("", "none"):
        return ZERO_ADDRESS
    return named if named == THE_MATCHERS else ids.address(named)


def auditor_of(wishes: Wishes, price: Quote) -> str:
    """The auditor that an order names. Raises NoCapacity where the matcher pays none."""
    if wishes.auditor != THE_MATCHERS:
        return wishes.auditor
    if price.audits is None:
        raise NoCapacity(
            "this matcher pays no auditor",
            f"{price.matcher} offers no audits with its quote",
            next_step="name an auditor's address with --auditor, or none",
        )
    return price.audits.auditor


async def within_limits(context: Context, model: Model, wishes: Wishes, choices: Choices) -> Wishes:
    """The wishes as this network takes them: times within its limits, the arbitrator an address.

    Raises UsageError when longer times were asked for, or a game about a model that has none.
    """
    limits = await context.chain.read("TaskRegistry", "params")
    longest = {
        "deadline": limits["maxJobSeconds"] - CLOCK_SLACK_S,
        "window": limits["maxWindowSeconds"],
    }
    wanted = {"deadline": wishes.deadline_s, "window": wishes.window_s}
    for name, limit_s in longest.items():
        asked = getattr(choices, name) is not None or context.settings.is_set(f"client.{name}")
        if asked and wanted[name] > limit_s:
            raise UsageError(
                f"a {name} of {units.format_duration(wanted[name])} is too long",
                f"this network allows at most {units.format_duration(limit_s)}",
                next_step=f"pass --{name} {units.format_duration(limit_s)}, or less",
            )
    profile = model.spec.numerics_profile
    return replace(
        wishes,
        deadline_s=min(wishes.deadline_s, longest["deadline"]),
        window_s=min(wishes.window_s, longest["window"]),
        arbitrator=await arbitrator_of(context.chain, profile, wishes.arbitrator),
    )


def read_file(file: Path, defaults: SamplingParams) -> tuple[list[ChatRequest], list[LineInvalid]]:
    """Requests of a JSONL file; `defaults` for lines that do not say.

    Raises UsageError when it cannot be read, holds none or too many.
    """
    try:
        lines = file.read_bytes().removeprefix(BYTE_ORDER_MARK).split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {file}", error.strerror or str(error)) from None
    good, bad = read_requests(lines, defaults)
    if not good:
        why = "; ".join(f"line {e.details['line_number']}: {e.why}" for e in bad[:3])
        raise UsageError(f"{file} holds no request", why or "it is empty")
    if len(good) > wire.MAX_REQUESTS:
        raise UsageError(
            f"{file} holds {len(good)} requests",
            f"one job has at most {wire.MAX_REQUESTS}",
            next_step=f"split -l {wire.MAX_REQUESTS} {file}",
        )
    return good, bad


def prepare(
    good: list[ChatRequest], bad: list[LineInvalid], tokenizer: Tokenizer, context_tokens: int
) -> Prepared:
    """Token ids for every request; one that does not fit the context is rejected, with numbers."""
    prompts: list[Prompt] = []
    rejected: list[tuple[str, HeadraceError]] = [
        (e.details["custom_id"] or f"line-{e.details['line_number']}", e) for e in bad
    ]
    for request in good:
        ids = _token_ids(request, tokenizer)
        asked = request.custom_id, ids, request.sampling
        try:
            check_grammar(request.sampling, tokenizer)
            prompts.append(make_prompt(*asked, context_tokens, os.urandom))
        except (ModelUnsupported, UsageError) as error:
            rejected.append((request.custom_id, error))
    if not prompts:
        first = rejected[0][1]
        why = f"{first.what}: {first.why}"
        raise UsageError("no request can be run", why, next_step=first.next_step)
    return Prepared(prompts, rejected)


def _token_ids(request: ChatRequest, tokenizer: Tokenizer) -> list[int]:
    if request.is_plain:
        return tokenizer.encode(request.messages[0].content)
    return tokenizer.encode_chat([{"role": m.role, "content": m.content} for m in request.messages])


def check_caps(
    settings: Settings, wishes: Wishes, layer_units: int, price: Quote, locked: int
) -> None:
    """Raise PriceAboveCap when the offer, or `locked` base units, is above the caps."""
    for what, nano, cap in (
        ("prompt", price.price_in, wishes.cap_in),
        ("answer", price.price_out, wishes.cap_out),
    ):
        if cap is not None and nano > units.nano_price(cap, layer_units):
            raise PriceAboveCap(
                f"no pipeline within the price cap for {what} tokens",
                f"the cap is {settings.show_price(cap)}",
                nearest_offer=settings.show_price(units.price_of_nano(nano, layer_units)),
            )
    if price.opening_fee > wishes.max_opening_fee:
        raise PriceAboveCap(
            "the matcher asks too much for opening a job",
            f"it asks {settings.show_token(price.opening_fee)}, the limit is "
            f"{settings.show_token(wishes.max_opening_fee)}",
            next_step="raise client.max_opening_fee, or use another matcher",
            nearest_offer=settings.show_token(price.opening_fee),
        )
    if locked > wishes.max_cost:
        raise PriceAboveCap(
            "the job would lock more than --max-cost",
            f"it locks {settings.show_token(locked)}, the limit is "
            f"{settings.show_token(wishes.max_cost)}",
            next_step="raise --max-cost, or lower --max-tokens",
        )


def maximum(model: Model, price: Quote, prepared: Prepared) -> int:
    """What the order locks, base units."""
    return price.lock(model.spec, prepared.tokens_in, prepared.max_tokens_out)


def describe(settings: Settings, model: Model, price: Quote, prepared: Prepared) -> Offer:
    """The offer as people read it."""
    show = settings.show_token
    least, most = price.lock(model.spec, prepared.tokens_in, 0), maximum(model, price, prepared)
    price_in, price_out = map(settings.show_price, price.prices(model.spec))
    opening = f", {show(price.opening_fee)} for opening" if price.opening_fee else ""
    rejected = len(prepared.rejected)
    return Offer(
        model=model.name,
        requests=f"{len(prepared.prompts)} ({rejected} line{'s' * (rejected != 1)} rejected)",
        tokens=f"{prepared.tokens_in} in, at most {prepared.max_tokens_out} out",
        price=f"{price_in} in, {price_out} out{opening}",
        cost=f"{show(least)} to {show(most)}",
        route=route_text(price.plan) or "every pipeline is busy now: an order waits for a place",
    )


def describe_auditor(settings: Settings, wishes: Wishes, price: Quote) -> str:
    """Which auditor an order would name, and what it may see; "" where none is offered or named."""
    offer, named = price.audits, auditor_of(wishes, price)
    paid = ""
    if offer is not None and named in (offer.auditor, ZERO_ADDRESS):
        fee, share = settings.show_token(offer.fee_units), f"{offer.rate_bps / 100:g} %"
        paid = f"; the matcher pays it {fee} for each of {share} of the requests"
    if named != ZERO_ADDRESS:
        return f"{named} may see every prompt and dispute{paid}"
    if offer is None:
        return ""
    return f"nobody; with --auditor matcher {offer.auditor} may see every prompt{paid}"


def check_writable(folder: Path) -> None:
    """Raise UsageError when results could not be kept, before anything is paid for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}", error.strerror or str(error)) from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write into {folder.absolute()}", next_step="name a folder: --out")


def terms_for(wishes: Wishes, price: Quote, chain_now: int) -> OrderTerms:
    """Terms of an order made at this chain time, but for its demands, by wishes `within_limits`."""
    return OrderTerms(
        price_in=price.price_in,
        price_out=price.price_out,
        matcher=price.matcher,
        matcher_fee_bps=price.fee_bps,
        opening_fee=price.opening_fee,
        min_stake=0,
        deadline=chain_now + wishes.deadline_s,
        window=wishes.window_s,
        auditor=auditor_of(wishes, price),
        arbitrator=wishes.arbitrator,
    )


def terms_by(wishes: Wishes, price: Quote, demands: Callable[[], Terms | None]) -> TermsOf:
    """Terms of orders at this price, with the demands of the moment in which each is made."""
    return lambda chain_now: replace(terms_for(wishes, price, chain_now), demands=demands())


def terms_elsewhere(
    settings: Settings,
    matchers: Matchers,
    work: tuple[Model, Prepared],
    wishes: Wishes,
    demands: Callable[[], Terms | None],
) -> TermsElsewhere:
    """Terms of orders of this work at what another matcher asks, where the wishes allow it."""
    model, prepared = work

    async def elsewhere(but_not: frozenset[str]) -> TermsOf:
        tokens = prepared.tokens_in, prepared.max_tokens_out
        price = await matchers.quote(model.model_id, *tokens, demands(), but_not=but_not)
        locked = maximum(model, price, prepared)
        check_caps(settings, wishes, model.spec.layer_units, price, locked)
        return terms_by(wishes, price, demands)

    return elsewhere


def ending_by(tokenizer: Tokenizer) -> Callable[[Prompt], AnswerEnding]:
    """Decides by this tokenizer where an answer to a prompt ends, and holds it to its grammar."""

    def ending_of(prompt: Prompt) -> AnswerEnding:
        sampling, ids = prompt.sampling, prompt.ids
        grammar = grammar_of(sampling, ids, tokenizer)
        return AnswerEnding(sampling, tokenizer.eos_ids, tokenizer, ids, grammar)

    return ending_of


def limits_of(settings: Settings) -> PipelinePatience:
    """How long a pipeline waits for its stages, by the settings."""
    beat = Beat(settings.failover.ping_ms / 1000, settings.failover.missed_pings)
    return PipelinePatience(beat=beat, private_addresses=settings.network.private_addresses)


def write_results(
    folder: Path, result: BatchResult, prepared: Prepared, tokenizer: Tokenizer, model: str
) -> None:
    """`output.jsonl` and, if anything failed, `errors.jsonl`, in the OpenAI batch format."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = {p.custom_id: p for p in prepared.prompts}
    answers = [
        _answer_line(prompts[custom_id], done, tokenizer, model)
        for custom_id, done in result.finished.items()
    ]
    errors = [
        {"custom_id": custom_id, "response": None, "error": error.to_dict()}
        for custom_id, error in [*prepared.rejected, *result.unfinished.items()]
    ]
    for name, lines in (("output.jsonl", answers), ("errors.jsonl", errors)):
        if lines or name == "output.jsonl":
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8")


def _answer_line(
    prompt: Prompt, done: FinishedAnswer, tokenizer: Tokenizer, model: str
) -> dict[str, Any]:
    state, shown = done.state, None
    if prompt.sampling.n_logprobs is not None:
        shown = logprobs_shown(state.tokens, state.logprobs, tokenizer)
    return answer_line(
        prompt.custom_id,
        done.job_id,
        done.request_index,
        model=model,
        tokenizer=tokenizer,
        prompt_tokens=len(prompt.ids),
        tokens=state.tokens,
        finish=state.finish,
        sampling=prompt.sampling,
        logprobs=shown,
    )


def logprobs_shown(
    tokens: Sequence[int], told: Sequence[Logprobs | None], tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """What the last stage told of each token, in the OpenAI format with token ids; None if lost.

    A token that is not whole characters has no bytes.
    """

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token], keep_special=True)
        raw = None if "\ufffd" in text else list(text.encode())
        return {"id": token, "token": text, "logprob": logprob, "bytes": raw}

    return [
        None
        if one is None
        else entry(token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]}
        for token, one in zip(tokens, told, strict=True)
    ]
