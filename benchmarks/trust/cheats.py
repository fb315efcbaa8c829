"""Which lies are caught, by whom, and is the guilty stage the one that is named?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from benchmarks.table import Row
from benchmarks.trust import lies
from benchmarks.trust.judging import Finding, Judge
from benchmarks.trust.limits import Limits
from benchmarks.trust.town import (
    CUTS,
    FORMS,
    SAMPLED,
    Served,
    Town,
    Worker,
    columns,
    folder_of,
    honest,
    quick_columns,
    town,
)
from core.dispute.play.plea import SAMPLED as SAMPLED_SEEDS
from core.engine.model.blocks import ModelShard, output_of
from core.engine.sampling.sampling import Sampler, sample_batch

REQUESTS, PROMPT_TOKENS = 3, 80
END_STEPS = 20
TOKEN_REQUESTS, TOKEN_PROMPT, TOKEN_STEPS = 2, 24, 40
LIAR = 1
QUICK = {"REQUESTS": 1, "PROMPT_TOKENS": 60, "columns": quick_columns}


@dataclass(frozen=True)
class Lie:
    """A lie of the middle stage.

    `at_least` is what its profile promises; `alone`: of a stage of one layer in bfloat16.
    """

    name: str
    spoil: Callable[[ModelShard], None] | None = None
    worker: Worker = honest
    bf16: Finding = Finding.SLASHED
    alone: bool = False
    replays: bool = False


def _weights(how: lies.Spoil, one: bool) -> Callable[[ModelShard], None]:
    return lambda shard: lies.spoil(shard, how, 1 if one else len(shard.layers))


def _coarser() -> Iterator[Lie]:
    for name, how, bf16 in (
        ("int8 weights", lies.int8, Finding.SUSPICIOUS),
        ("fp8 weights", lies.fp8, Finding.SLASHED),
        ("int4 weights", lies.int4, Finding.SLASHED),
        ("weights off by 10^-2", lies.perturbed, Finding.SUSPICIOUS),
    ):
        yield Lie(f"{name}, all layers", _weights(how, one=False), bf16=bf16)
        yield Lie(f"{name}, one layer", _weights(how, one=True), bf16=bf16, alone=True)


LIES = (
    *_coarser(),
    Lie("one layer skipped", lies.skip_layer),
    Lie("keys and values one step stale", lies.stale_keys),
    Lie(f"context cut to {lies.CUT_TO}", worker=lies.truncated),
    Lie("activations of another request", replays=True),
)


def rows() -> list[Row]:
    """One row a model and profile for activations, and one of SmolLM2's for tokens."""
    torch.set_num_threads(1)
    found: list[Row] = []
    for model, profile in columns():
        found.append(_activations(model, profile))
        if model == "smollm":
            with town(model, profile) as here:
                found.append(tokens(here, profile))
                if profile == "fp32":
                    found.append(_at_the_end(here))
    return found


# --- activations ---


@dataclass
class Caught:
    """What became of a lie's jobs, by finding, and how often another stage was named."""

    findings: Counter[Finding]
    factor: float = inf  # D over the limit after a plea in its best window, of the worst job
    misnamed: int = 0
    others: int = 0


def _activations(model: str, profile: str) -> Row:
    caught: dict[str, Caught] = {}
    start, end = CUTS[model][0], CUTS[model][-1]
    for alone in (False, True):
        chosen = [lie for lie in LIES if (lie.alone and profile == "bf16") == alone]
        if chosen:
            with town(model, profile, (start, start + 1, end) if alone else ()) as here:
                caught |= _tell(here, chosen)
    promised = {lie.name: lie.bf16 if profile == "bf16" else Finding.SLASHED for lie in LIES}
    short = [name for name, c in caught.items() if min(c.findings) < promised[name]]
    slashed = [name for name, c in caught.items() if set(c.findings) == {Finding.SLASHED}]
    evicted = [name for name, c in caught.items() if min(c.findings) == Finding.SUSPICIOUS]
    missed = sum(c.findings[Finding.CLEAN] for c in caught.values())
    misnamed, others = (
        sum(getattr(c, what) for c in caught.values()) for what in ("misnamed", "others")
    )
    jobs = sum(c.findings.total() for c in caught.values())
    said = [
        f"{jobs - missed} of {jobs} jobs of {len(caught)} lies caught",
        f"slashed: {', '.join(slashed)}",
        *_factors(caught),
        *([f"suspected, unpaid and evicted: {', '.join(evicted)}"] if evicted else []),
        *([f"less than promised: {', '.join(short)}"] if short else []),
        f"an honest neighbour named {misnamed} times of {others}",
    ]
    return Row(
        f"{folder_of(model)[0]}, {profile}: lies about activations",
        "all slashed" if profile == "fp32" else "int8 and 10^-2 evicted, coarser slashed",
        "; ".join(said),
        "–",
        "every job, guilty stage named",
        not short and not missed and not misnamed and all(c.factor > 1 for c in caught.values()),
    )


