"""How much of the requests' keys and values may lie outside hot memory without a step waiting for
them?

Measured when a shard is loaded, on an engine that is thrown away: what a step takes (T_S), and how
fast the second tier is (W).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from core.batching.chunks import CHUNK_TOKENS
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from core.engine.batch.batch import BatchEngine
    from core.engine.batch.compat import CompatEngine
    from core.engine.memory.sizing import Offload

_STEPS = 8
log = get_logger(__name__)


@dataclass(frozen=True)
class SecondTier:
    """A number of bytes in ordinary memory, or in files in `folder`.

    `longest_tokens` is how long a request may be, `most_requests` how many run at once; 0: the
    model's context, and any number.
    """

    bytes: int
    folder: Path | None = None
    longest_tokens: int = 0
    most_requests: int = 0


class _Make(Protocol):
    def __call__(self, *, kv_bytes: int) -> BatchEngine | CompatEngine: ...


def choose_offload(make: _Make, hot_bytes: int, second: SecondTier) -> Offload | None:
    """How to swap with `hot_bytes` of hot memory.

    None, and a word in the log, where it would gain nothing. `make` makes an engine on the shard.
    Raises UsageError where the folder cannot hold what is measured with.
    """
    from core.engine.batch.batch import BatchEngine
    from core.engine.memory.sizing import copy_bytes_per_s, fitting_offload

    engine = make(kv_bytes=hot_bytes)
    try:
        if not isinstance(engine, BatchEngine):
            log.warning("this shard's keys and values are not swapped", reason="it has no pages")
            return None
        stage_s = _step_s(engine)
        longest = _share_for(engine, second.longest_tokens or engine.shard.context)
        most = longest * second.most_requests
    finally:
        engine.close()
    bytes_per_s = copy_bytes_per_s(second.folder)
    offload = fitting_offload(
        hot_bytes,
        second.bytes,
        bytes_per_s=bytes_per_s,
        stage_s=stage_s,
        least_bytes=int(min(1.0, longest) * hot_bytes),
        most_bytes=int(most * hot_bytes) if most else None,
        folder=second.folder,
    )
    measured = {
        "copied_mb_per_s": round(bytes_per_s / 1e6),
        "step_ms": round(stage_s * 1e3, 2),
        "longest_request_share": round(longest, 3),
    }
    if offload is None:
        log.warning("keys and values are not swapped: it would gain nothing", **measured)
    else:
        log.info(
            "keys and values are swapped",
            groups=offload.microbatches,
            pool_mb=round(offload.global_share * hot_bytes / 1e6, 1),
            **measured,
        )
    return offload


def _step_s(engine: BatchEngine) -> float:
    """T_S: the median of a few steps of one row, the shortest that there are."""
    import torch

    from core.engine.batch.pieces import RequestPiece

    shard = engine.shard
    x = torch.zeros(1, dtype=torch.int64) if shard.is_first else torch.zeros(1, shard.hidden)
    engine.open("probe")
    taken = []
    for position in range(_STEPS + 1):
        started = time.perf_counter()
        engine.step([RequestPiece("probe", x, position)])
        taken.append(time.perf_counter() - started)
    return sorted(taken[1:])[_STEPS // 2]


def _share_for(engine: BatchEngine, tokens: int) -> float:
    """The most of hot memory that a request of `tokens` holds, as a share of the fullest pool."""
    wanted = engine.pages_for(tokens, chunk_tokens=CHUNK_TOKENS)
    # Two more, because pools are divided into whole pages.
    return max((n + 2) / have for n, have in zip(wanted, engine.pages, strict=True) if n)
