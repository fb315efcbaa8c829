"""`client submit` and `client quote`: a file in, answers, receipts and the money's story out."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.context import Context, Model, open_context
from client.jobs import BatchResult, Policy, Requester, new_submission_id, run_batch
from client.orders import Prompt, Terms, make_prompt
from client.render import BatchView, short_address
from client.requests import ChatRequest, Defaults, read_requests
from client.wallet import balances
from core.engine.tokenizer import Tokenizer
from core.protocol import ids, pricing, units
from core.protocol.errors import (
    ContextTooLong,
    HeadraceError,
    LineInvalid,
    NoCapacity,
    UsageError,
)
from core.protocol.types import ZERO_ADDRESS
from core.runtime.clock import SystemClock
from core.runtime.console import Run


@dataclass(frozen=True)
class Choices:
    """The flags of `client submit`."""

    max_tokens: int
    max_cost: str | None
    price_cap: str | None
    deadline: str | None
    window: str | None
    ack: str
    auditor: str | None
    out: Path | None
    text: bool


@dataclass(frozen=True)
class Prepared:
    """A file as prompts that fit the model, and the lines that do not."""

    prompts: list[Prompt]
    rejected: dict[str, HeadraceError]

    @property
    def tokens_in(self) -> int:
        return sum(len(p.ids) for p in self.prompts)

    @property
    def max_tokens_out(self) -> int:
        return sum(p.sampling.max_new_tokens for p in self.prompts)


@dataclass(frozen=True)
class Price:
    """What the pipeline asks, in nano base units per token and layer unit."""

    price_in: int
    price_out: int
    route: str
    matcher: str
    matcher_fee_bps: int


def read_file(file: Path, max_tokens: int) -> tuple[list[ChatRequest], list[LineInvalid]]:
    """Requests of a JSONL file. Raises UsageError when it cannot be read or holds none."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {file}", error.strerror or str(error)) from None
    good, bad = read_requests(lines, Defaults(max_new_tokens=max_tokens))
    if not good:
        why = "; ".join(f"line {e.details['line_number']}: {e.why}" for e in bad[:3])
        raise UsageError(f"{file} holds no request", why or "it is empty")
    return good, bad


def prepare(
    good: list[ChatRequest], bad: list[LineInvalid], tokenizer: Tokenizer, context_tokens: int
) -> Prepared:
    """Token ids for every request; one that does not fit the context is rejected with the numbers."""
    prompts: list[Prompt] = []
    rejected: dict[str, HeadraceError] = {f"line-{e.details['line_number']}": e for e in bad}
    for request in good:
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        try:
            token_ids = tokenizer.encode_chat(messages)
            prompts.append(
                make_prompt(
                    request.custom_id, token_ids, request.sampling, context_tokens, os.urandom
                )
            )
        except (ContextTooLong, UsageError) as error:
            rejected[request.custom_id] = error
    if not prompts:
        first = next(iter(rejected.values()))
        raise UsageError(
            "no request can be run", f"{first.what}: {first.why}", next_step=first.next_step
        )
    return Prepared(prompts, rejected)


async def ask_price(context: Context, model: Model, prepared: Prepared) -> Price:
    """The matcher's lowest price for this much work. Raises NoCapacity."""
    api = context.matcher()
    try:
        quote = await api.quote(model.model_id, prepared.tokens_in, prepared.max_tokens_out)
        status = await api.status()
    finally:
        await api.close()
    return Price(
        price_in=int(quote["priceIn"]),
        price_out=int(quote["priceOut"]),
        route=" → ".join(
            f"{short_address(s['operator'])} [{s['layerFrom']}-{s['layerTo'] - 1}]"
            for s in quote["route"]
        ),
        matcher=str(status["matcher"]),
        matcher_fee_bps=int(status["feeBps"]),
    )


def check_caps(run: Run, choices: Choices, model: Model, price: Price, locked: int) -> None:
    """Raise NoCapacity when the offer is above the caps the person set."""
    settings = run.settings
    layer_units = model.spec.layer_units
    offered = units.price_of_nano(max(price.price_in, price.price_out), layer_units)
    if choices.price_cap is not None and offered > settings.price(choices.price_cap):
        raise NoCapacity(
            "no pipeline within the price cap",
            f"the cap is {choices.price_cap}",
            nearest_offer=settings.show_price(offered),
        )
    limit = settings.token(choices.max_cost or settings.client.max_cost_per_job)
    if locked > limit:
        raise NoCapacity(
            "the job would lock more than --max-cost",
            f"it locks {settings.show_token(locked)}, the limit is {settings.show_token(limit)}",
            next_step="raise --max-cost, or lower --max-tokens",
            nearest_offer=settings.show_token(locked),
        )


def maximum(model: Model, price: Price, prepared: Prepared) -> int:
    """What the order locks."""
    return pricing.cost(
        model.spec.layer_units,
        prepared.tokens_in,
        prepared.max_tokens_out,
        price.price_in,
        price.price_out,
    )


def describe(run: Run, model: Model, price: Price, prepared: Prepared) -> dict[str, str]:
    """The offer as people read it."""
    settings, layer_units = run.settings, model.spec.layer_units
    at_least = pricing.cost(layer_units, prepared.tokens_in, 0, price.price_in, price.price_out)
    return {
        "model": model.name,
        "requests": f"{len(prepared.prompts)} ({len(prepared.rejected)} lines rejected)",
        "tokens": f"{prepared.tokens_in} in, at most {prepared.max_tokens_out} out",
        "price": f"{settings.show_price(units.price_of_nano(price.price_in, layer_units))} in, "
        f"{settings.show_price(units.price_of_nano(price.price_out, layer_units))} out",
        "cost": f"{settings.show_token(at_least)} to {settings.show_token(maximum(model, price, prepared))}",
        "route": price.route,
    }


