"""How is any dense decoder loaded by layer range?

The configuration is cut to the owned layers, the library builds the model on the meta device (no memory), real
buffers are computed, and exactly the owned tensors are read. What the shard does not own stays on the meta device,
where any use of it fails loudly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.cache_utils import get_layer_types_and_kwargs

from core.engine.blocks import Shard
from core.engine.naming import HEAD_WEIGHT, Family, family_of
from core.engine.shape import layer_count, model_parts, read_config
from core.engine.tensors import TensorFolder
from core.protocol.errors import ModelUnsupported, UsageError
from core.protocol.types import LayerRange

_TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
#: Options whose result would depend on the layer's number, on other requests or on later tokens.
_REFUSED_OPTIONS = (
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "add_cross_attention",
    "use_bidirectional_attention",
)
_REFUSED_ROPE = ("dynamic", "longrope")
SELF_CHECK_TOLERANCE = 1e-4


def load_shard(
    model_dir: Path,
    layers: LayerRange,
    *,
    dtype: torch.dtype = torch.float32,
    self_check: bool = False,
) -> Shard:
    """Layers `layers` of the model in a folder, ready to run; reads only their tensors.

    The first stage also holds the embedding, the last one the final norm and the head. float32 serves,
    float64 audits, bfloat16 is for hardware that has it. `self_check` first proves on a tiny random clone of the
    architecture that cutting it changes nothing. Raises ModelMissing, ModelUnsupported, or UsageError for
    layers that the model does not have.
    """
    raw = read_config(model_dir)
    family = family_of(raw.get("model_type"))
    total = layer_count(raw)
    if layers.end > total:
        raise UsageError(
            f"there are no layers {layers}", why=f"{Path(model_dir).name} has layers 0-{total - 1}"
        )
    if dtype not in DTYPES:
        raise UsageError(f"cannot run in {dtype}", why="known are float32, float64 and bfloat16")
    config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    refuse_unsupported(config)
    if self_check:
        check_architecture(config, family)
    folder = TensorFolder(model_dir)
    parts = model_parts(model_dir, folder)
    needed = parts.of(layers.start, layers.end)
    return build_shard(
        config, family, layers, needed, lambda stored: _read(folder, stored), dtype=dtype
    )


def refuse_unsupported(config: PreTrainedConfig) -> None:
    """Raises ModelUnsupported, naming the option, for configurations that cannot be cut."""
    found = [name for name in _REFUSED_OPTIONS if getattr(config, name, False)]
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(v for v in rope.values() if isinstance(v, dict))]
    found += [f"rope type {k['rope_type']}" for k in kinds if k.get("rope_type") in _REFUSED_ROPE]
    if getattr(config, "quantization_config", None) is not None:
        found.append("quantised weights")
    if found:
        raise ModelUnsupported(
            f"cannot run this {config.model_type} model", why="it uses " + ", ".join(found)
        )


def attention_of(config: PreTrainedConfig) -> str:
    """The library's attention that serves this model: fused, unless scores are soft-capped."""
    return "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"


def cut_config(config: PreTrainedConfig, layers: LayerRange) -> PreTrainedConfig:
    """The same configuration with only these layers; every per-layer list is cut alike."""
    total = config.num_hidden_layers
    cut = copy.deepcopy(config)
    for name, value in vars(config).items():
        per_layer = isinstance(value, list | tuple) and len(value) == total
        if per_layer and not name.endswith(("token_id", "token_ids", "architectures")):
            setattr(cut, name, value[layers.start : layers.end])
    cut.num_hidden_layers = len(layers)
    return cut


def build_shard(
    config: PreTrainedConfig,
    family: Family,
    layers: LayerRange,
    needed: dict[str, str],
    read: Callable[[str], Tensor],
    *,
    dtype: torch.dtype,
) -> Shard:
    """A shard from a whole model's configuration and a reader of stored tensors.

    `needed` maps canonical names to stored names (`Parts.of`). Raises ModelUnsupported when tensors are
    missing or have another shape than the configuration says.
    """
    total = config.num_hidden_layers
    cut = cut_config(config, layers)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            cut, dtype=dtype, attn_implementation=attention_of(config)
        )
    model.eval()
    _compute_buffers(model)
    base = model.base_model
    if layers.start > 0 and family.positions:
        setattr(base, family.positions, _NoPositions())
    if layers.end < total:
        setattr(base, family.norm, nn.Identity())
    _assign(model, family, layers, total, needed, read, dtype)
    types, options = get_layer_types_and_kwargs(cut)
    assert set(types) <= {"full_attention", "sliding_attention"}, types
    return Shard(
        model,
        layers,
        num_layers=total,
        windows=[int(option.get("sliding_window", 0)) for option in options],
        context=config.max_position_embeddings,
    )


class _NoPositions(nn.Module):
    """Stands where a later stage of gpt2 would add position embeddings a second time."""

    def forward(self, position_ids: Tensor) -> Tensor:
        return torch.zeros((), dtype=torch.get_default_dtype())


def _compute_buffers(model: Any) -> None:
    # The library's own initialiser computes buffers; parameters are still on the meta device, where
    # initialising them does nothing.
    for module in model.modules():
        names = [name for name, b in module.named_buffers(recurse=False) if b.is_meta]
        for name in names:
            empty = torch.empty_like(getattr(module, name), device="cpu")
            module.register_buffer(name, empty, persistent=False)
        if names:
            model._init_weights(module)


