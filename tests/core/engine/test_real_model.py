"""Does all of this hold for the real SmolLM2, end to end?"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core.dispute.judging.numerics import FP32, judge_rows, reexecute
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import describe_model
from core.engine.weights.tokenizer import Tokenizer
from core.engine.weights.weights import weight_roots
from core.protocol.types import LayerRange, SamplingParams
from devnet.faults import corrupt_layer
from devnet.models.unpack import ensure_model
from tests.core.engine.draws import judge_tokens, sample

pytestmark = pytest.mark.model
CUT = (0, 6, 18, 30)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
#: A converter that changes one bit of one weight would change every model id.
WEIGHTS_ROOT = "0x4b9686363acc3aa46d4a8837dca3e35108bdef2a9e6ad631475c23817be55519"


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_model()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def stages(folder: Path) -> list:
    return [load_shard(folder, LayerRange(a, b)) for a, b in itertools.pairwise(CUT)]


def serve(
    stages: list, ids: list[int], new: int, params: SamplingParams
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    caches = [stage.new_cache() for stage in stages]
    inputs: list[list[torch.Tensor]] = [[] for _ in stages]
    outputs: list[list[torch.Tensor]] = [[] for _ in stages]
    fed, tokens = torch.tensor(ids), []
    for step in range(new):
        x = fed
        for i, (stage, cache) in enumerate(zip(stages, caches, strict=True)):
            inputs[i].append(x)
            x = stage.forward(x, cache, last_only=True)
            outputs[i].append(x)
        tokens.append(sample(x[0], params, 0, step))
        fed = torch.tensor(tokens[-1:])
    return [torch.cat(a) for a in inputs], [torch.cat(b) for b in outputs], tokens


def test_three_stages_answer_as_transformers_generate_does(
    folder: Path, tokenizer: Tokenizer, stages: list, whole_model: Callable
) -> None:
    ids = tokenizer.encode_chat(QUESTION)
    _, _, tokens = serve(stages, ids, 8, SamplingParams())
    assert tokenizer.decode(tokens).startswith("The capital of France is Paris.")
    assert tokenizer.eos_ids & set(tokens)
    generated = whole_model(folder).generate(
        torch.tensor([ids]), max_new_tokens=8, min_new_tokens=0, do_sample=False
    )[0, len(ids) :]
    assert tokens[: len(generated)] == generated.tolist()


@pytest.mark.timeout(600)  # the first time it converts the model
def test_the_other_converted_model_cut_in_two_gives_the_whole_models_bits(
    whole_model: Callable,
) -> None:
    gemma = ensure_model("gemma3-270m")
    ids = torch.arange(700) * 37 % 5000 + 10  # longer than its window of 512
    with torch.inference_mode():
        expected = whole_model(gemma)(input_ids=ids[None], logits_to_keep=4).logits[0]
    x = ids
    for layers in (LayerRange(0, 7), LayerRange(7, 18)):
        stage = load_shard(gemma, layers, self_check=True)
        cache, fed = stage.new_cache(), x
        x = stage.forward(x, cache) if not stage.is_last else None
    assert torch.equal(stage.forward_rows(fed, cache, torch.arange(696, 700)), expected)
    assert describe_model(gemma).windows.count(512) == 15


def test_the_converted_weights_are_the_known_ones(folder: Path) -> None:
    weights = weight_roots(folder)
    assert weights.weights_root == WEIGHTS_ROOT
    assert len(weights.layers) == describe_model(folder).layers == 30


def test_honest_stages_pass_and_the_int8_liar_fails_both_by_far(
    folder: Path, tokenizer: Tokenizer, stages: list
) -> None:
    params = SamplingParams(temperature_micro=700_000, min_p_micro=50_000, seed=11)
    ids = tokenizer.encode_chat([{"role": "user", "content": "Write a poem about a mill wheel."}])
    audit = [
        load_shard(folder, LayerRange(a, b), dtype=torch.float64)
        for a, b in itertools.pairwise(CUT)
    ]
    inputs, outputs, tokens = serve(stages, ids, 32, params)
    for i in (0, 1):
        depth = len(stages[i].layers)
        verdict = judge_rows(FP32, depth, outputs[i], reexecute(audit[i], inputs[i]))
        assert not verdict.at_fault
        assert verdict.headroom > 20
    produced = range(len(ids) - 1, len(ids) - 1 + 32)
    logits = reexecute(audit[2], inputs[2], logit_rows=produced)
    assert judge_tokens(FP32, logits, tokens, params, 0).ratio < FP32.token_margin / 5

    liar = load_shard(folder, LayerRange(6, 18))
    corrupt_layer(liar, 11)
    inputs, outputs, tokens = serve([stages[0], liar, stages[2]], ids, 32, params)
    assert not judge_rows(FP32, 6, outputs[0], reexecute(audit[0], inputs[0])).at_fault
    caught = judge_rows(FP32, 12, outputs[1], reexecute(audit[1], inputs[1]))
    assert caught.at_fault
    assert caught.headroom < 1 / 20
    logits = reexecute(audit[2], inputs[2], logit_rows=produced)
    assert not judge_tokens(FP32, logits, tokens, params, 0).at_fault
