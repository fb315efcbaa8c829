"""Does cutting this architecture leave its answers alone?

A tiny random clone is run whole and cut in two. It turns "this architecture is supported" into
something that every load proves in well under a second.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig

from core.engine.model.anatomy import build_tiny, quiet_library
from core.engine.model.blocks import ModelShard
from core.engine.model.naming import Family
from core.engine.model.refusal import unsupported
from core.engine.weights.cut_shard import build_shard
from core.engine.weights.formats import FORMATS
from core.engine.weights.loading import TensorSource
from core.protocol.errors import ModelUnsupported
from core.protocol.types import LayerRange

SELF_CHECK_TOLERANCE = 1e-4
_PROMPT, _STEPS = 16, 4


def check_architecture(config: PreTrainedConfig, family: Family) -> float:
    """Largest difference of logits, in units of the largest logit, of a tiny clone whole and cut in
    two. Prompt and decode steps both count. Raises ModelUnsupported above `SELF_CHECK_TOLERANCE`.
    """
    with quiet_library():
        whole = build_tiny(config)
        tiny = whole.config
        ids = (torch.arange(_PROMPT + _STEPS) * 37 + 5) % tiny.vocab_size
        with torch.inference_mode():
            expected = whole(input_ids=ids[None], use_cache=False).logits[0]
            alone = whole(input_ids=ids[None, :_PROMPT], use_cache=False).logits[0]
        size = float(expected.abs().max())
        if not float((alone - expected[:_PROMPT]).abs().max()) <= SELF_CHECK_TOLERANCE * size:
            raise unsupported(config, "attention to later tokens")
        stages = _halves(whole, family)
        caches = [stage.new_cache() for stage in stages]
        got = []
        for part in (ids[:_PROMPT], *ids[_PROMPT:].split(1)):
            x = part
            for stage, cache in zip(stages, caches, strict=True):
                x = stage.forward(x, cache)
                if not cache.length:
                    raise unsupported(config, "no cache of keys and values")
            got.append(x)
    difference = float((torch.cat(got) - expected).abs().max()) / size
    if not difference <= SELF_CHECK_TOLERANCE:
        raise ModelUnsupported(
            f"cutting a {config.model_type} model changes its answers",
            why=f"logits of a small clone differ by {difference:.1e}, more than "
            f"{SELF_CHECK_TOLERANCE:.0e}",
            difference=difference,
        )
    return difference


def _halves(whole: torch.nn.Module, family: Family) -> list[ModelShard]:
    tiny = whole.config
    total = tiny.num_hidden_layers
    half = total // 2
    # Tied matrices come once; in a model's own names there is nothing to convert.
    weights = {n: t.detach() for n, t in whole.state_dict().items()}
    if tiny.tie_word_embeddings:
        weights.pop(family.head_weight, None)
    stages = []
    for cut in (LayerRange(0, half), LayerRange(half, total)):
        needed = {
            n: n for n in weights if _needs(n, family, cut, total, tied=tiny.tie_word_embeddings)
        }
        stages.append(
            build_shard(tiny, family, cut, needed, TensorSource(weights), FORMATS["float32"])
        )
    return stages


def _needs(name: str, family: Family, layers: LayerRange, total: int, *, tied: bool) -> bool:
    first, last = layers.start == 0, layers.end == total
    prefix = family.layers + "."
    if name.startswith(prefix):
        return int(name.removeprefix(prefix).partition(".")[0]) in layers
    module = name.rpartition(".")[0]
    if module in family.before and first:
        return True
    return last and (
        module in family.after
        or module == family.head
        or (tied and name == family.embedding_weight)
    )
