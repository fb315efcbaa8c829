"""How does one thread serve many requests?

The thread owns the shard and every request's cache; nothing else touches them. Each running request has at most one
step waiting here, so first come, first served is round-robin over requests, and the queue is never longer than
the number of requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from core.protocol.errors import CheckFailed
from core.protocol.types import SamplingParams

if TYPE_CHECKING:
    from core.engine.blocks import Shard

T = TypeVar("T")
Key = tuple[str, int]
"""(order hash, request index)."""
_EWMA = 0.2
_PROBE_STEPS = 5


class Compute:
    """A shard behind one thread."""

    def __init__(
        self,
        *,
        threads: int = 1,
        on_step: Callable[[float, int], None] | None = None,
    ) -> None:
        """`on_step` hears (seconds, rows) of every step, in the compute thread."""
        self.tau_ms_per_layer = 0.0
        self._threads, self._on_step = threads, on_step
        self._shard: Shard | None = None
        self._caches: dict[Key, Any] = {}
        self._lengths: dict[Key, int] = {}
        self._pool = ThreadPoolExecutor(1, "compute", initializer=self._set_up)

    @property
    def kv_tokens(self) -> int:
        """Positions that running requests hold in memory."""
        return sum(self._lengths.values())

    async def load(self, loader: Callable[[], Shard]) -> Shard:
        """Replace the shard. The old one is freed first; no request may be running."""
        return await self._run(self._load, loader)

    async def unload(self) -> None:
        """Free the shard and every cache."""
        await self._run(self._unload)

    async def rows(self, key: Key, x: bytes | Sequence[int]) -> bytes:
        """Feed token ids (first stage) or float32 rows; returns this stage's float32 rows.

        Raises CheckFailed for rows that hold NaN or infinity, ContextTooLong past the model's context.
        """
        return await self._run(self._rows, key, x)

    async def token(
        self, key: Key, x: bytes | Sequence[int], params: SamplingParams, index: int, step: int
    ) -> int:
        """Feed a last stage and draw token `step` of the answer from the last position."""
        return await self._run(self._token, key, x, params, index, step)

    async def feed(self, key: Key, x: bytes | Sequence[int]) -> None:
        """Feed a last stage part of a prompt that no token follows yet."""
        await self._run(self._forward, key, x)

    async def drop(self, key: Key) -> None:
        """Forget a request."""
        await self._run(self._drop, key)

    async def measure(self) -> float:
        """τ: milliseconds per layer of one decode step, the median of a few."""
        self.tau_ms_per_layer = await self._run(self._probe)
        return self.tau_ms_per_layer

    async def benchmark(self) -> tuple[float, float]:
        """(teraflops of float32 products, gigabytes per second read), as this thread gets them."""
        return await self._run(self._benchmark)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    # --- in the thread ---

    def _set_up(self) -> None:
        import torch

        if self._threads:
            torch.set_num_threads(self._threads)

    def _load(self, loader: Callable[[], Shard]) -> Shard:
        self._unload()
        self._shard = loader()
        return self._shard

    def _unload(self) -> None:
        self._shard = None
        self._caches.clear()
        self._lengths.clear()

    def _drop(self, key: Key) -> None:
        self._caches.pop(key, None)
        self._lengths.pop(key, None)

    def _forward(self, key: Key, x: bytes | Sequence[int], *, last_only: bool = True) -> Any:
        import torch

        shard = self._shard
        assert shard is not None, "no shard is loaded"
        started = time.perf_counter()
        fed = _tensor_of(x, shard.hidden)
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = shard.new_cache()
        out = shard.forward(fed, cache, last_only=last_only)
        assert isinstance(out, torch.Tensor)
        self._lengths[key] = cache.length
        self._count(time.perf_counter() - started, len(fed), len(shard.layers))
        return out

    def _rows(self, key: Key, x: bytes | Sequence[int]) -> bytes:
        import torch

        out = self._forward(key, x)  # [T, D]
        rows: bytes = out.to(torch.float32).contiguous().numpy().tobytes()
        return rows

    def _token(
        self, key: Key, x: bytes | Sequence[int], params: SamplingParams, index: int, step: int
    ) -> int:
        from core.engine.sampling import sample

        logits = self._forward(key, x)[-1]  # [V]
        return sample(logits.numpy(), params, index, step)

    def _count(self, seconds: float, rows: int, layers: int) -> None:
        if rows == 1:
            tau = seconds * 1000 / layers
            old = self.tau_ms_per_layer
            self.tau_ms_per_layer = tau if not old else old + _EWMA * (tau - old)
        if self._on_step is not None:
            self._on_step(seconds, rows)

    def _probe(self) -> float:
        shard = self._shard
        assert shard is not None, "no shard is loaded"
        key: Key = ("probe", 0)
        times = []
        for step in range(_PROBE_STEPS):
            rows = 8 if step == 0 else 1
            x = [0] * rows if shard.is_first else bytes(rows * shard.hidden * 4)
            started = time.perf_counter()
            self._forward(key, x)
            if step:
                times.append((time.perf_counter() - started) * 1000 / len(shard.layers))
        self._drop(key)
        return sorted(times)[len(times) // 2]

    def _benchmark(self) -> tuple[float, float]:
        import torch

        square = torch.ones(512, 512)
        block = torch.ones(16 * 2**20)  # 64 MiB
        flops = _best_rate(lambda: torch.mm(square, square), 2 * 512**3)
        read = _best_rate(lambda: block.sum(), block.nbytes)
        return flops / 1e12, read / 1e9


def _tensor_of(x: bytes | Sequence[int], hidden: int) -> Any:
    import numpy as np
    import torch

    if not isinstance(x, bytes):
        return torch.tensor(list(x), dtype=torch.int64)
    rows = np.frombuffer(x, dtype="<f4").reshape(-1, hidden)
    if not np.isfinite(rows).all():
        raise CheckFailed("activations are refused", "they hold NaN or infinity")
    return torch.from_numpy(rows.copy())


def _best_rate(work: Callable[[], object], amount: float, rounds: int = 8) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return amount / best