def _factors(caught: dict[str, Caught]) -> list[str]:
    """How many times the limit lies have after a plea, where one is measured."""
    known = {name: c.factor for name, c in caught.items() if c.factor < inf}
    if not known:
        return []
    least = min(known, key=known.__getitem__)
    return [f"after a plea at least {known[least]:.1f} times the limit ({least})"]


def _tell(here: Town, chosen: Sequence[Lie]) -> dict[str, Caught]:
    """The same prompts through a pipeline whose middle stage tells one lie after the other."""
    prompts = here.prompts(REQUESTS + 1, PROMPT_TOKENS)
    first = [honest(here.shards[0], 0)(torch.tensor(prompt)) for prompt in prompts]
    true = [honest(here.shards[LIAR], 0)(x) for x in first[1:]]
    judge, found = Judge(here), {}
    limits = []
    if here.form == FORMS["fp32"]:
        limits = [Limits(here, LIAR, x, SAMPLED_SEEDS) for x in first[:REQUESTS]]
    for lie in chosen:
        liar = here.load(here.spans[LIAR]) if lie.spoil else here.shards[LIAR]
        if lie.spoil:
            lie.spoil(liar)
        caught = Caught(Counter())
        for request, prompt in enumerate(prompts[:REQUESTS]):
            worker = lies.replaying(true[request]) if lie.replays else lie.worker
            sent = worker(liar, request)(first[request])
            if limits:
                shares = limits[request].shares(sent, pleaded=True)
                caught.factor = min(caught.factor, max(float(s.max()) for s in shares))
            served = _signed(here, request, prompt, first[request], sent)
            caught.findings[judge.stage(served, LIAR).finding] += 1
            if request == 0 and 2 in here.audited:
                # The others did their work on what they were sent: nothing may be held against
                # them.
                others = [judge.stage(served, stage, student=False) for stage in (0, 2)]
                caught.others += len(others)
                caught.misnamed += sum(other.finding != Finding.CLEAN for other in others)
        found[lie.name] = caught
    return found


def _signed(here: Town, request: int, prompt: Sequence[int], first: Tensor, sent: Tensor) -> Served:
    """The request with its one token, drawn by an honest last stage from what it was sent."""
    tokens: tuple[int, ...] = (0,)
    states = None
    if request == 0 and 2 in here.audited:
        last = here.shards[2]
        with output_of(last.decoder_layers[-1]) as left:
            logits = honest(last, request)(sent)
        states = left[-1].reshape(-1, last.hidden)[-1:].float().numpy()
        sampler = Sampler(SAMPLED, request, prompt, frozenset())
        (choice,) = sample_batch(logits[-1:], [sampler])
        tokens = (int(choice.token),)
    rows = first.float().numpy(), sent.float().numpy()
    return Served(request, tuple(prompt), tokens, rows, states)


# --- activations of the last stage ---


