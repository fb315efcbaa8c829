"""How is a plain checkpoint written in the formats that people publish?

Codes are packed here as the formats' own tools lay them out; what compressed-tensors has a format
for is written by that library.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Pieces = dict[str, Tensor]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble of a word → its output
_FP8_BLOCK = (32, 32)
_GROUP = 32


def pack(source: Path, target: Path, kind: str, plain: torch.dtype | None = None) -> Path:
    """Write the model in `source` packed as `kind`; returns the new folder.

    Matrices of layers are packed; embedding, norms, router and head stay, in `plain` if given.
    """
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if "safetensors" not in file.name and not file.name.startswith("headrace"):
            shutil.copy(file, target / file.name)
    config = json.loads((source / "config.json").read_text())
    settings, packer = KINDS[kind]
    config["quantization_config"] = settings
    (target / "config.json").write_text(json.dumps(config))
    out: Pieces = {}
    for name, tensor in _tensors(source):
        if ".layers." not in name or tensor.dim() < 2 or "router" in name or ".gate." in name:
            out[name] = tensor.to(plain or tensor.dtype)
        elif tensor.dim() == 2 or kind == "mxfp4":
            out |= packer(name, tensor.float())
        else:
            out[name] = tensor
    save_file({n: t.contiguous() for n, t in out.items()}, target / "model.safetensors")
    return target


def _tensors(source: Path) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(source.glob("*.safetensors")):
        yield from load_file(file).items()


def _fp8(name: str, weight: Tensor) -> Pieces:
    outputs, inputs = weight.shape
    rows, columns = _FP8_BLOCK
    tall, wide = -(-outputs // rows), -(-inputs // columns)
    padded = torch.zeros(tall * rows, wide * columns)
    padded[:outputs, :inputs] = weight
    blocks = padded.reshape(tall, rows, wide, columns)
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-6) / 448
    codes = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:outputs, :inputs]
    return {name: codes.to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}


def _mxfp4(name: str, weight: Tensor) -> Pieces:
    if weight.dim() != 3:
        return {name: weight}
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat([numbers, -numbers])
    by_group = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
    exponents = torch.floor(torch.log2(by_group.abs().amax(-1).clamp(min=1e-9))) - 2
    scaled = by_group / torch.exp2(exponents)[..., None]
    codes = (scaled[..., None] - numbers).abs().argmin(-1).to(torch.uint8)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    return {f"{name}_blocks": packed, f"{name}_scales": (exponents + 127).to(torch.uint8)}


def _affine(weight: Tensor, group_of: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 … 15 [outputs, inputs], scales and zero points [outputs, groups]."""
    low, high = torch.zeros(len(weight), groups), torch.zeros(len(weight), groups)
    index = group_of.expand_as(weight)
    low = low.scatter_reduce(1, index, weight, "amin")
    high = high.scatter_reduce(1, index, weight, "amax")
    scales = ((high - low) / 15).clamp(min=1e-6).half()
    zeros = torch.round(-low / scales).clamp(1, 15)  # GPTQ writes one less
    codes = torch.round(weight / scales.gather(1, index) + zeros.gather(1, index)).clamp(0, 15)
    return codes.to(torch.int64), scales, zeros.to(torch.int64)


