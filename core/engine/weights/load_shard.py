"""How is any decoder loaded by layer range?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from core.engine.model.blocks import ModelShard
from core.engine.model.config_facts import read_config
from core.engine.model.families import family_of
from core.engine.model.refusal import parse_config, refuse_unsupported
from core.engine.model.spread import Spread, spread_over
from core.engine.weights.cut_shard import build_shard
from core.engine.weights.formats import format_of
from core.engine.weights.loading import FolderSource
from core.engine.weights.selfcheck import check_architecture
from core.engine.weights.shape import describe_model, layer_count, model_parts
from core.engine.weights.tensors import TensorFolder
from core.protocol.errors import UsageError
from core.protocol.types import LayerRange


def load_shard(
    model_dir: Path,
    layers: LayerRange,
    *,
    dtype: torch.dtype | None = None,
    numerics: str = "",
    reference: bool = False,
    device: torch.device | str = "cpu",
    devices: Sequence[tuple[str, int]] = (),
    self_check: bool = False,
) -> ModelShard:
    """Layers `layers` of the model in a folder, ready to run; reads only their tensors.

    The first stage also holds the embedding, the last one the final norm and the head. `numerics`
    is a name of `formats.FORMATS`; `dtype` says the same for the three that are a dtype, and
    float32 is what neither says. `reference` gives the float64 shard that a machine of these
    numerics is audited with: its weights are the quantised values, exactly. `devices`, by name and
    bytes of each, share the layers; without them all are on `device`. `self_check` first proves on
    a tiny random clone of the architecture that cutting it changes nothing. Raises
    ModelMissing, ModelUnsupported, CheckFailed for a pulled tensor that is not the published one,
    or UsageError for layers that the model does not have or that do not fit on the devices.
    """
    form = format_of(numerics or str(dtype or torch.float32).removeprefix("torch."))
    raw = read_config(model_dir)
    family = family_of(raw)
    total = layer_count(raw)
    if layers.end > total:
        raise UsageError(
            f"there are no layers {layers}", why=f"{Path(model_dir).name} has layers 0-{total - 1}"
        )
    config = parse_config(json.dumps(raw))
    refuse_unsupported(config)
    if self_check:
        check_architecture(config, family)
    folder = TensorFolder(model_dir)
    needed = model_parts(model_dir, folder).of(layers.start, layers.end)
    spread = Spread((torch.device(devices[0][0] if devices else device),), (0,) * len(layers))
    if len(devices) > 1:
        sizes = describe_model(model_dir, form.name)
        before, after = (
            (layers.start == 0) * sizes.embed_bytes,
            (layers.end == total) * sizes.head_bytes,
        )
        spread = spread_over(devices, sizes.layers_bytes[layers.start : layers.end], before, after)
    shard = build_shard(
        config,
        family,
        layers,
        needed,
        FolderSource(folder),
        form,
        reference=reference,
        spread=spread,
    )
    folder.prove()
    return shard
