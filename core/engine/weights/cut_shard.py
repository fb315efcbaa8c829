"""How does a whole model's configuration become the shard of some of its layers?

The library builds the whole model on the meta device (no memory), the layers of others are taken
out, real buffers are computed, and exactly the owned tensors are read. What the shard does not own
stays on the meta device, where any use of it fails loudly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from core.engine.model.blocks import ModelShard
from core.engine.model.boundary import PassThrough, bring_along, give_activations, take_activations
from core.engine.model.clone import cut_in_place
from core.engine.model.dryrun import windows_of
from core.engine.model.library import AutoModelForCausalLM
from core.engine.model.naming import Family
from core.engine.model.refusal import attention_of, unsupported
from core.engine.model.spread import Spread
from core.engine.model.wide_end import widen_end
from core.engine.weights.formats import NumberFormat
from core.engine.weights.loading import Filling, Source, fill_model
from core.engine.weights.precision import require_precision
from core.engine.weights.quantise import quantise_layer, refuse_unquantisable, round_to
from core.engine.weights.shape import context_of
from core.protocol.types import LayerRange

_NUMBER_NAMES = ("layer_idx", "layer_id", "layer_number")


def build_shard(
    config: PreTrainedConfig,
    family: Family,
    layers: LayerRange,
    needed: Mapping[str, str],
    source: Source,
    form: NumberFormat,
    *,
    reference: bool = False,
    spread: Spread | None = None,
) -> ModelShard:
    """A shard from a whole model's configuration and a source of stored tensors.

    `needed` maps canonical names to stored names (`Parts.of`). Raises ModelUnsupported when tensors
    are missing or have another shape than the configuration says, UsageError for a device that
    multiplies less exactly than audits allow. Without a `spread` it lies on the processor.
    """
    spread = spread or Spread((torch.device("cpu"),), (0,) * len(layers))
    for device in spread.devices:
        if device.type == "cuda":
            require_precision(device)
    total = config.num_hidden_layers
    compute = torch.float64 if reference else getattr(torch, form.compute)
    options = {"attn_implementation": attention_of(config)}
    if compute is torch.float64:  # the library's fused kernels for experts have no float64
        options["experts_implementation"] = "eager"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=compute, **options)
    model.eval()
    owned = _cut(model, family, layers, total)
    if compute is torch.bfloat16 and layers.end == total:
        widen_end(model, family)
    _compute_buffers(model, lambda path: spread.devices[spread.part_at(path, family)])
    if form.bits:
        refuse_unquantisable(config, owned, form)

    def finish(layer: nn.Module) -> None:
        quantise_layer(layer, form, reference=reference)

    on_processor = all(device.type == "cpu" for device in spread.devices)
    keeps_packed = on_processor and not reference and not form.bits
    filling = Filling(model, family, layers, total, spread, keeps_packed, finish)
    fill_model(filling, needed, source)
    if reference:
        round_to(model, family, form)
    if layers.start > 0:
        take_activations(model, owned[0])
    if layers.end < total:
        give_activations(model, owned[-1])
    if len(spread.devices) > 1:
        for layer, part in zip(owned, spread.part_of, strict=True):
            bring_along(layer, spread.devices[part])
    return ModelShard(
        model,
        layers,
        num_layers=total,
        windows=list(windows_of(model.config)),
        context=context_of(config.to_dict()),
        numerics=form.name,
        decoder_layers=owned,
        spread=spread,
    )


def _cut(model: Any, family: Family, layers: LayerRange, total: int) -> nn.ModuleList:
    """Take out what other stages hold; returns the owned layers, numbered from 0."""
    found = model.get_submodule(family.layers)
    owned = nn.ModuleList(list(found)[layers.start : layers.end])
    _set(model, family.layers, owned)
    for module in owned.modules():
        for name in _NUMBER_NAMES:
            number = getattr(module, name, None)
            if isinstance(number, int):
                setattr(module, name, number - layers.start)
    cut_in_place(model.config, range(layers.start, layers.end))
    kept = set(family.before if layers.start == 0 else ())
    kept |= set(family.after if layers.end == total else ())
    # The embedding stays even where it is empty: models look at its dtype and device.
    for path in {*family.before[1:], *family.after} - kept:
        _set(model, path, PassThrough(model.config.hidden_size))
    return owned


def _set(model: Any, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _compute_buffers(model: Any, device_at: Callable[[str], torch.device]) -> None:
    # The library's own initialiser computes buffers; parameters are still on the meta device, where
    # initialising them does nothing.
    for path, module in model.named_modules():
        names = [name for name, b in module.named_buffers(recurse=False) if b.is_meta]
        for name in names:
            empty = torch.empty_like(getattr(module, name), device="cpu")
            module._buffers[name] = empty.fill_(torch.nan) if empty.is_floating_point() else empty
        if names:
            model._init_weights(module)
        for name in names:
            value = getattr(module, name)
            stored = name not in module._non_persistent_buffers_set
            if not stored and value.is_floating_point() and bool(value.isnan().any()):
                raise unsupported(
                    model.config, f"a table that the library leaves empty ({path}.{name})"
                )
            module._buffers[name] = value.to(device_at(path))
