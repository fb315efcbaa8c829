"""Does any decoder that the library knows give the same bits when it is cut, and is every other one
refused by name?
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from core.engine.model import conversion
from core.engine.model.anatomy import derive_family, family_of_config
from core.engine.model.config_facts import windows_of as written_windows
from core.engine.model.dryrun import kv_shapes_of, windows_of
from core.engine.model.families import WRITTEN_DOWN, family_of
from core.engine.weights.load_shard import load_shard
from core.engine.weights.selfcheck import check_architecture
from core.engine.weights.shape import describe_model
from core.engine.weights.weights import weight_roots
from core.protocol.errors import ModelUnsupported
from core.protocol.types import LayerRange
from tests.core.engine.architectures import (
    CHUNKS,
    PROMPT,
    RUNS,
    VARIANTS,
    answers,
    config_of,
    whole_model,
    with_wide_end,
    write_model,
)

#: One of each kind: rotary, learned and ALiBi positions, experts, soft caps, latent attention, odd
#: names.
SOME = (
    "llama",
    "gemma2",
    "gpt_neox",
    "falcon",
    "bloom",
    "opt",
    "mixtral",
    "gpt_oss",
    "deepseek_v3",
)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that writes the random model of an architecture once and returns its folder."""
    known: dict[Any, Path] = {}

    def make(name: str, **options: Any) -> Path:
        key = (name, *sorted(options.items()))
        if key not in known:
            known[key] = write_model(tmp_path_factory.mktemp(name), name, **options)
        return known[key]

    return make


def run(folder: Path, cut: tuple[int, ...], **options: Any) -> list[torch.Tensor]:
    stages = [load_shard(folder, LayerRange(a, b), **options) for a, b in itertools.pairwise(cut)]
    caches = [stage.new_cache() for stage in stages]
    got = []
    for x in CHUNKS:
        for stage, cache in zip(stages, caches, strict=True):
            x = stage.forward(x, cache)
        got.append(x)
    return got


@pytest.mark.parametrize("name", [*RUNS, *VARIANTS])
def test_every_split_gives_the_whole_models_bits(name: str, folder_of: Callable) -> None:
    folder = folder_of(name)
    expected = answers(whole_model(folder))
    layers = describe_model(folder).layers
    for cut in [*((0, k, layers) for k in range(1, layers)), tuple(range(layers + 1))]:
        for step, (got, want) in enumerate(zip(run(folder, cut), expected, strict=True)):
            off = float((got - want).abs().max())
            assert torch.equal(got, want), f"cut {cut}, step {step}: off by {off:.1e}"


@pytest.mark.parametrize("name", [*RUNS, *VARIANTS])
def test_the_description_is_what_planners_need(name: str, folder_of: Callable) -> None:
    folder = folder_of(name)
    shape, model = describe_model(folder), whole_model(folder)
    assert shape.parameters >= sum(p.numel() for p in model.parameters())
    shard = load_shard(folder, LayerRange(0, shape.layers))
    # A few models hold a constant of a layer in bfloat16.
    assert shard.bytes == pytest.approx(shape.shard_bytes(0, shape.layers), abs=4 * shape.layers)
    assert shard.numerics == shape.numerics == "float32"
    assert tuple(shard.windows) == shape.windows
    cache = shard.new_cache()
    shard.forward(PROMPT, cache)
    kept = [
        store._keys.shape[1] * (store._keys.shape[3] + store._values.shape[3])
        for store in cache._stores
    ]
    assert kept == list(shape.kv_widths)
    assert shape.kv_bytes_per_token == 4 * max(kept)
    mixture = any("experts" in n or p.dim() == 3 for n, p in model.named_parameters())
    assert bool(shape.experts) == mixture
    assert (0 < shape.experts_per_token <= shape.experts) == mixture
    assert shape.experts * shape.expert_bytes <= shape.layer_bytes
    assert mixture == (shape.experts * shape.expert_bytes > shape.layer_bytes / 8)
    # A specification on chain says hidden, heads and ffn; from those nobody may plan less than is
    # loaded.
    assert 3 * shape.hidden * shape.ffn * 4 >= shape.experts * shape.expert_bytes
    assert len(weight_roots(folder).layers) == shape.layers


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_bfloat16_is_the_whole_models_layers_and_a_float32_head(
    name: str, stored: torch.dtype, folder_of: Callable, tmp_path: Path
) -> None:
    """The head's weights are those of the files: rounded nowhere on their way."""
    folder = folder_of(name)
    family = family_of(json.loads((folder / "config.json").read_text()))
    if stored == torch.bfloat16:
        whole_model(folder, torch.bfloat16).save_pretrained(tmp_path)
        folder = tmp_path
    model = with_wide_end(whole_model(folder, torch.bfloat16), family)
    exact = whole_model(folder)
    for path in (*family.after, family.head):
        model.get_submodule(path).load_state_dict(exact.get_submodule(path).state_dict())
    for got, want in zip(run(folder, (0, 2, 4), dtype=torch.bfloat16), answers(model), strict=True):
        assert got.dtype == want.dtype == torch.float32
        assert float((got - want).abs().max()) < 1e-6 * max(1.0, float(want.abs().max()))


