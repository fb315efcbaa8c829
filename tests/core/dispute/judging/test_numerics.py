"""Do honest machines pass by a wide margin and liars fail by one?"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from core.dispute.judging.numerics import FP32, judge_rows, reexecute, whitened_relative_l2
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import describe_model
from core.engine.weights.tensors import TensorFolder
from core.protocol.errors import ModelUnsupported
from core.protocol.types import LayerRange, SamplingParams
from devnet.faults import corrupt_layer
from tests.core.engine.draws import judge_tokens, sample
from tests.core.engine.families import ARCHITECTURES

SAMPLED = SamplingParams(temperature_micro=800_000, min_p_micro=20_000, seed=5)


def serve(
    stages: list, ids: list[int], new: int, params: SamplingParams = SAMPLED
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    """Inputs and outputs of every stage, and the produced tokens, as miners would commit to
    them.
    """
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


def load(folder: Path, cut: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list:
    return [load_shard(folder, LayerRange(a, b), dtype=dtype) for a, b in itertools.pairwise(cut)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_honest_float32_passes_and_one_int8_layer_fails(architecture: str, tiny: Callable) -> None:
    folder, cut = tiny(architecture, layers=5), (0, 2, 3, 5)
    honest, audit = load(folder, cut), load(folder, cut, torch.float64)
    prompt = list(range(40))
    inputs, outputs, tokens = serve(honest, prompt, 30)
    for i in (0, 1):
        depth = len(honest[i].layers)
        verdict = judge_rows(FP32, depth, outputs[i], reexecute(audit[i], inputs[i]))
        assert not verdict.at_fault
        assert verdict.headroom > 7
    logits = reexecute(audit[2], inputs[2], logit_rows=range(39, 39 + 30))
    assert not judge_tokens(FP32, logits, tokens, SAMPLED, 0).at_fault

    liars = load(folder, cut)
    corrupt_layer(liars[1], 2)
    inputs, outputs, _ = serve(liars, prompt, 30)
    caught = judge_rows(FP32, 1, outputs[1], reexecute(audit[1], inputs[1]))
    assert caught.at_fault
    assert caught.headroom < 1 / 50
    innocent = judge_rows(FP32, 2, outputs[0], reexecute(audit[0], inputs[0]))
    assert not innocent.at_fault


def test_one_tampered_step_in_a_long_request_is_found(tiny: Callable) -> None:
    folder = tiny("llama", layers=5)
    (stage,), (audit,) = load(folder, (1, 3)), load(folder, (1, 3), torch.float64)
    x = torch.randn(400, stage.hidden, generator=torch.Generator().manual_seed(0))
    served = stage.forward(x, stage.new_cache()).clone()
    reference = reexecute(audit, x)
    assert not judge_rows(FP32, 2, served, reference).at_fault
    served[211] *= 1.0005
    verdict = judge_rows(FP32, 2, served, reference)
    assert verdict.at_fault
    assert verdict.worst_row == 211
    served[17, 3] = float("nan")
    verdict = judge_rows(FP32, 2, served, reference)
    assert verdict.at_fault
    assert "row 17 is not finite" in verdict.reasons


def test_a_bad_tail_is_a_window_of_its_own() -> None:
    reference = np.random.default_rng(0).normal(size=(64 * 100 + 40, 8))
    served = reference.copy()
    served[-40:] *= 1 + 3e-4
    assert whitened_relative_l2(served, reference).ratio < FP32.tolerance(30)
    assert judge_rows(FP32, 30, served, reference).at_fault


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -1e9])
def test_broken_inputs_are_not_blamed_on_the_machine_that_got_them(
    broken: float, tiny: Callable
) -> None:
    folder = tiny("llama", layers=5)
    (stage,), (audit,) = load(folder, (1, 3)), load(folder, (1, 3), torch.float64)
    x = torch.randn(30, stage.hidden, generator=torch.Generator().manual_seed(0))
    served = stage.forward(x, stage.new_cache())
    x[20, 5] = broken
    reference = reexecute(audit, x)
    assert torch.isfinite(reference[:20]).all()
    assert torch.isnan(reference[20:]).all()
    with pytest.raises(ValueError, match="NaN or values"):
        stage.forward(x, stage.new_cache())
    assert not judge_rows(FP32, 2, served, reference).at_fault
    served[19] *= 1.001
    assert judge_rows(FP32, 2, served, reference).at_fault
    logits = np.array([[1.0, 0.0], [np.nan, 0.0]])
    assert not judge_tokens(FP32, logits, [0, 1], SamplingParams(), 0).at_fault
    assert judge_tokens(FP32, logits, [1, 1], SamplingParams(), 0).at_fault


def test_short_requests_are_judged_by_single_rows_only() -> None:
    reference = np.ones((10, 8))
    assert not judge_rows(FP32, 1, reference * (1 + 5e-5), reference).at_fault
    assert judge_rows(FP32, 1, reference * (1 + 2e-4), reference).at_fault
    long = np.ones((16, 8))
    assert judge_rows(FP32, 1, long * (1 + 5e-5), long).at_fault


def test_a_bad_window_is_not_diluted_by_a_long_request() -> None:
    reference = np.random.default_rng(0).normal(size=(64 * 200, 8))
    served = reference.copy()
    served[64:128] *= 1 + 3e-4  # 30 layers deep: no single-row rule
    assert whitened_relative_l2(served, reference).ratio < FP32.tolerance(30)
    assert judge_rows(FP32, 30, served, reference).at_fault


def test_whitening_sees_small_channels_beside_a_giant_one() -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(64, 32))
    reference[:, 0] *= 30_000
    served = reference.copy()
    served[:, 1:] *= 1 + 1e-3
    plain = np.linalg.norm(served - reference) / np.linalg.norm(reference)
    assert plain < 1e-6
    assert whitened_relative_l2(served, reference).ratio == pytest.approx(1e-3, rel=0.05)


def test_given_channel_sizes_are_used() -> None:
    reference, served = np.ones((4, 2)), np.array([[1.0, 1.1]] * 4)
    plain = whitened_relative_l2(served, reference)
    assert plain.ratio == pytest.approx(0.1 / 2**0.5)
    weighted = whitened_relative_l2(served, reference, np.array([1.0, 10.0]))
    measured = (weighted.D, weighted.S)
    assert measured == pytest.approx((0.1 / 10 * 2, (4 * 1.01) ** 0.5))
    with pytest.raises(ValueError, match="shape"):
        whitened_relative_l2(served, reference[:2])


def test_tokens_of_another_seed_are_found(tiny: Callable) -> None:
    folder = tiny("qwen3", layers=5)
    stages, audit = load(folder, (0, 5)), load(folder, (0, 5), torch.float64)
    inputs, _, tokens = serve(stages, list(range(12)), 16)
    logits = reexecute(audit[0], inputs[0], logit_rows=range(11, 27))
    assert not judge_tokens(FP32, logits, tokens, SAMPLED, 0).at_fault
    other = SamplingParams(temperature_micro=800_000, min_p_micro=20_000, seed=6)
    assert judge_tokens(FP32, logits, tokens, other, 0).at_fault
    assert judge_tokens(FP32, logits, tokens, SAMPLED, 1).at_fault
    assert judge_tokens(FP32, logits, tokens, SamplingParams(), 0).at_fault


def test_tolerances_grow_with_depth_and_end() -> None:
    assert [FP32.tolerance(d) for d in (1, 2, 6, 7, 30)] == [1e-5, 3e-5, 3e-5, 1e-4, 1e-4]
    for depth in (0, 31):
        with pytest.raises(ModelUnsupported):
            FP32.tolerance(depth)


def test_an_audit_needs_a_float64_shard(tiny: Callable) -> None:
    (shard,) = load(tiny("llama", layers=5), (0, 1))
    with pytest.raises(ValueError, match="float64"):
        reexecute(shard, torch.arange(3))


def test_a_corrupted_layer_must_be_owned_and_others_stay(tiny: Callable) -> None:
    folder = tiny("gpt2", layers=5)
    (liar,), (honest,) = load(folder, (1, 4)), load(folder, (1, 4))
    corrupt_layer(liar, 2)
    for i, (a, b) in enumerate(zip(liar.decoder_layers, honest.decoder_layers, strict=True)):
        same = all(map(torch.equal, a.parameters(), b.parameters()))
        assert same == (i != 1)
    with pytest.raises(ValueError, match="layer 4"):
        corrupt_layer(liar, 4)


# --- is the float64 answer really float64? -----------------------------------------------------


def numpy_llama(folder: Path, ids: np.ndarray) -> np.ndarray:
    """A llama written down a second time in float64, with the model's float32 rotary table."""
    shape, tensors = describe_model(folder), TensorFolder(folder)
    config = json.loads((folder / "config.json").read_text())

    def weight(name: str) -> np.ndarray:
        return tensors.read_float32(name).astype(np.float64)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        eps = config["rms_norm_eps"]
        return weight(name) * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)

    positions = torch.arange(len(ids))
    base = config["rope_parameters"]["rope_theta"]
    powers = torch.arange(0, shape.head_dim, 2, dtype=torch.float) / shape.head_dim
    angles = positions[:, None].float() * (1.0 / base**powers)
    cos, sin = (f(torch.cat((angles, angles), -1)).double().numpy() for f in (torch.cos, torch.sin))

    def rotate(x: np.ndarray) -> np.ndarray:  # [H, T, d]
        half = shape.head_dim // 2
        turned = np.concatenate((-x[..., half:], x[..., :half]), -1)
        return x * cos + turned * sin

    x = weight("model.embed_tokens.weight")[ids]
    mask = np.where(np.tri(len(ids)) > 0, 0.0, -np.inf)
    for i in range(shape.layers):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (
            (h @ weight(f"{p}self_attn.{n}_proj.weight").T)
            .reshape(len(ids), -1, shape.head_dim)
            .transpose(1, 0, 2)
            for n in "qkv"
        )
        q, k = rotate(q), rotate(k)
        k, v = (np.repeat(t, shape.heads // shape.kv_heads, axis=0) for t in (k, v))
        scores = q @ k.transpose(0, 2, 1) / shape.head_dim**0.5 + mask
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        mixed = (attention @ v).transpose(1, 0, 2).reshape(len(ids), -1)
        x = x + mixed @ weight(p + "self_attn.o_proj.weight").T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = (h @ weight(f"{p}mlp.{n}_proj.weight").T for n in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(p + "mlp.down_proj.weight").T
    return norm(x, "model.norm.weight") @ weight("lm_head.weight").T


def test_reexecution_agrees_with_a_second_float64_implementation(tiny: Callable) -> None:
    folder = tiny("llama", layers=5)
    ids = np.arange(50) * 31 % 256
    (audit,) = load(folder, (0, 5), torch.float64)
    got = reexecute(audit, ids).numpy()
    expected = numpy_llama(folder, ids)
    assert got.dtype == np.float64
    assert np.abs(got - expected).max() / np.abs(expected).max() < 1e-13


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_family_rounds_to_float32_on_the_way(architecture: str, tiny: Callable) -> None:
    """In float64 one prefill and single steps agree to 1e-12, which float32 anywhere inside
    forbids.
    """
    folder = tiny(architecture, layers=5)
    stages = load(folder, (0, 2, 5), torch.float64)
    ids = torch.arange(30) * 11 % 256
    x, caches = ids, [s.new_cache() for s in stages]
    for stage in stages:
        x = reexecute(stage, x)
    steps = []
    for token in ids.split(1):
        y = token
        for stage, cache in zip(stages, caches, strict=True):
            y = stage.forward(y, cache)
        steps.append(y)
    assert (torch.cat(steps) - x).abs().max() / x.abs().max() < 1e-12
