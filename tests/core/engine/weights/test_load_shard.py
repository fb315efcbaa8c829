"""Does a model cut anywhere give the whole model's bits, from its own tensors alone?"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, DynamicCache

from core.engine.model.families import WRITTEN_DOWN, family_of
from core.engine.model.refusal import attention_of
from core.engine.weights import cut_shard
from core.engine.weights import load_shard as model_module
from core.engine.weights.load_shard import load_shard
from core.engine.weights.selfcheck import check_architecture
from core.engine.weights.shape import describe_model
from core.engine.weights.tensors import TensorFolder
from core.protocol.errors import ContextTooLong, ModelMissing, ModelUnsupported, UsageError
from core.protocol.types import LayerRange
from tests.core.engine.architectures import with_wide_end
from tests.core.engine.families import ARCHITECTURES

LAYERS = 5
PROMPT = torch.arange(21) * 37 % 256
#: A prompt, single decode steps across the sliding windows of eight, a chunk in the middle.
CHUNKS = (PROMPT, *torch.arange(9).split(1), torch.arange(40, 46), torch.tensor([7]))

Cut = tuple[int, ...]
CUTS: list[Cut] = [
    (0, LAYERS),
    *((0, k, LAYERS) for k in range(1, LAYERS)),
    tuple(range(LAYERS + 1)),
]


def stages_of(folder: Path, cut: Cut, **options: object) -> list:
    return [load_shard(folder, LayerRange(a, b), **options) for a, b in itertools.pairwise(cut)]


def run(stages: list, chunks: tuple[torch.Tensor, ...] = CHUNKS) -> list[torch.Tensor]:
    caches = [stage.new_cache() for stage in stages]
    answers = []
    for x in chunks:
        for stage, cache in zip(stages, caches, strict=True):
            x = stage.forward(x, cache)
        answers.append(x)
    return answers


def reference(
    model: torch.nn.Module, chunks: tuple[torch.Tensor, ...] = CHUNKS
) -> list[torch.Tensor]:
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        return [
            model(input_ids=x[None], past_key_values=cache, use_cache=True).logits[0]
            for x in chunks
        ]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_cut_gives_the_whole_models_bits(
    architecture: str, tied: bool, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS, tied=tied, files=3)
    expected = reference(whole_model(folder))
    for cut in CUTS:
        got = run(stages_of(folder, cut))
        for step, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert torch.equal(a, b), f"cut {cut}, step {step}: off by {(a - b).abs().max():.1e}"


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        (
            "llama",
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
        (
            "qwen2",
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
        ),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
        ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("gemma3", {"final_logit_softcapping": 10.0, "attn_logit_softcapping": 20.0}),
        ("mistral", {"sliding_window": None}),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)
def test_variants_of_rotary_windows_and_caps_survive_cutting(
    architecture: str, options: dict, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS, options=options)
    attention = attention_of(AutoConfig.from_pretrained(folder))
    model = whole_model(folder)
    model.set_attn_implementation(attention)
    for got, expected in zip(run(stages_of(folder, (0, 2, LAYERS))), reference(model), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_bfloat16_cuts_are_the_whole_models_layers_and_a_float32_head(
    architecture: str, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS, dtype="bfloat16")
    family = family_of(json.loads((folder / "config.json").read_text()))
    expected = reference(with_wide_end(whole_model(folder, torch.bfloat16), family))
    for got, want in zip(
        run(stages_of(folder, (0, 2, LAYERS), dtype=torch.bfloat16)), expected, strict=True
    ):
        assert got.dtype == want.dtype == torch.float32
        assert float((got - want).abs().max()) < 1e-6 * float(want.abs().max())


def test_last_only_gives_what_generate_uses(tiny: Callable, whole_model: Callable) -> None:
    folder = tiny("qwen3", layers=LAYERS)
    model = whole_model(folder)
    (shard,) = stages_of(folder, (0, LAYERS))
    with torch.inference_mode():
        expected = model(input_ids=PROMPT[None], logits_to_keep=1, use_cache=True).logits[0]
    got = shard.forward(PROMPT, shard.new_cache(), last_only=True)
    assert got.shape == (1, describe_model(folder).vocab)
    assert torch.equal(got, expected)


def test_greedy_answer_equals_transformers_generate(tiny: Callable, whole_model: Callable) -> None:
    folder = tiny("gemma2", layers=LAYERS)
    generated = whole_model(folder).generate(
        PROMPT[None], max_new_tokens=24, min_new_tokens=24, do_sample=False
    )[0, len(PROMPT) :]
    stages = stages_of(folder, (0, 1, 3, LAYERS))
    caches = [stage.new_cache() for stage in stages]
    answer, fed = [], PROMPT
    for _ in range(24):
        x = fed
        for stage, cache in zip(stages, caches, strict=True):
            x = stage.forward(x, cache, last_only=True)
        x[0, 258] = -torch.inf  # min_new_tokens forbids the end
        answer.append(int(x[0].argmax()))
        fed = torch.tensor(answer[-1:])
    assert answer == generated.tolist()


def test_input_at_an_odd_address_gives_the_same_bits(tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS)
    shard = load_shard(folder, LayerRange(1, 3))
    x = torch.randn(7, shard.hidden, generator=torch.Generator().manual_seed(1))
    odd = torch.empty(x.numel() + 1)[1:].view_as(x).copy_(x)
    assert odd.data_ptr() % 64
    assert torch.equal(shard.forward(odd, shard.new_cache()), shard.forward(x, shard.new_cache()))


# --- what is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_a_shard_reads_exactly_its_own_tensors(
    architecture: str, tied: bool, tiny: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny(architecture, layers=LAYERS, tied=tied, files=3)
    shape = describe_model(folder)
    opened: list[TensorFolder] = []

    class Counting(TensorFolder):
        def __init__(self, model_dir: Path) -> None:
            super().__init__(model_dir)
            self.read: list[str] = []
            opened.append(self)

        def read_into(self, name: str, target: memoryview) -> None:
            self.read.append(name)
            super().read_into(name, target)

    monkeypatch.setattr(model_module, "TensorFolder", Counting)
    for start, end in itertools.combinations(range(LAYERS + 1), 2):
        opened.clear()
        shard = load_shard(folder, LayerRange(start, end))
        (counted,) = opened
        assert counted.bytes_read == shard.bytes == shape.shard_bytes(start, end)
        assert len(counted.read) == len(set(counted.read))
        numbers = {int(n.split(".")[2]) for n in counted.read if ".layers." in n or ".h." in n}
        assert numbers == set(range(start, end))
        outside = {n for n in counted.read if ".layers." not in n and ".h." not in n}
        if start > 0 and end < LAYERS:
            assert not outside
        holding = {counted.entry(n).file for n in counted.read}
        assert counted.files_opened == holding


def test_a_middle_shard_works_when_other_files_are_absent(tiny: Callable, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(tiny("llama", layers=LAYERS, files=4), folder)
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {file for name, file in where.items() if name.startswith("model.layers.2.")}
    for file in set(where.values()) - needed:
        (folder / file).unlink()
    shard = load_shard(folder, LayerRange(2, 3))
    assert shard.forward(torch.zeros(3, shard.hidden), shard.new_cache()).shape == (3, shard.hidden)
    with pytest.raises(ModelMissing):
        load_shard(folder, LayerRange(0, LAYERS))


def test_base_checkpoints_without_prefix_load(
    tiny: Callable, tmp_path: Path, whole_model: Callable
) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny("gpt2", layers=LAYERS, tied=True)
    folder = tmp_path / "bare"
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): t for name, t in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)  # original gpt2 files carry their causal masks
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    expected = reference(whole_model(source))
    assert all(map(torch.equal, run(stages_of(folder, (0, 2, LAYERS))), expected))


# --- shapes, limits, refusals ------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_description_agrees_with_the_loaded_model(
    architecture: str, tiny: Callable, whole_model: Callable
) -> None:
    folder = tiny(architecture, layers=LAYERS)
    shape, model = describe_model(folder), whole_model(folder)
    config = model.config
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.tied == config.tie_word_embeddings
    assert (shape.layers, shape.hidden) == (LAYERS, config.hidden_size)
    assert (shape.vocab, shape.context) == (config.vocab_size, config.max_position_embeddings)
    assert shape.kv_heads == getattr(config, "num_key_value_heads", config.num_attention_heads)
    shard = load_shard(folder, LayerRange(0, LAYERS))
    cache = shard.new_cache()
    shard.forward(PROMPT, cache)
    assert cache.length == len(PROMPT)
    assert shape.head_dim == getattr(config, "head_dim", shape.hidden // shape.heads)
    assert shape.kv_bytes_per_token == 2 * shape.kv_heads * shape.head_dim * 4


def test_wrong_inputs_leave_the_cache_alone(tiny: Callable) -> None:
    folder = tiny("llama", layers=LAYERS, context=32)
    first, last = stages_of(folder, (0, 3, LAYERS))
    cache = first.new_cache()
    for wrong in (
        torch.zeros(3),
        torch.zeros(3, 4, dtype=torch.int64),
        torch.tensor([first.vocab]),
        torch.tensor([-1]),
        torch.empty(0, dtype=torch.int64),
    ):
        with pytest.raises(ValueError, match="ids"):
            first.forward(wrong, cache)
    with pytest.raises(ContextTooLong):
        first.forward(torch.zeros(33, dtype=torch.int64), cache)
    assert cache.length == 0
    with pytest.raises(ValueError, match="activations"):
        last.forward(torch.zeros(3, last.hidden + 1), last.new_cache())


def test_layers_beyond_the_model_are_refused(tiny: Callable) -> None:
    with pytest.raises(UsageError, match="layers 0-4"):
        load_shard(tiny("llama", layers=LAYERS), LayerRange(3, LAYERS + 1))


def edit_config(folder: Path, target: Path, **changes: object) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("llama", {"model_type": "nonesuch"}, "nonesuch"),
        ("llama", {"model_type": "gemma3"}, "text model"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "dynamic",
        ),
        ("llama", {"quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_what_is_unsupported_is_named(
    architecture: str, changes: dict, named: str, tiny: Callable, tmp_path: Path
) -> None:
    folder = edit_config(tiny(architecture, layers=LAYERS), tmp_path / "m", **changes)
    with pytest.raises(ModelUnsupported, match=named):
        load_shard(folder, LayerRange(0, 2))


def test_a_config_that_disagrees_with_the_weights_is_refused(
    tiny: Callable, tmp_path: Path
) -> None:
    folder = edit_config(tiny("llama", layers=LAYERS), tmp_path / "m", intermediate_size=100)
    with pytest.raises(ModelUnsupported, match="shape"):
        load_shard(folder, LayerRange(0, 2))


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tiny: Callable, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "m"
    shutil.copytree(tiny("llama", layers=LAYERS), folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnsupported, match=r"mlp\.up_proj"):
        load_shard(folder, LayerRange(0, 2))
    tensors["model.layers.1.mlp.experts.weight"] = torch.zeros(2, 2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnsupported, match="experts"):
        load_shard(folder, LayerRange(0, 2))


# --- the self-check ----------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_self_check_passes_for_every_family(architecture: str, tiny: Callable) -> None:
    config = AutoConfig.from_pretrained(tiny(architecture, layers=12 if "3" in architecture else 5))
    before = torch.random.get_rng_state()
    assert check_architecture(config, family_of(config.to_dict())) < 1e-5
    assert torch.equal(torch.random.get_rng_state(), before)


class AddsPositions(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = torch.linspace(-0.1, 0.1, 64).expand(1, 1, 64)
        return x + shift if x.is_floating_point() else shift


def test_self_check_refuses_a_family_that_cutting_breaks(
    tiny: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny("gpt2", layers=LAYERS)

    # As if a later stage fed its first layer what the model makes of the activations, positions
    # added again.
    monkeypatch.setattr(cut_shard, "PassThrough", AddsPositions)
    monkeypatch.setattr(cut_shard, "take_activations", lambda model, layer: None)
    with pytest.raises(ModelUnsupported, match="changes its answers"):
        load_shard(folder, LayerRange(0, 2), self_check=True)


def test_every_named_family_has_a_tiny_model() -> None:
    assert {f.removesuffix("_text") for f in WRITTEN_DOWN} == set(ARCHITECTURES)
