"""Weights as people publish them: which numbers they are, and that a cut of them is the whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.models.packers import KINDS, by_library, pack, write_tiny_gpt_oss
from core.engine.model.coded_linear import CodedLinear
from core.engine.native.native import NoKernels
from core.engine.weights import loading
from core.engine.weights.contents import contents_of
from core.engine.weights.load_shard import load_shard
from core.engine.weights.loading import FolderSource
from core.engine.weights.manifest import read_manifest
from core.engine.weights.pulled import PulledFolder
from core.engine.weights.shape import describe_model
from core.engine.weights.tensors import TensorFolder
from core.engine.weights.weights import weight_roots
from core.models.places import FolderPlace
from core.models.publication import publication_of
from core.models.pull import begin, layers_of, pull, pull_small_files
from core.protocol.errors import CheckFailed, ModelUnsupported
from core.protocol.types import LayerRange

LAYERS = 3
FAMILIES = ("llama", "qwen3", "gemma3_text")
IDS = torch.arange(12) * 37 % 256
BY_MATRIX = [kind for kind in KINDS if kind != "mxfp4"]


@pytest.fixture(scope="module")
def packed(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """A function that packs a tiny model of a family in one of the formats, once."""
    known: dict[tuple[str, str], Path] = {}

    def make(architecture: str, kind: str) -> Path:
        if (architecture, kind) not in known:
            is_of_experts = architecture == "gpt_oss"
            source = (
                write_tiny_gpt_oss(tmp_path_factory.mktemp("gpt_oss"), LAYERS)
                if is_of_experts
                else tiny(architecture, layers=LAYERS)
            )
            target = tmp_path_factory.mktemp(f"{architecture}-{kind}")
            known[architecture, kind] = pack(source, target, kind)
        return known[architecture, kind]

    return make


@pytest.mark.parametrize("kind", [k for k in BY_MATRIX if k.startswith(("fp8", "compressed"))])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_values_are_those_that_the_library_unpacks(
    architecture: str, kind: str, packed: Callable
) -> None:
    folder = packed(architecture, kind)
    tensors = TensorFolder(folder)
    assert len(tensors.packing.weights) == 7 * LAYERS
    # Scales of bfloat16: the library rounds float32's products to it as well, and we do not.
    has_wide_scales = kind not in ("compressed-int4", "compressed-int8")
    for dtype in (torch.float32, torch.bfloat16)[not has_wide_scales :]:
        expected = by_library(folder, kind, dtype)
        for name in tensors.packing.weights:
            found = torch.from_numpy(tensors.read_float32(name)).to(dtype)
            assert torch.equal(found, expected[name]), (name, dtype)


def test_experts_of_powers_of_two_are_those_that_the_library_unpacks(packed: Callable) -> None:
    folder = packed("gpt_oss", "mxfp4")
    tensors = TensorFolder(folder)
    assert len(tensors.packing.weights) == 2 * LAYERS
    expected = by_library(folder, "mxfp4", torch.float32)
    for name in tensors.packing.weights:
        assert torch.equal(torch.from_numpy(tensors.read_float32(name)), expected[name])


@pytest.mark.parametrize("architecture", FAMILIES)
def test_words_of_awq_are_those_that_the_library_unpacks(
    architecture: str, packed: Callable
) -> None:
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    folder = packed(architecture, "awq")
    stored, tensors = load_file(folder / "model.safetensors"), TensorFolder(folder)
    converter = AutoAWQConverter(group_size=32)
    for name in tensors.packing.weights:
        base = name.removesuffix(".weight")
        codes, scales, zeros = converter._convert_gemm_module(
            stored[f"{base}.qweight"], stored[f"{base}.scales"], stored[f"{base}.qzeros"]
        )
        assert zeros is not None
        wide = (codes.float() - zeros.float().repeat_interleave(32, 1)) * (
            scales.float().repeat_interleave(32, 1)
        )
        assert torch.equal(torch.from_numpy(tensors.read_float32(name)), wide)


@pytest.mark.parametrize("kind", ["gptq", "gptq-act-order"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_words_of_gptq_are_codes_less_zero_points_times_scales(
    architecture: str, kind: str, packed: Callable
) -> None:
    folder = packed(architecture, kind)
    stored, tensors = load_file(folder / "model.safetensors"), TensorFolder(folder)
    for name in tensors.packing.weights:
        base = name.removesuffix(".weight")
        words, zero_words = stored[f"{base}.qweight"], stored[f"{base}.qzeros"]
        group_of, scales = stored[f"{base}.g_idx"].long(), stored[f"{base}.scales"].float()
        expected = torch.empty(len(group_of), scales.shape[1])
        for code in range(len(group_of)):
            row = words[code // 8] >> 4 * (code % 8) & 15
            group = zero_words[group_of[code]]
            zeros = torch.stack([group >> 4 * nibble & 15 for nibble in range(8)], 1).flatten() + 1
            expected[code] = (row - zeros) * scales[group_of[code]]
        assert torch.equal(torch.from_numpy(tensors.read_float32(name)), expected.T)


def test_the_same_numbers_have_the_same_root_in_any_format(packed: Callable) -> None:
    gptq, awq = (weight_roots(packed("llama", kind)) for kind in ("gptq", "awq"))
    assert gptq == awq
    assert gptq != weight_roots(packed("llama", "gptq-act-order"))


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [*itertools.product(FAMILIES, BY_MATRIX), ("gpt_oss", "mxfp4")],
)
def test_every_cut_is_the_whole(
    architecture: str, kind: str, numerics: str, packed: Callable
) -> None:
    folder = packed(architecture, kind)

    def answer(*bounds: int) -> torch.Tensor:
        x = IDS
        for start, end in itertools.pairwise(bounds):
            shard = load_shard(folder, LayerRange(start, end), numerics=numerics)
            x = shard.forward(x, shard.new_cache())
        return x

    whole = answer(0, LAYERS)
    for cut in range(1, LAYERS):
        assert torch.equal(answer(0, cut, LAYERS), whole)


@pytest.mark.parametrize("kind", ["fp8", "gptq-act-order", "compressed-int4-asymmetric"])
def test_a_packed_model_is_published_pulled_and_proven_by_its_numbers(
    kind: str, packed: Callable, tmp_path: Path
) -> None:
    source, layers = packed("llama", kind), LayerRange(1, 2)
    publication = publication_of(source)
    manifest = read_manifest(publication.manifest.to_json(), publication.spec.manifest_hash)
    folder = tmp_path / "m"
    begin(manifest, folder)
    pull_small_files(manifest, folder, [FolderPlace(source)])
    names = layers_of(folder, manifest, layers)
    assert set(names) < set(manifest.tensors)
    fetched = pull(PulledFolder(folder), names, [FolderPlace(source)])
    assert fetched == sum(manifest.tensors[name].size_bytes for name in names)
    assert describe_model(folder) == describe_model(source)
    assert weight_roots(folder) == weight_roots(source)
    x = torch.randn(3, 64)
    here, there = load_shard(folder, layers), load_shard(source, layers)
    assert torch.equal(here.forward(x, here.new_cache()), there.forward(x, there.new_cache()))

    name = next(n for n in TensorFolder(source).packing.weights if ".layers.1." in n)
    piece = TensorFolder(source).packing.weights[name].pieces["scales"]
    fact = manifest.tensors[piece]
    with (folder / fact.file).open("r+b") as file:  # a scale that rots on the disk
        file.seek(fact.start_byte)
        byte = file.read(1)
        file.seek(fact.start_byte)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CheckFailed, match="is not the published tensor"):
        load_shard(folder, layers)


def test_roots_of_values_are_kept_until_a_file_changes(packed: Callable, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for file in packed("llama", "awq").iterdir():
        if not file.name.startswith("headrace"):
            (folder / file.name).write_bytes(file.read_bytes())
    first = contents_of(folder)
    assert len(first.values) == 7 * LAYERS and contents_of(folder) == first
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.0.mlp.up_proj.scales"] *= 2
    save_file(stored, folder / "model.safetensors")
    differ = {n for n, root in contents_of(folder).values.items() if first.values[n] != root}
    assert differ == {"model.layers.0.mlp.up_proj.weight"}


Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]


def _without(name: str) -> Change:
    def change(stored: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        del stored[f"model.layers.0.mlp.up_proj.{name}"]

    return change


def _as(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(stored: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        full = f"model.layers.0.mlp.up_proj.{name}"
        stored[full] = make(stored[full]).contiguous()

    return change


def _says(**settings: Any) -> Change:
    return lambda stored, config: config["quantization_config"].update(settings)


_UNFIT: list[tuple[str, Change, str]] = [
    ("gptq", _says(quant_method="aqlm"), "aqlm"),
    ("gptq", _without("scales"), "scales is missing"),
    ("gptq", _as("scales", lambda t: t[:, :8]), "other scales"),
    ("gptq", _as("qzeros", lambda t: t[:1]), "zero points"),
    ("gptq", _as("g_idx", lambda t: t + 9), "group that has no scale"),
    ("gptq", _as("g_idx", lambda t: -1 - t), "group that has no scale"),
    ("gptq", _as("qweight", lambda t: t.flatten()), "shape"),
    ("awq", _says(version="gemv"), "gemv"),
    ("awq", _as("scales", lambda t: t[:, :8]), "codes of 4 bits"),
    ("fp8", _without("weight_scale_inv"), "weight_scale_inv is missing"),
    ("fp8", _says(weight_block_size=[0, 4]), "block"),
    ("fp8", _as("weight_scale_inv", lambda t: t[:1]), "has shape"),
    ("fp8", _as("weight", lambda t: t.to(torch.float8_e5m2)), "F8_E5M2"),
    ("compressed-int4", _as("weight_scale", lambda t: t[:1]), "has shape"),
    ("compressed-int4", _says(config_groups={}), "0 bits"),
    ("compressed-mxfp4", _as("weight_scale", lambda t: t.to(torch.float8_e4m3fn)), "MXFP4"),
]


@pytest.mark.parametrize(
    ("kind", "change", "named"), _UNFIT, ids=[f"{kind}-{named}" for kind, _, named in _UNFIT]
)
def test_pieces_that_do_not_fit_together_are_refused(
    kind: str, change: Change, named: str, packed: Callable, tmp_path: Path
) -> None:
    source = packed("llama", kind)
    stored = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    change(stored, config)
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnsupported) as caught:
        load_shard(tmp_path, LayerRange(0, LAYERS))
    assert named in f"{caught.value}"


def test_random_pieces_and_settings_end_in_typed_errors(packed: Callable, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = sorted(BY_MATRIX)
    for number in range(300):
        source = packed("llama", kinds[number % len(kinds)])
        stored = load_file(source / "model.safetensors")
        config = json.loads((source / "config.json").read_text())
        names = [n for n in stored if ".layers.0.mlp." in n]
        name = names[rng.integers(len(names))]
        match rng.integers(5):
            case 0:
                del stored[name]
            case 1:
                stored[name] = stored[name].flatten()[: rng.integers(1, 9)].clone()
            case 2:
                stored[name] = stored[name].view(torch.uint8).clone()
            case 3:
                key = str(rng.choice(["bits", "weight_block_size", "version", "quant_method"]))
                values: list[Any] = [None, -1, 3, "gptq", [1], {}, 2**40, True]
                config["quantization_config"][key] = values[rng.integers(len(values))]
            case 4:
                config["quantization_config"]["config_groups"] = {"a": {"weights": {"num_bits": 3}}}
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file(stored, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
        try:
            load_shard(folder, LayerRange(0, 1))
        except ModelUnsupported:
            continue


@pytest.mark.parametrize("kind", BY_MATRIX)
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_matrices_stay_packed_and_answer_as_the_unpacked_ones(
    kind: str, numerics: str, packed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, layers = packed("qwen3", kind), LayerRange(0, LAYERS)
    here = load_shard(folder, layers, numerics=numerics)
    kept = [m for m in here.model.modules() if isinstance(m, CodedLinear)]
    assert len(kept) == 7 * LAYERS
    monkeypatch.setattr(FolderSource, "keep_packed", lambda *_: None)
    plain = load_shard(folder, layers, numerics=numerics)
    assert not any(isinstance(m, CodedLinear) for m in plain.model.modules())
    tensors = TensorFolder(folder)
    stored = sum(tensors.entry(name).size_bytes for name in tensors.packing.weights)
    assert sum(b.nbytes for m in kept for b in m.buffers()) <= 1.6 * stored  # panels are not full
    assert here.bytes < plain.bytes
    found, expected = (s.forward(IDS, s.new_cache()) for s in (here, plain))
    off = float((found.float() - expected.float()).abs().max() / expected.float().abs().max())
    assert off <= (1e-5 if numerics == "float32" else 2e-2)


def test_a_matrix_that_no_kernel_multiplies_is_unpacked(
    packed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NoKernels("no compiler")

    folder, layers = packed("llama", "fp8"), LayerRange(0, LAYERS)
    kept = load_shard(folder, layers)
    monkeypatch.setattr(loading, "CodedLinear", refuse)
    plain = load_shard(folder, layers)
    found, expected = (s.forward(IDS, s.new_cache()) for s in (kept, plain))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