async def quote_file(run: Run, file: Path, model_name: str | None, max_tokens: int) -> Any:
    """What the file would cost now."""
    good, bad = read_file(file, max_tokens)
    async with open_context(run.settings) as context:
        model = await context.model(model_name or run.settings.client.model)
        tokenizer = Tokenizer(model.folder(run.settings))
        prepared = prepare(good, bad, tokenizer, model.spec.context)
        price = await ask_price(context, model, prepared)
        return describe(run, model, price, prepared)


async def submit_file(run: Run, file: Path, model_name: str | None, choices: Choices) -> None:
    """Run the file and report; exit with the first failure's error when a request could not be answered."""
    if choices.ack not in ("now", "later"):
        raise UsageError(f"--ack {choices.ack}", "it is now or later")
    settings = run.settings
    good, bad = read_file(file, choices.max_tokens)
    signer = run.unlock()
    async with open_context(settings) as context:
        model = await context.model(model_name or settings.client.model)
        tokenizer = Tokenizer(model.folder(settings))
        prepared = prepare(good, bad, tokenizer, model.spec.context)
        for name, error in prepared.rejected.items():
            run.note(f"skipped  {name}: {error.what}: {error.why}")
        price = await ask_price(context, model, prepared)
        locked = maximum(model, price, prepared)
        check_caps(run, choices, model, price, locked)
        summary = describe(run, model, price, prepared)
        summary["wallet"] = f"{signer.address}; at most {settings.show_token(locked)} is locked"
        run.confirm("Sign and lock it?", summary)
        policy = Policy(
            terms_of=lambda now: terms_for(context, choices, price, now),
            acknowledge=choices.ack == "now",
        )
        before = await balances(context.chain, signer.address)
        store, matcher = context.store(), context.matcher()
        try:
            with run.stage(1, 1, "generating", total=len(prepared.prompts)) as stage:
                view = BatchView(
                    run,
                    tokenizer,
                    settings.show_token,
                    stage,
                    stream_text=choices.text and not run.options.quiet,
                )
                requester = Requester(
                    context.chain,
                    matcher,
                    signer,
                    store,
                    SystemClock(),
                    model.model_id,
                    model.spec,
                )
                result = await run_batch(
                    requester, prepared.prompts, policy, view, new_submission_id()
                )
        finally:
            await matcher.close()
            store.close()
        after = await balances(context.chain, signer.address)
    folder = _results_folder(choices, result)
    write_results(folder, result, prepared, tokenizer, model.name)
    spent = before.wallet + before.deposited - after.wallet - after.deposited
    summary = {
        "jobs": [ids.short(ids.Kind.JOB, m.job_id) for m in result.matches],
        "job_ids": [ids.full(ids.Kind.JOB, m.job_id) for m in result.matches],
        "finished": len(result.finished),
        "failed": len(result.unfinished) + len(prepared.rejected),
        "tokens": view.tokens,
        "tokens_per_s": round(view.tokens_per_s, 2),
        "spent": settings.show_token(spent),
        "prepaid": settings.show_token(after.deposited),
        "results": str(folder / "output.jsonl"),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    run.emit(summary)
    if result.unfinished:
        raise next(iter(result.unfinished.values()))


def terms_for(context: Context, choices: Choices, price: Price, chain_now: int) -> Terms:
    settings = context.settings
    deadline_s = (
        units.parse_duration(choices.deadline) if choices.deadline else settings.client.deadline_s
    )
    window_s = units.parse_duration(choices.window) if choices.window else settings.client.window_s
    return Terms(
        price_in=price.price_in,
        price_out=price.price_out,
        matcher=price.matcher,
        matcher_fee_bps=price.matcher_fee_bps,
        min_stake=0,
        deadline=chain_now + deadline_s,
        window=window_s,
        auditor=ids.address(choices.auditor)
        if choices.auditor
        else settings.client.auditor or ZERO_ADDRESS,
        arbitrator=context.chain.addresses["JuryArbitrator"],
    )


def _results_folder(choices: Choices, result: BatchResult) -> Path:
    name = ids.short(ids.Kind.JOB, result.matches[0].job_id)
    folder = choices.out or Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_results(
    folder: Path, result: BatchResult, prepared: Prepared, tokenizer: Tokenizer, model: str
) -> None:
    """`output.jsonl` and `errors.jsonl` in the OpenAI batch format, one line per request."""
    prompts = {p.custom_id: p for p in prepared.prompts}
    answers = [
        _answer_line(custom_id, done, len(prompts[custom_id].ids), tokenizer, model)
        for custom_id, done in result.finished.items()
    ]
    errors = [
        {"custom_id": custom_id, "response": None, "error": error.to_dict()}
        for custom_id, error in {**prepared.rejected, **result.unfinished}.items()
    ]
    for name, lines in (("output.jsonl", answers), ("errors.jsonl", errors)):
        if lines or name == "output.jsonl":
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8")


def _answer_line(
    custom_id: str, done: Any, prompt_tokens: int, tokenizer: Tokenizer, model: str
) -> dict[str, Any]:
    tokens = done.state.tokens
    job = ids.full(ids.Kind.JOB, done.job_id)
    body = {
        "id": f"{job}-{done.request_index}",
        "object": "chat.completion",
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": tokenizer.decode(tokens)},
                "finish_reason": done.state.finish,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(tokens),
            "total_tokens": prompt_tokens + len(tokens),
        },
    }
    return {
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": job, "body": body},
        "error": None,
    }
