"""Which layers does this miner hold, by which matcher's word, and how do they change?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.protocol import commit, hashing
from core.protocol import types as t
from core.protocol.errors import CheckFailed, ModelError, UsageError
from core.runtime.logs import get_logger
from miner.compute.compute import PREFIX_SHARE, Compute
from miner.compute.tiers import SecondTier
from miner.serving.job_table import LoadedShard

if TYPE_CHECKING:
    from core.engine.model.blocks import ModelShard
    from core.engine.weights.tokenizer import Tokenizer

ShardHook = Callable[["ModelShard"], None]
_PAGE_TOKENS = 16
_LEAST_TOKENS = 4 * _PAGE_TOKENS
log = get_logger(__name__)


@dataclass(frozen=True)
class Assignment:
    """What to hold, and the allocation that says so (0: the owner)."""

    layers: t.LayerRange | None
    allocation: int
    matcher: str = ""


@dataclass(frozen=True)
class LocalModel:
    """A model whose files are here and are the registered ones."""

    name: str
    model_id: str
    spec: t.ModelSpec
    folder: Path
    roots: tuple[bytes, ...]
    eos_ids: frozenset[int]
    kv_bytes_per_token_layer: int

    def shard_root(self, layers: t.LayerRange) -> str:
        return commit.to_hex(commit.shard_root(self.roots, layers.start, layers.end))


def follow(
    now: Assignment, word: Assignment, trusted: frozenset[str], *, is_silent: bool
) -> Assignment:
    """What to hold after a matcher's word.

    `trusted` are matchers in lower case. The matcher followed so far keeps its place until it
    `is_silent`, because two that disagree would make every machine load for ever. With none named,
    the first one heard is followed.
    """
    if trusted and word.matcher not in trusted:
        return now
    if word.matcher == now.matcher:
        return word if word.allocation > now.allocation else now
    return word if is_silent or not now.matcher else now


def open_model(name: str, model_id: str, spec: t.ModelSpec, folder: Path) -> LocalModel:
    """Check the files against the registry.

    Raises CheckFailed when they are another model, ModelError without them. Hashes every weight the
    first time, which takes seconds; the result is kept beside the model.
    """
    from core.engine.weights.shape import describe_model
    from core.engine.weights.tokenizer import Tokenizer
    from core.engine.weights.weights import model_manifest

    manifest = model_manifest(folder)
    if manifest.weights_root.lower() != spec.weights_root.lower():
        raise CheckFailed(
            f"the files of {name} are not the registered model",
            f"their weights root is {manifest.weights_root}, the registry says {spec.weights_root}",
            next_step="unpack the model again, or choose the model that these files are",
        )
    shape = describe_model(folder)
    return LocalModel(
        name=name,
        model_id=model_id,
        spec=spec,
        folder=folder,
        roots=tuple(manifest.roots),
        eos_ids=Tokenizer(folder).eos_ids,
        kv_bytes_per_token_layer=shape.kv_bytes_per_token,
    )


async def load(
    compute: Compute,
    model: LocalModel,
    layers: t.LayerRange,
    *,
    memory_bytes: int,
    kv_bytes: int | None = None,
    max_requests: int | None = None,
    offload_bytes: int = 0,
    offload_folder: Path | None = None,
    prefix_share: float = PREFIX_SHARE,
    dtype: str = "float32",
    device: str = "cpu",
    hook: ShardHook | None = None,
) -> LoadedShard:
    """Put a shard into memory and measure it.

    Keys and values get what the weights leave of `memory_bytes`, at most `kv_bytes`, and no more
    than `max_requests` of the longest requests can fill. Beside them up to `offload_bytes` lie in
    files in `offload_folder`, or in ordinary memory, which counts. `prefix_share` of the former may
    keep prompts for their owners' next ones. `hook` gets the shard before it serves; the product
    passes none, tests and demonstrations do. Raises ModelError, or UsageError for layers that the
    model lacks or that do not fit into `memory_bytes`.
    """
    context = model.spec.context

    def in_thread() -> ModelShard:
        import torch

        from core.engine.weights.load_shard import load_shard

        hashing.hash_in_c()
        shard = load_shard(
            model.folder, layers, dtype=getattr(torch, dtype), device=device, self_check=True
        )
        if hook is not None:
            hook(shard)
        return shard

    def room(shard: ModelShard) -> int:
        token_bytes = model.kv_bytes_per_token_layer * len(layers)
        left = memory_bytes - shard.bytes
        if offload_folder is None and device == "cpu":
            left -= offload_bytes
        # Beside the pages of kept prompts lie the rows that left with them.
        row_bytes = shard.hidden * shard.dtype.itemsize
        left = int(left / (1 + prefix_share * min(1.0, row_bytes / token_bytes)))
        if left < _LEAST_TOKENS * token_bytes:
            raise UsageError(
                f"layers {layers} do not fit",
                f"their weights take {shard.bytes} bytes of {memory_bytes}, which leaves no room "
                "to work",
                next_step="raise miner.memory_limit or hold fewer layers",
            )
        wanted = [left]
        if kv_bytes is not None:
            wanted.append(max(kv_bytes, _LEAST_TOKENS * token_bytes))
        if max_requests is not None:
            pages = -(-min(context, shard.context) // _PAGE_TOKENS) + 1
            wanted.append((max_requests * pages + 1) * _PAGE_TOKENS * token_bytes)
        return min(wanted)

    second = SecondTier(offload_bytes, offload_folder, context, max_requests or 0)
    try:
        shard = await compute.load(
            in_thread,
            kv_bytes=room,
            model_dir=model.folder,
            second=second if offload_bytes else None,
            prefix_share=prefix_share,
        )
        tau_ms = await compute.measure()
    except (ModelError, UsageError):
        await compute.unload()
        raise
    kv_tokens = compute.kv_capacity_tokens
    if not compute.same_bits:
        log.warning(
            "rows differ in their last bits with the others that they are computed with",
            layers=str(layers),
            then="work is done all the same, within the tolerances",
        )
    log.info("loaded", layers=str(layers), kv_tokens=kv_tokens, tau_ms=round(tau_ms, 3))
    return LoadedShard(
        layers=layers,
        shard_root=model.shard_root(layers),
        hidden=shard.hidden,
        vocab=shard.vocab,
        context=compute.longest_request(min(shard.context, context)),
        eos_ids=model.eos_ids,
        kv_tokens=kv_tokens,
        tokenizer=cache(partial(tokenizer_of, model.folder)),
        root_of=model.shard_root,
    )


def tokenizer_of(folder: Path) -> Tokenizer:
    """A model's own tokenizer: slow to read and large, so only read where it is needed."""
    from core.engine.weights.tokenizer import Tokenizer

    return Tokenizer(folder)