def _words(codes: Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight codes of 4 bits a word, along a dimension."""
    grouped = codes.unflatten(dim, (-1, 8))
    parts = [grouped.select(dim + 1, number) << (4 * nibble) for nibble, number in enumerate(order)]
    return torch.stack(parts).sum(0).to(torch.uint32).view(torch.int32)


def _gptq(name: str, weight: Tensor, *, act_order: bool = False) -> Pieces:
    base, inputs = name.removesuffix(".weight"), weight.shape[1]
    group_of = torch.arange(inputs) // _GROUP
    if act_order:
        group_of = group_of[torch.randperm(inputs, generator=torch.Generator().manual_seed(7))]
    codes, scales, zeros = _affine(weight, group_of, inputs // _GROUP)
    return {
        f"{base}.qweight": _words(codes.T, 0),
        f"{base}.qzeros": _words((zeros - 1).T, 1),
        f"{base}.scales": scales.T,
        f"{base}.g_idx": group_of.to(torch.int32),
    }


def _gptq_act_order(name: str, weight: Tensor) -> Pieces:
    return _gptq(name, weight, act_order=True)


def _awq(name: str, weight: Tensor) -> Pieces:
    base, inputs = name.removesuffix(".weight"), weight.shape[1]
    codes, scales, zeros = _affine(weight, torch.arange(inputs) // _GROUP, inputs // _GROUP)
    return {
        f"{base}.qweight": _words(codes.T, 1, _AWQ_ORDER),
        f"{base}.qzeros": _words(zeros.T, 1, _AWQ_ORDER),
        f"{base}.scales": scales.T,
    }


def _compressed(weights: Mapping[str, Any], format_name: str) -> tuple[dict, Callable]:
    """The settings and the packer of a format of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": dict(weights), "format": format_name}
    settings = {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }

    def packer(name: str, weight: Tensor) -> Pieces:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationScheme

        scheme = QuantizationScheme.model_validate(group)
        scale, zero = _scale_for(weight, weights, format_name)
        state = {"weight": weight, "weight_scale": scale}
        if zero is not None:
            state["weight_zero_point"] = zero
        found = BaseCompressor.get_value_from_registry(format_name).compress(state, scheme)
        base = name.removesuffix(".weight")
        return {f"{base}.{leaf}": tensor for leaf, tensor in found.items()}

    return settings, packer


def _scale_for(
    weight: Tensor, weights: Mapping[str, Any], format_name: str
) -> tuple[Tensor, Tensor | None]:
    outputs, inputs = weight.shape
    groups = inputs // weights["group_size"] if weights.get("group_size") else 1
    grouped = weight.reshape(outputs, groups, -1)
    largest = grouped.abs().amax(-1).clamp(min=1e-6)
    if format_name == "mxfp4-pack-quantized":
        return torch.exp2(torch.floor(torch.log2(largest)) - 2), None
    if weights["type"] == "float":
        return largest / 448, None
    half = 2 ** (weights["num_bits"] - 1)
    if weights["symmetric"]:
        return (largest / (half - 1)).to(torch.bfloat16), None
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = ((high - low) / (2 * half - 1)).clamp(min=1e-6)
    zero = torch.round(-low / scale) - half
    return scale, zero.to(torch.int8)


def _int(bits: int, *, symmetric: bool, group_size: int | None = None) -> dict[str, Any]:
    strategy = "group" if group_size else "channel"
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": group_size,
    }


#: Format → what the configuration says of it, and what packs one matrix.
KINDS: dict[str, tuple[dict[str, Any], Callable[[str, Tensor], Pieces]]] = {
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": list(_FP8_BLOCK), "fmt": "e4m3"},
        _fp8,
    ),
    "mxfp4": ({"quant_method": "mxfp4"}, _mxfp4),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": _GROUP}, _gptq),
    "gptq-act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": _GROUP, "desc_act": True},
        _gptq_act_order,
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": _GROUP, "version": "gemm"},
        _awq,
    ),
    "compressed-int4": _compressed(_int(4, symmetric=True, group_size=_GROUP), "pack-quantized"),
    "compressed-int4-asymmetric": _compressed(
        _int(4, symmetric=False, group_size=_GROUP), "pack-quantized"
    ),
    "compressed-int8": _compressed(_int(8, symmetric=True), "int-quantized"),
    "compressed-fp8": _compressed(
        {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
        "float-quantized",
    ),
    "compressed-mxfp4": _compressed(
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32},
        "mxfp4-pack-quantized",
    ),
}


def by_library(folder: Path, kind: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What the library's own quantisers make of a folder in this dtype."""
    from transformers import (
        AutoModelForCausalLM,
        CompressedTensorsConfig,
        FineGrainedFP8Config,
        Mxfp4Config,
    )

    options: dict[str, Any] = {
        "fp8": lambda: FineGrainedFP8Config(weight_block_size=(32, 32), dequantize=True),
        "mxfp4": lambda: Mxfp4Config(dequantize=True),
    }.get(kind, lambda: CompressedTensorsConfig(dequantize=True))()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=options)
    return dict(model.state_dict())


def write_tiny_gpt_oss(folder: Path, layers: int) -> Path:
    """A random model whose experts are published in MXFP4. Returns its folder."""
    from transformers import AutoModelForCausalLM, GptOssConfig

    from devnet.models.tiny_models import write_tiny_tokenizer

    config = GptOssConfig(
        num_hidden_layers=layers,
        hidden_size=64,
        intermediate_size=96,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=272,
        max_position_embeddings=512,
        sliding_window=8,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return folder