def _assign(
    model: Any,
    family: Family,
    layers: LayerRange,
    total: int,
    needed: dict[str, str],
    read: Callable[[str], Tensor],
    dtype: torch.dtype,
) -> None:
    layer_prefix = f"{family.prefix}.{family.layers}."
    last = layers.end == total
    held: dict[str, nn.Parameter] = {}

    def place(name: str, parameter: nn.Parameter) -> None:
        path, _, leaf = name.rpartition(".")
        expected = getattr(model.get_submodule(path), leaf)
        if expected.shape != parameter.shape:
            raise ModelUnsupported(
                f"{name} has shape {list(parameter.shape)}",
                why=f"the configuration says {list(expected.shape)}",
            )
        setattr(model.get_submodule(path), leaf, parameter)

    present = dict(model.named_parameters(remove_duplicate=False))
    for canonical, stored in needed.items():
        local = canonical
        if canonical.startswith(layer_prefix):
            number, _, rest = canonical.removeprefix(layer_prefix).partition(".")
            local = f"{layer_prefix}{int(number) - layers.start}.{rest}"
        tied_head = canonical == family.embedding_weight and HEAD_WEIGHT not in needed and last
        wanted = [local] if layers.start == 0 or not tied_head else []
        wanted += [HEAD_WEIGHT] if tied_head else []
        if unknown := [name for name in wanted if name not in present]:
            raise ModelUnsupported(
                f"this checkpoint is not a plain {family.model_type}",
                why=f"the model has no parameter {unknown[0]}",
            )
        if canonical not in held:
            held[canonical] = nn.Parameter(read(stored).to(dtype), requires_grad=False)
        for name in wanted:
            place(name, held[canonical])
    allowed = set() if last else {HEAD_WEIGHT}
    allowed |= set() if layers.start == 0 else {family.embedding_weight}
    missing = [n for n, p in model.named_parameters() if p.is_meta and n not in allowed]
    if missing:
        raise ModelUnsupported(
            "this checkpoint is incomplete",
            why=f"it lacks {len(missing)} tensors of layers {layers}, such as {missing[0]}",
            missing=missing[:20],
        )


def _read(folder: TensorFolder, stored: str) -> Tensor:
    entry = folder.entry(stored)
    if entry.dtype not in _TORCH_DTYPES:
        raise ModelUnsupported(
            f"{stored} is stored as {entry.dtype}",
            why="weights must be float64, float32, float16 or bfloat16",
        )
    raw = torch.empty(entry.size_bytes, dtype=torch.uint8)
    folder.read_into(stored, raw.numpy().data)
    return raw.view(_TORCH_DTYPES[entry.dtype]).reshape(entry.shape)


def check_architecture(config: PreTrainedConfig, family: Family) -> float:
    """Largest logit difference between a tiny random clone of the architecture, whole and cut in two.

    Prompt and decode steps both count. Raises ModelUnsupported above `SELF_CHECK_TOLERANCE`, which turns "this
    family is supported" into something every load can prove in well under a second.
    """
    tiny = _tiny_clone(config)
    total = tiny.num_hidden_layers
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        whole = AutoModelForCausalLM.from_config(
            tiny, dtype=torch.float32, attn_implementation=attention_of(tiny)
        ).eval()
        ids = torch.randint(tiny.vocab_size, (20,))
        expected = whole(input_ids=ids[None], use_cache=False).logits[0]
        weights = {n: p.detach() for n, p in whole.named_parameters(remove_duplicate=False)}
    names = {n: n for n in weights if n != HEAD_WEIGHT or not tiny.tie_word_embeddings}
    half = total // 2
    cuts = (LayerRange(0, half), LayerRange(half, total))
    stages = []
    for cut in cuts:
        needed = {n: s for n, s in names.items() if _needs(n, family, cut, total, tiny)}
        stages.append(
            build_shard(tiny, family, cut, needed, weights.__getitem__, dtype=torch.float32)
        )
    caches = [stage.new_cache() for stage in stages]
    got = []
    for part in (ids[:16], *ids[16:].split(1)):
        x = part
        for stage, cache in zip(stages, caches, strict=True):
            x = stage.forward(x, cache)
        got.append(x)
    difference = float((torch.cat(got) - expected).abs().max())
    if not difference <= SELF_CHECK_TOLERANCE:
        raise ModelUnsupported(
            f"cutting a {config.model_type} model changes its answers",
            why=f"logits of a small clone differ by {difference:.1e}, more than "
            f"{SELF_CHECK_TOLERANCE:.0e}",
            difference=difference,
        )
    return difference


def _needs(
    name: str, family: Family, layers: LayerRange, total: int, config: PreTrainedConfig
) -> bool:
    layer_prefix = f"{family.prefix}.{family.layers}."
    if name.startswith(layer_prefix):
        return int(name.removeprefix(layer_prefix).partition(".")[0]) in layers
    if name.startswith((HEAD_WEIGHT, f"{family.prefix}.{family.norm}.")):
        return layers.end == total
    tied_copy = name == family.embedding_weight and config.tie_word_embeddings
    return layers.start == 0 or (tied_copy and layers.end == total)


def _tiny_clone(config: PreTrainedConfig) -> PreTrainedConfig:
    total = config.num_hidden_layers
    size = min(4, total)
    kinds = list(getattr(config, "layer_types", None) or [""] * total)
    start = max(range(total - size + 1), key=lambda s: len(set(kinds[s : s + size])))
    tiny = cut_config(config, LayerRange(start, start + size))
    for name, small in (
        ("vocab_size", 96),
        ("hidden_size", 64),
        ("intermediate_size", 96),
        ("n_inner", 96),
        ("num_attention_heads", 4),
        ("head_dim", 16),
        ("sliding_window", 8),
    ):
        if getattr(tiny, name, None) is not None:
            setattr(tiny, name, small)
    if getattr(tiny, "num_key_value_heads", None) is not None:
        tiny.num_key_value_heads = 2
    tiny.pad_token_id = None
    return tiny
