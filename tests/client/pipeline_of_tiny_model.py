"""A tiny model cut in three and really run in float32, so that there is something to audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from client.orders.orders import Prompt, PromptBatch
from core.engine.weights.tokenizer import Tokenizer
from core.engine.weights.weights import weight_roots
from core.protocol import commit
from core.protocol import types as t
from tests.client.keepers import Keepers
from tests.town.orders import SPANS

if TYPE_CHECKING:
    from core.engine.model.blocks import ModelShard

GREEDY = t.SamplingParams(max_new_tokens=6)
SAMPLED = t.SamplingParams(temperature_micro=900_000, top_k=40, max_new_tokens=6, seed=11)


#: Everything that a request may ask of sampling at once.
RICH = t.SamplingParams(
    temperature_micro=800_000,
    top_k=150,
    min_p_micro=1_000,
    max_new_tokens=20,
    seed=3,
    top_p_micro=950_000,
    key_index=5,
    first_step=4,
    repetition_penalty_micro=6_000_000,
    frequency_penalty_micro=2_000_000,
    presence_penalty_micro=-200_000,
    min_new_tokens=7,
    n_logprobs=2,
    logit_bias=((70, 8_000_000), (71, -100_000_000)),
)


def batch_of_prompts(samplings: Sequence[t.SamplingParams] = (GREEDY, SAMPLED)) -> PromptBatch:
    """A long request and a shorter one, by default greedy and sampled."""
    ids = [tuple(97 + (7 * i) % 26 for i in range(24)), tuple(range(65, 83))]
    return PromptBatch.of(
        [
            Prompt(f"p{i}", prompt, sampling, bytes([i + 1]) * 32)
            for i, (prompt, sampling) in enumerate(zip(ids, samplings, strict=True))
        ]
    )


def shard_roots(model_dir: Path) -> list[str]:
    weights = weight_roots(model_dir)
    return [commit.to_hex(weights.shard_root(a, b)) for a, b in SPANS]


def run_pipeline(
    model_dir: Path,
    *,
    spoil: Callable[[int, ModelShard], None] = lambda stage, shard: None,
    samplings: Sequence[t.SamplingParams] = (GREEDY, SAMPLED),
    numerics: str = "float32",
) -> Keepers:
    """Stages that keep what they computed; `spoil` may tamper with a stage's weights first."""
    from core.engine.weights.load_shard import load_shard

    batch = batch_of_prompts(samplings)
    keepers = Keepers(batch, SPANS, shard_roots=shard_roots(model_dir))
    shards = [load_shard(model_dir, t.LayerRange(a, b), numerics=numerics) for a, b in SPANS]
    for stage, shard in enumerate(shards):
        spoil(stage, shard)
    tokenizer = Tokenizer(model_dir)
    for index, prompt in enumerate(batch.prompts):
        _run_request(keepers, shards, tokenizer, index, prompt)
    keepers.sign_all()
    return keepers


def _run_request(
    keepers: Keepers, shards: list[ModelShard], tokenizer: Tokenizer, index: int, prompt: Prompt
) -> None:
    import torch

    from core.engine.model.blocks import output_of
    from core.engine.sampling.grammar import grammar_of
    from core.engine.sampling.sampling import Sampler, sample_batch
    from core.engine.sampling.stops import AnswerEnding
    from miner.compute.stepper import as_rows

    grammar = grammar_of(prompt.sampling, prompt.ids, tokenizer)
    sampler = Sampler(prompt.sampling, index, prompt.ids, tokenizer.eos_ids, grammar)
    ending, finish = AnswerEnding(prompt.sampling, tokenizer.eos_ids, tokenizer, prompt.ids), ""
    caches = [shard.new_cache() for shard in shards]
    rows: list[bytes] = [b""] * (len(shards) + 1)
    fed, tokens, states = list(prompt.ids), [], b""
    while not finish:
        rows[0] += commit.token_bytes(fed)
        x = torch.tensor(fed)
        for stage, shard in enumerate(shards):
            with output_of(shard.decoder_layers[-1]) as left:
                x = shard.forward(x, caches[stage])
            if shard.is_last:
                states += as_rows(left[0].reshape(len(fed), -1)[-1])
            else:
                rows[stage + 1] += as_rows(x)
        (choice,) = sample_batch(x[-1:], [sampler])
        tokens.append(choice.token)
        sampler.take(choice.token)
        finish = ending.push(choice.token)
        fed = [choice.token]
    rows[-1] = commit.token_bytes(tokens)
    widths = [4, *[4 * shard.hidden for shard in shards[:-1]], 4]
    for stage in range(len(shards)):
        keepers.rows[stage, "in", index] = (rows[stage], widths[stage])
        keepers.rows[stage, "out", index] = (rows[stage + 1], widths[stage + 1])
    keepers.rows[len(shards) - 1, "states", index] = (states, 4 * shards[-1].hidden)