def _at_the_end(here: Town) -> Row:
    """The same lies of the last stage: how many would its tokens alone have shown?"""
    last, judge = len(here.spans) - 1, Judge(here)
    prompts = here.prompts(REQUESTS + 1, PROMPT_TOKENS)
    true = [here.serve(i, prompt, END_STEPS) for i, prompt in enumerate(prompts)]
    clean = sum(judge.stage(served, last).finding == Finding.CLEAN for served in true)
    caught, by_token, misnamed, jobs = Counter[str](), 0, 0, 0
    for lie in LIES:
        liar = here.load(here.spans[last]) if lie.spoil else here.shards[last]
        if lie.spoil:
            lie.spoil(liar)
        workers, shards = [honest] * last + [lie.worker], [*here.shards[:last], liar]
        for request, prompt in enumerate(prompts[:REQUESTS]):
            if lie.replays:
                served = replace(true[request], states=true[request + 1].states)
            else:
                served = here.serve(request, prompt, END_STEPS, workers, shards)
            jobs += 1
            caught[lie.name] += judge.stage(served, last).finding == Finding.SLASHED
            bare = judge.stage(replace(served, states=None), last)
            by_token += bare.finding == Finding.SLASHED
            if request == 0:
                others = [judge.stage(served, stage, student=False) for stage in range(last)]
                misnamed += sum(other.finding != Finding.CLEAN for other in others)
    missed = [name for name in caught if caught[name] < REQUESTS]
    return Row(
        f"{here.name}, fp32: lies of the last stage about its work, {END_STEPS} tokens a job",
        "every job, by its state rows",
        f"{caught.total()} of {jobs} jobs of {len(LIES)} lies slashed, "
        f"{by_token} of them by their tokens alone; "
        f"{clean} of {len(prompts)} honest jobs clean; an honest neighbour named {misnamed} times"
        + (f"; missed: {', '.join(missed)}" if missed else ""),
        "–",
        "every job, no other stage",
        caught.total() == jobs and clean == len(prompts) and not misnamed,
    )


# --- tokens ---


def tokens(here: Town, profile: str) -> Row:
    """The last stage computes everything, and emits other tokens."""
    counts: dict[str, tuple[int, int]] = {}
    clean = 0
    judge, prompts = Judge(here), here.prompts(TOKEN_REQUESTS, TOKEN_PROMPT)
    for name, make in _SWAPS.items():
        found = 0
        for request, prompt in enumerate(prompts):
            served = make(here, request, prompt)
            found += judge.stage(served, len(here.spans) - 1).finding == Finding.SLASHED
            if request == 0:
                clean += judge.stage(served, LIAR, student=False).finding == Finding.CLEAN
        counts[name] = (found, len(prompts))
    said = ", ".join(f"{name} {found} of {of}" for name, (found, of) in counts.items())
    return Row(
        f"{here.name}, {profile}: tokens that do not follow, {TOKEN_STEPS} a job",
        "the last stage slashed in every job",
        f"{said}; perfect activations stayed clean {clean} of {len(_SWAPS)}",
        "–",
        "every job",
        all(found == of for found, of in counts.values()) and clean == len(_SWAPS),
    )


def _wrong_seed(here: Town, request: int, prompt: Sequence[int]) -> Served:
    """Drawn with the noise of another request."""
    drawn = here.serve(request + 1000, prompt, TOKEN_STEPS)
    return replace(drawn, request=request)


def _one_wrong(here: Town, request: int, prompt: Sequence[int]) -> Served:
    """One token of the answer, in its middle, is another one."""
    return here.serve(
        request,
        prompt,
        TOKEN_STEPS // 2,
        choose=lambda step, token: (token + 7) % 1000 if step == TOKEN_STEPS // 4 else token,
    )


def _cheap_model(here: Town, request: int, prompt: Sequence[int]) -> Served:
    """Tokens of an int4 model, put through the real one, teacher-forced."""
    cheap = here.cheap
    tokens = here.serve(request, prompt, TOKEN_STEPS, shards=cheap).tokens
    return here.serve(request, prompt, TOKEN_STEPS, choose=lambda step, _: tokens[step])


def _greedy(here: Town, request: int, prompt: Sequence[int]) -> Served:
    """The likeliest token instead of the drawn one."""
    held: list[int] = []
    last = len(here.spans) - 1

    def keep(shard: ModelShard, of: int) -> Callable[[Tensor], Tensor]:
        work = honest(shard, of)

        def seen(x: Tensor) -> Tensor:
            logits = work(x)
            held.append(int(logits[-1].argmax()))
            return logits

        return seen

    workers = [keep if stage == last else honest for stage in range(last + 1)]
    return here.serve(request, prompt, TOKEN_STEPS, workers, choose=lambda *_: held[-1])


_SWAPS = {
    "one wrong token": _one_wrong,
    "drawn with another seed": _wrong_seed,
    "greedy instead of drawn": _greedy,
    "an int4 model's tokens": _cheap_model,
}
