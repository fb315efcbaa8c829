"""How is any decoder loaded by layer range?

The library builds the whole model on the meta device (no memory), the layers of others are taken out, real buffers
are computed, and exactly the owned tensors are read. What the shard does not own stays on the meta device, where any
use of it fails loudly.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from core.engine.blocks import Shard
from core.engine.boundary import PassThrough, give_activations, take_activations
from core.engine.clone import cut_in_place
from core.engine.dryrun import windows_of
from core.engine.formats import NumberFormat, format_of
from core.engine.library import AutoModelForCausalLM
from core.engine.loading import Filling, FolderSource, Source, fill_model
from core.engine.naming import Family, family_of
from core.engine.quantise import quantise_layer, refuse_unquantisable, round_to
from core.engine.refusal import attention_of, refuse_unsupported, unsupported
from core.engine.shape import context_of, layer_count, model_parts, read_config
from core.engine.tensors import TensorFolder
from core.protocol.errors import UsageError
from core.protocol.types import LayerRange

_NUMBER_NAMES = ("layer_idx", "layer_id", "layer_number")


def load_shard(
    model_dir: Path,
    layers: LayerRange,
    *,
    dtype: torch.dtype | None = None,
    numerics: str = "",
    reference: bool = False,
    device: torch.device | str = "cpu",
    self_check: bool = False,
) -> Shard:
    """Layers `layers` of the model in a folder, ready to run; reads only their tensors.

    The first stage also holds the embedding, the last one the final norm and the head. `numerics` is a name of
    `formats.FORMATS`; `dtype` says the same for the three that are a dtype, and float32 is what neither says.
    `reference` gives the float64 shard that a machine of these numerics is audited with: its weights are the
    quantised values, exactly. `self_check` first proves on a tiny random clone of the architecture that cutting it
    changes nothing. Raises ModelMissing, ModelUnsupported, or UsageError for layers that the model does not have.
    """
    form = format_of(numerics or str(dtype or torch.float32).removeprefix("torch."))
    raw = read_config(model_dir)
    family = family_of(raw)
    total = layer_count(raw)
    if layers.end > total:
        raise UsageError(
            f"there are no layers {layers}", why=f"{Path(model_dir).name} has layers 0-{total - 1}"
        )
    config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    refuse_unsupported(config)
    if self_check:
        from core.engine.selfcheck import check_architecture

        check_architecture(config, family)
    folder = TensorFolder(model_dir)
    needed = model_parts(model_dir, folder).of(layers.start, layers.end)
    return build_shard(
        config,
        family,
        layers,
        needed,
        FolderSource(folder),
        form,
        reference=reference,
        device=torch.device(device),
    )


def build_shard(
    config: PreTrainedConfig,
    family: Family,
    layers: LayerRange,
    needed: Mapping[str, str],
    source: Source,
    form: NumberFormat,
    *,
    reference: bool = False,
    device: torch.device = torch.device("cpu"),
) -> Shard:
    """A shard from a whole model's configuration and a source of stored tensors.

    `needed` maps canonical names to stored names (`Parts.of`). Raises ModelUnsupported when tensors are
    missing or have another shape than the configuration says.
    """
    total = config.num_hidden_layers
    compute = torch.float64 if reference else getattr(torch, form.compute)
    options = {"attn_implementation": attention_of(config)}
    if compute is torch.float64:  # the library's fused kernels for experts have no float64
        options["experts_implementation"] = "eager"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=compute, **options)
    model.eval()
    owned = _cut(model, family, layers, total)
    _compute_buffers(model, device)
    if form.bits:
        refuse_unquantisable(config, owned, form)

    def finish(layer: nn.Module) -> None:
        quantise_layer(layer, form, reference=reference)

    fill_model(Filling(model, family, layers, total, device, finish), needed, source)
    if reference:
        round_to(model, form)
    if layers.start > 0:
        take_activations(model, owned[0])
    if layers.end < total:
        give_activations(model, owned[-1])
    return Shard(
        model,
        layers,
        num_layers=total,
        windows=list(windows_of(model.config)),
        context=context_of(config.to_dict()),
        numerics=form.name,
        decoder_layers=owned,
        device=device,
    )


def _cut(model: Any, family: Family, layers: LayerRange, total: int) -> nn.ModuleList:
    """Take out of a model what other stages hold. Returns the owned layers, numbered from 0 as the cache is."""
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


def _compute_buffers(model: Any, device: torch.device) -> None:
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
            module._buffers[name] = value.to(device)
