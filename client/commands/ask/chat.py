"""`client chat`: one prompt or a conversation, each turn a request that is paid for by itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from client.commands.ask.render import ChatView
from client.commands.ask.submit import ask_price
from client.context import Context, Model, open_context
from client.jobs.wishes import (
    Choices,
    Prepared,
    describe,
    describe_auditor,
    logprobs_shown,
    wishes_of,
)
from client.orders.orders import make_prompt, short_address
from client.sessions.answering import Answered, Answerer, Ask, AskTerms
from client.sessions.pool import SessionPool
from core.engine.sampling.stops import cut_at_stop, stop_strings
from core.engine.weights.tokenizer import Tokenizer
from core.keys.signer import Signer
from core.protocol import ids
from core.protocol.errors import UsageError
from core.protocol.types import SamplingParams
from core.runtime.commands.console import Run
from core.runtime.commands.results import Result, plain


class ChatAnswer(Result, frozen=True):
    """`chat`."""

    answer: str
    tokens: int
    tokens_per_s: float
    paid: str
    job: str
    logprobs: list[Any] | msgspec.UnsetType | None = msgspec.UNSET


@dataclass(frozen=True)
class Conversation:
    """How to talk."""

    system: str | None
    sampling: SamplingParams


async def converse(
    run: Run, prompt: str | None, model_name: str | None, conversation: Conversation
) -> None:
    """Answer one prompt, or ask for prompts until end of input."""
    if not (prompt or "").strip() and (prompt is not None or not run.can_ask):
        raise UsageError("there is no prompt", next_step='client chat "PROMPT"')
    signer = run.unlock()
    async with open_context(run.settings) as context:
        model = await context.model(model_name or run.settings.client.model)
        tokenizer = Tokenizer((await context.files_of(model)).folder)
        messages: list[dict[str, str]] = []
        if conversation.system:
            messages.append({"role": "system", "content": conversation.system})
        sessions = _sessions(context, signer, is_one=prompt is not None)
        try:
            while True:
                said = prompt if prompt is not None else _ask(run)
                if not said.strip():
                    return
                messages.append({"role": "user", "content": said})
                talk = model, tokenizer, sessions, messages, conversation
                answer = await _turn(run, context, *talk)
                messages.append({"role": "assistant", "content": answer})
                if prompt is not None:
                    return
        finally:
            await sessions.close()


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """A conversation by the model's template; for a base model, which has none, its text."""
    if tokenizer.can_chat:
        return tokenizer.encode_chat(messages)
    return tokenizer.encode("\n".join(message["content"] for message in messages))


def _sessions(context: Context, signer: Signer, *, is_one: bool) -> Answerer:
    """For one prompt a session of one request, which locks no more than it can cost."""
    sizes = context.settings.sessions
    if is_one:
        least = dict.fromkeys(("requests", "tokens_in", "tokens_out", "in_flight"), 1)
        sizes = sizes.model_copy(update=least)
    return SessionPool(context, signer, sizes=sizes)


def _ask(run: Run) -> str:
    try:
        return run.ask("you", flag="PROMPT")
    except EOFError:
        return ""


async def _turn(
    run: Run,
    context: Context,
    model: Model,
    tokenizer: Tokenizer,
    answerer: Answerer,
    messages: list[dict[str, str]],
    conversation: Conversation,
) -> str:
    prompt = make_prompt(
        "chat",
        prompt_ids(tokenizer, messages),
        conversation.sampling,
        model.spec.context,
        os.urandom,
    )
    settings, quiet = run.settings, run.options.json
    if not tokenizer.can_chat and all(m["role"] != "assistant" for m in messages):
        run.note(f"[dim]{model.name} is a base model: it goes on from the text[/dim]")
    if run.options.dry_run:
        price = await ask_price(context, model, Prepared([prompt], []))
        offer = describe(settings, model, price, Prepared([prompt], []))
        if auditor := describe_auditor(settings, wishes_of(settings, Choices()), price):
            offer = msgspec.structs.replace(offer, auditor=auditor)
        run.confirm("Sign and lock it?", plain(offer))
    stops = stop_strings(conversation.sampling)
    view = ChatView(tokenizer, (lambda text: None) if quiet else _write, stops)
    tokens, logprobs, done = [], [], None
    terms = AskTerms(audit_bps=wishes_of(settings, Choices()).audit_bps)
    items = answerer.answer(Ask("chat", model, prompt, terms))
    try:
        async for item in items:
            if isinstance(item, Answered):
                done = item
                continue
            tokens.append(item.token)
            logprobs.append(item.logprobs)
            view.token("chat", item.step, item.token)
    finally:
        await items.aclose()
    assert done is not None, "an answer ends with what it cost, or with an error"
    view.request_finished("chat", done.finish)
    answer = cut_at_stop(tokenizer.answer_text(tokens), stops)
    rate = view.tokens / max(time.monotonic() - view.began_s, 1e-9)
    facts = ChatAnswer(
        answer=answer,
        tokens=view.tokens,
        tokens_per_s=round(rate, 2),
        paid=settings.show_token(done.cost_units),
        job=ids.short(ids.Kind.JOB, done.job_id),
        logprobs=msgspec.UNSET
        if conversation.sampling.n_logprobs is None
        else logprobs_shown(tokens, logprobs, tokenizer),
    )
    if quiet:
        run.emit(facts)
    else:
        _write("\n")
        route = " → ".join(short_address(operator) for operator in done.operators)
        speed = f"{view.tokens} tokens · {rate:.1f} tok/s"
        run.note(f"[dim]{speed} · {facts.paid} · {route} · {facts.job}[/dim]")
    return answer


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
