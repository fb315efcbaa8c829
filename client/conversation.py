"""`client chat`: one prompt or a conversation, each turn a small paid job."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from client.context import Context, Model, open_context
from client.jobs import Policy, Requester, new_submission_id, run_batch
from client.orders import make_prompt
from client.render import ChatView, route_text
from client.submission import (
    Choices,
    Prepared,
    ask_price,
    check_caps,
    describe,
    ending_by,
    limits_of,
    logprobs_shown,
    maximum,
    terms_for,
    wishes_of,
    within_limits,
)
from core.engine.stops import cut_at_stop, stop_strings
from core.engine.tokenizer import Tokenizer
from core.protocol import ids
from core.protocol.errors import UsageError
from core.protocol.signer import Signer
from core.protocol.types import SamplingParams
from core.runtime.clock import SystemClock
from core.runtime.console import Run


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
        tokenizer = Tokenizer(model.folder(run.settings))
        messages: list[dict[str, str]] = []
        if conversation.system:
            messages.append({"role": "system", "content": conversation.system})
        while True:
            said = prompt if prompt is not None else _ask(run)
            if not said.strip():
                return
            messages.append({"role": "user", "content": said})
            answer = await _turn(run, context, model, tokenizer, signer, messages, conversation)
            messages.append({"role": "assistant", "content": answer})
            if prompt is not None:
                return


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
    signer: Signer,
    messages: list[dict[str, str]],
    conversation: Conversation,
) -> str:
    prompt = make_prompt(
        "chat",
        tokenizer.encode_chat(messages),
        conversation.sampling,
        model.spec.context,
        os.urandom,
    )
    settings, prepared = run.settings, Prepared([prompt], [])
    wishes = await within_limits(context, wishes_of(settings, Choices()), Choices())
    price = await ask_price(context, model, prepared)
    locked = maximum(model, price, prepared)
    check_caps(settings, wishes, model.spec.layer_units, price, locked)
    if run.options.dry_run:
        run.confirm("Sign and lock it?", describe(settings, model, price, prepared))
    store, matcher = context.store(), context.matcher()
    quiet = run.options.json
    stops = stop_strings(conversation.sampling)
    view = ChatView(tokenizer, (lambda text: None) if quiet else _write, stops)
    try:
        requester = Requester(
            context.chain,
            matcher,
            signer,
            store,
            SystemClock(),
            model.model_id,
            model.spec,
            ending_by(tokenizer),
        )
        policy = Policy(
            terms_of=lambda now: terms_for(context, wishes, price, now), limits=limits_of(settings)
        )
        result = await run_batch(requester, [prompt], policy, view, new_submission_id())
    finally:
        await matcher.close()
        store.close()
    if result.unfinished:
        raise result.unfinished["chat"]
    done = result.finished["chat"]
    answer = cut_at_stop(tokenizer.decode(done.state.tokens), stops)
    rate = view.tokens / max(time.monotonic() - view.began_s, 1e-9)
    match = result.matches[-1]
    facts = {
        "answer": answer,
        "tokens": view.tokens,
        "tokens_per_s": round(rate, 2),
        "paid": run.settings.show_token(view.paid_units),
        "job": ids.short(ids.Kind.JOB, match.job_id),
    }
    if conversation.sampling.n_logprobs is not None:
        facts["logprobs"] = logprobs_shown(done.state.tokens, done.state.logprobs, tokenizer)
    if quiet:
        run.emit(facts)
    else:
        _write("\n")
        run.note(
            f"[dim]{view.tokens} tokens · {rate:.1f} tok/s · {facts['paid']} · {route_text(match.plan)} · {facts['job']}[/dim]"
        )
    return answer


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