@pytest.mark.parametrize("name", SOME)
def test_float64_is_what_float32_approximates(name: str, folder_of: Callable) -> None:
    folder = folder_of(name)
    exact = torch.cat(run(folder, (0, 1, 4), dtype=torch.float64))
    assert exact.dtype == torch.float64
    served = torch.cat(answers(whole_model(folder)))
    assert float((exact - served).abs().max()) < 3e-6 * float(exact.abs().max())


@pytest.mark.parametrize("name", ["gptj", "mixtral", "starcoder2", "phi"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_shared_table_is_in_both_ends(name: str, tied: bool, folder_of: Callable) -> None:
    folder = folder_of(name, tied=tied)
    assert describe_model(folder).tied == tied
    expected = answers(whole_model(folder))
    for got, want in zip(run(folder, (0, 2, 4)), expected, strict=True):
        assert torch.equal(got, want)


def test_experts_are_read_once_and_stacked_one_at_a_time(
    folder_of: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("all experts of a layer were held twice")

    monkeypatch.setattr(conversion.Renaming, "convert", never)
    for name in ("mixtral", "qwen3_moe", "deepseek_v3", "olmoe"):
        shard = load_shard(folder_of(name), LayerRange(2, 3))
        assert any(p.dim() == 3 for p in shard.decoder_layers.parameters())


@pytest.mark.parametrize("name", ["opt", "gpt_neox", "mixtral"])
def test_checkpoints_without_the_decoders_prefix_load(
    name: str, folder_of: Callable, tmp_path: Path
) -> None:
    source = folder_of(name)
    tensors = {}
    for file in source.glob("*.safetensors"):
        tensors |= load_file(file)
    prefix = family_of(json.loads((source / "config.json").read_text())).prefix + "."
    bare = {n.removeprefix(prefix): t for n, t in tensors.items()}
    # Old files carry constants.
    bare["layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    save_file(bare, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", tmp_path)
    expected = run(source, (0, 2, 4))
    assert all(map(torch.equal, run(tmp_path, (0, 2, 4)), expected))
    assert weight_roots(tmp_path).weights_root == weight_roots(source).weights_root


def test_a_tensor_that_no_layer_has_is_refused(folder_of: Callable, tmp_path: Path) -> None:
    source = folder_of("gpt_neox")
    tensors = {}
    for file in source.glob("*.safetensors"):
        tensors |= load_file(file)
    shutil.copy(source / "config.json", tmp_path)
    for extra in ("gpt_neox.vision.weight", "gpt_neox.layers.1.mlp.gate.weight"):
        save_file(
            tensors | {extra: torch.zeros(2, 2)},
            tmp_path / "model.safetensors",
            metadata={"format": "pt"},
        )
        with pytest.raises(ModelUnsupported, match=extra.replace(".", r"\.")):
            load_shard(tmp_path, LayerRange(1, 2))


# --- full-size configurations ------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RUNS, *VARIANTS])
def test_a_full_size_configuration_proves_itself_in_a_second(name: str) -> None:
    config = config_of(name)
    family = derive_family(config)
    started = time.process_time()
    assert check_architecture(config, family) < 1e-5
    assert time.process_time() - started < 1
    assert len(kv_shapes_of(config)) == config.num_hidden_layers


@pytest.mark.parametrize("model_type", WRITTEN_DOWN)
def test_what_is_written_down_is_what_is_derived(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type]()
    derived, written = derive_family(config), WRITTEN_DOWN[model_type]
    names = [f.name for f in dataclasses.fields(written) if f.name not in ("stale", "targets")]
    assert {n: getattr(derived, n) for n in names} == {n: getattr(written, n) for n in names}


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("mistral", {"sliding_window": 8}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"sliding_window": 8}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}),
        ("gemma2", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 4}),
    ],
)
def test_windows_are_known_without_the_library(model_type: str, fields: dict) -> None:
    raw = {"model_type": model_type, "num_hidden_layers": 7} | fields
    library = windows_of(CONFIG_MAPPING[model_type].from_dict(raw))
    assert written_windows(raw) == library
    assert written_windows(CONFIG_MAPPING[model_type].from_dict(raw).to_dict()) == library


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("t5", "an encoder beside"),
        ("bart", "an encoder beside"),
        ("vit", "no language model head"),
        ("gemma3", "more than a language model"),
        ("bert", "both directions"),
        ("roberta", "both directions"),
        ("bert-generation", "later tokens"),
        ("mamba", "without attention"),
        ("rwkv", "without attention"),
        ("jamba", "state-space"),
        ("qwen3_next", "linear attention"),
        ("falcon_h1", "state-space and attention in one layer"),
        ("lfm3", "convolution"),
        ("llama4_text", "chunked attention"),
        ("deepseek_v32", "indexed attention"),
        ("gemma3n_text", "keys and values of their own"),
        ("gemma4_text", "heads that differ"),
        ("openai-gpt", "no cache of keys and values"),
        ("xlm", "lists of 4 layers"),
        ("git", "text does not pass through"),
        ("ctrl", "changes its answers"),
        ("nothing_known", "no such model"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(model_type: str, named: str) -> None:
    raw = {"model_type": model_type}
    if model_type in CONFIG_MAPPING:
        raw = CONFIG_MAPPING[model_type]().to_dict() | raw
    with pytest.raises(ModelUnsupported, match=named):
        text = json.dumps(raw, default=str)
        family = family_of_config(text)
        check_architecture(CONFIG_MAPPING[model_type](), family)
