"""Is an honest stage accused, whatever kernels, batches and orders of summation it has?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.table import Row
from benchmarks.trust.judging import Finding, Judge
from benchmarks.trust.kernels import OTHER_SUMS
from benchmarks.trust.town import SAMPLED, Served, Town, attention, columns, quick_columns, town
from core.dispute.registration.kernels import by_pieces, in_company, with_threads
from core.engine.batch.whole import prepare, run_whole
from core.engine.kernels.prepack import prepack
from core.engine.model.blocks import Final, ModelShard, output_of
from core.engine.native import native
from core.engine.sampling.sampling import Sampler, sample_batch

REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 2, 60, 12
CHUNK = 16
QUICK = {"REQUESTS": 1, "PROMPT_TOKENS": 20, "NEW_TOKENS": 3, "columns": quick_columns}
#: Rows of one request through a stage, from what the stage was given; of a last stage logits,
#: beside its rows where it runs a shard of its own.
Kernel = Callable[[Tensor], Tensor | Final]


@dataclass
class Tally:
    """What was judged, and how near the limits it came."""

    executions: int = 0
    rows: int = 0
    tokens: int = 0
    accused: int = 0
    suspected: int = 0
    excess: float = 0.0
    q: float = 0.0


def rows() -> list[Row]:
    """One row a model and profile."""
    torch.set_num_threads(1)
    found = []
    for model, profile in columns():
        with town(model, profile) as here:
            found.append(_row(here, profile))
    return found


def _row(here: Town, profile: str) -> Row:
    tally, kinds = Tally(), dict.fromkeys(())
    prompts = here.prompts(REQUESTS, PROMPT_TOKENS)
    jobs = [here.serve(i, prompt, NEW_TOKENS) for i, prompt in enumerate(prompts)]
    judge, named = Judge(here), set[str]()
    for stage in here.audited:
        for name, kernel in _kernels(here, stage):
            kinds[name] = None
            for job in jobs:
                before = tally.accused + tally.suspected
                _count(tally, judge, _again(here, job, stage, kernel), stage, len(here.spans))
                if tally.accused + tally.suspected > before:
                    named.add(f"{name} at stage {stage}")
    said = (
        f"{tally.accused} accused, {tally.suspected} suspected in {tally.executions} executions "
        f"({tally.rows} rows, {tally.tokens} tokens; {len(kinds)} kernels: {', '.join(kinds)}); "
        f"at most {tally.excess:.2f} T, studentised {tally.q:.2f}"
    )
    if named:
        said += f"; spoken against: {', '.join(sorted(named))}"
    return Row(
        f"{here.name}, {profile}: honest executions",
        "0 accusations",
        said,
        "–",
        "0",
        tally.accused == 0 and tally.suspected == 0 and tally.executions > 0,
    )


def _count(tally: Tally, judge: Judge, served: Served, stage: int, stages: int) -> None:
    judged = judge.stage(served, stage)
    tally.executions += 1
    if stage < stages - 1:
        tally.rows += len(served.rows[stage])
    else:
        tally.rows += len(served.states)
        tally.tokens += len(served.tokens)
    tally.accused += judged.finding == Finding.SLASHED
    tally.suspected += judged.finding == Finding.SUSPICIOUS
    tally.excess = max(tally.excess, judged.excess)
    tally.q = max(tally.q, judged.q)


def _again(here: Town, job: Served, stage: int, kernel: Kernel) -> Served:
    """The job with this stage's part done by another kernel, from the same committed inputs."""
    given = job.entering(stage)
    shard = here.shards[stage]
    x = given if stage == 0 else given.to(shard.dtype)
    with output_of(shard.decoder_layers[-1]) as left:
        out = kernel(x)
    if stage < len(here.spans) - 1:
        changed = list(job.rows)
        changed[stage] = out.float().numpy()
        return replace(job, rows=tuple(changed))
    rows = torch.cat([part.reshape(-1, shard.hidden) for part in left]) if left else None
    if isinstance(out, Final):  # of a kernel that runs a shard of its own
        rows, out = out
    assert rows is not None and len(rows) == len(x), "a last stage signs what its last layer gave"
    states = rows[len(job.prompt) - 1 :].float().numpy()
    sampler, tokens = Sampler(SAMPLED, job.request, job.prompt, frozenset()), []
    for step in range(len(job.tokens)):
        (choice,) = sample_batch(out[len(job.prompt) - 1 + step][None], [sampler])
        tokens.append(int(choice.token))
        sampler.take(job.tokens[step])
    # Positions after one that another kernel would draw otherwise are fed what was served: judged
    # as drawn there.
    drawn = _where_alike(job, tokens)
    return replace(job, tokens=drawn, states=states[: len(drawn)])


def _where_alike(job: Served, tokens: list[int]) -> tuple[int, ...]:
    """Drawn tokens up to and with the first that differs from what was fed on."""
    for step, (ours, theirs) in enumerate(zip(tokens, job.tokens, strict=True)):
        if ours != theirs:
            return tuple(tokens[: step + 1])
    return tuple(tokens)


def _kernels(here: Town, stage: int) -> Iterator[tuple[str, Kernel]]:
    shard = here.shards[stage]
    yield "whole, eager attention", lambda x: attention(shard, "eager")(shard, 0)(x)
    yield "whole, fused attention", lambda x: attention(shard, "sdpa")(shard, 0)(x)
    ready = prepare(here.load(here.spans[stage]), here.folder)
    yield "whole, as auditors run it", partial(run_whole, ready, states=True)
    yield f"chunks of {CHUNK}", partial(by_pieces(CHUNK), shard)
    yield "decoded one by one", partial(by_pieces(1), shard)
    yield "two threads", partial(with_threads(2), shard)
    for name, sums in OTHER_SUMS.items():
        yield name, partial(sums, shard)
    for batch in (1, 8, 32):
        yield f"batch of {batch}, torch's kernels", _batched(shard, batch, bare=True)
    packed = here.load(here.spans[stage])
    least = prepack(packed, model_dir=here.folder).least_rows
    for batch in (1, 8, 32):
        yield f"batch of {batch}, our kernels", _batched(packed, batch, least_rows=least)


# --- batches ---


def _batched(shard: ModelShard, batch: int, *, bare: bool = False, least_rows: int = 2) -> Kernel:
    """Prompt and single steps in the company of others, at the engine's own pages.

    `bare` without our C kernels.
    """

    def run(x: Tensor) -> Tensor:
        with _no_kernels() if bare else ExitStack():
            return in_company(shard, x, PROMPT_TOKENS, batch, least_rows=least_rows)

    return run


@contextmanager
def _no_kernels() -> Iterator[None]:
    made: Any = native._made_once
    native._made_once = lambda bits: "left out to be measured without"  # type: ignore[assignment]
    try:
        yield
    finally:
        native._made_once = made
