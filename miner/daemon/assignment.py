"""Which layers does this miner hold, by which matcher's word, and how do they change?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.models.names import numerics_of
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
    from core.models.having import ModelHere

ShardHook = Callable[["ModelShard"], None]
_PAGE_TOKENS = 16
_LEAST_TOKENS = 4 * _PAGE_TOKENS
FETCH_SAID_EVERY_S = 10.0
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
    #: Where the tensors are that are not here yet; None where all are.
    files: ModelHere | None = None
    #: Layers between two boundaries that a stage signs; 0: all of its layers.
    span_layers: int = 0
    #: What the weights of its largest layer take in memory.
    layer_bytes: int = 1

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


def open_model(
    name: str,
    model_id: str,
    spec: t.ModelSpec,
    folder: Path,
    files: ModelHere | None = None,
    span_layers: int = 0,
) -> LocalModel:
    """Check the files against the registry.

    Raises CheckFailed when they are another model, ModelError without them. A folder that holds the
    whole model is hashed the first time, which takes seconds; the result is kept beside it. Of one
    that is pulled, each tensor is hashed when it is loaded.
    """
    from core.engine.weights.shape import describe_model
    from core.engine.weights.tokenizer import Tokenizer
    from core.engine.weights.weights import weight_roots

    weights = weight_roots(folder)
    if weights.weights_root.lower() != spec.weights_root.lower():
        raise CheckFailed(
            f"the files of {name} are not the registered model",
            f"their weights root is {weights.weights_root}, the registry says {spec.weights_root}",
            next_step=f"move {folder} away, so that the registered files are fetched",
        )
    shape = describe_model(folder, numerics_of(spec))
    return LocalModel(
        name=name,
        model_id=model_id,
        spec=spec,
        folder=folder,
        roots=tuple(weights.parts),
        eos_ids=Tokenizer(folder).eos_ids,
        kv_bytes_per_token_layer=shape.kv_bytes_per_token,
        files=files,
        span_layers=span_layers,
        layer_bytes=shape.layer_bytes,
    )


class FetchLog:
    """Says every ten seconds how far the fetching of layers is."""

    def __init__(self, layers: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._layers, self._monotonic = layers, monotonic
        self._began_s = self._said_s = monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """So many bytes of all are here."""
        now = self._monotonic()
        self._first = done if self._first is None else self._first
        if now - self._said_s < FETCH_SAID_EVERY_S:
            return
        self._said_s = now
        rate = (done - self._first) / (now - self._began_s)
        left_s = round((total - done) / rate) if rate else None
        log.info(
            "fetching",
            layers=self._layers,
            mib=done // 2**20,
            of=total // 2**20,
            mib_per_s=round(rate / 2**20, 1),
            left_s=left_s,
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
    numerics: str = "float32",
    max_context: int | None = None,
    devices: Sequence[tuple[str, int]] = (("cpu", 0),),
    hook: ShardHook | None = None,
) -> LoadedShard:
    """Put a shard into memory and measure it; its tensors are fetched if they are not here.

    Keys and values get what the weights leave of `memory_bytes`, at most `kv_bytes`, and no more
    than `max_requests` of the longest requests can fill. Beside them up to `offload_bytes` lie in
    files in `offload_folder`, or in ordinary memory, which counts. `prefix_share` of the former may
    keep prompts for their owners' next ones. `devices` are names, and how many of the bytes are on
    each. Requests have the model's context or `max_context` tokens at most. `hook` gets the shard
    before it serves; the product passes none, tests and demonstrations do. Raises ModelError,
    UsageError for layers that the model lacks or that do not fit into `memory_bytes`, and what
    `ModelHere.fetch` does.
    """
    context = min(model.spec.context, max_context or model.spec.context)

    def in_thread() -> ModelShard:
        from core.engine.weights.load_shard import load_shard

        hashing.hash_in_c()
        shard = load_shard(
            model.folder, layers, numerics=numerics, devices=devices, self_check=True
        )
        if hook is not None:
            hook(shard)
        return shard

    def room(shard: ModelShard) -> int:
        token_bytes = model.kv_bytes_per_token_layer * len(layers)
        left = shard.room(memory_bytes)
        if offload_folder is None and devices[0][0] == "cpu":
            left -= offload_bytes
        # Beside the pages of kept prompts lie the rows that left with them, and those inside.
        row_bytes = shard.hidden * shard.dtype.itemsize * len(layers.spans(model.span_layers))
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

    if model.files is not None:
        fetched = await asyncio.to_thread(model.files.fetch, layers, FetchLog(str(layers)))
        if fetched:
            log.info("fetched", layers=str(layers), mib=fetched // 2**20)
    second = SecondTier(offload_bytes, offload_folder, context, max_requests or 0)
    try:
        shard = await compute.load(
            in_thread,
            kv_bytes=room,
            model_dir=model.folder,
            second=second if offload_bytes else None,
            prefix_share=prefix_share,
            span_layers=model.span_layers,
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
        span_layers=model.span_layers,
    )


def tokenizer_of(folder: Path) -> Tokenizer:
    """A model's own tokenizer: slow to read and large, so only read where it is needed."""
    from core.engine.weights.tokenizer import Tokenizer

    return Tokenizer(folder)
