"""How does a shard whose layers cannot share pages serve many requests?

One after the other, each with a cache of its own, through the library's own attention: slow, and
correct for whatever `load_shard` accepts. Same calls as `core.engine.batch.batch.BatchEngine`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import ALL, NONE, RequestPiece, check_piece, relative_layers
from core.engine.memory.kv import Cache
from core.engine.memory.paged_kv import KvShort
from core.engine.memory.pages import PAGE_TOKENS
from core.engine.memory.sizing import Offload
from core.engine.model.blocks import Draw, Final, ModelShard, without_states
from core.engine.model.gates import LayerGates
from core.protocol.errors import ModelUnsupported, UsageError
from core.protocol.types import LayerRange


def make_engine(
    shard: ModelShard,
    *,
    kv_bytes: int,
    offload: Offload | None = None,
    prefix_share: float = 0.25,
    least_rows: int = 2,
    span_layers: int = 0,
) -> BatchEngine | CompatEngine:
    """The batching engine where the shard's layers allow it, else `CompatEngine`, unswapped."""
    try:
        return BatchEngine(
            shard,
            kv_bytes=kv_bytes,
            offload=offload,
            prefix_share=prefix_share,
            least_rows=least_rows,
            span_layers=span_layers,
        )
    except ModelUnsupported:
        return CompatEngine(shard, kv_bytes=kv_bytes, span_layers=span_layers)


@dataclass
class _Request:
    start: int
    end: int
    cache: Cache
    microbatch: int = 0

    @property
    def length(self) -> int:
        return self.cache.length


class CompatEngine:
    """A shard and one library cache per request. Called from one thread."""

    graphs = None  # every operator is launched
    groups = 1
    shares_prefixes = False  # a request's cache is its own
    swapped = 0, 0.0

    def __init__(self, shard: ModelShard, *, kv_bytes: int, span_layers: int = 0) -> None:
        self.shard, self._span_layers = shard, span_layers
        self._gates = LayerGates(shard.decoder_layers)
        self._kv_bytes = kv_bytes
        self._requests: dict[Hashable, _Request] = {}
        self._bytes_per_token = self._measure()

    def close(self) -> None:
        self._gates.remove()

    def open(
        self, request: Hashable, layers: LayerRange | None = None, *, microbatch: int = 0
    ) -> None:
        """Begin a request."""
        if request in self._requests:
            raise UsageError(f"request {request} is already open")
        start, end = relative_layers(self.shard, layers)
        self._requests[request] = _Request(start, end, self.shard.new_cache(), microbatch)

    def adopt(self, request: Hashable, links: Sequence[bytes], tokens: int) -> Tensor | None:
        return None

    def length(self, request: Hashable) -> int:
        return self._requests[request].length

    def truncate(self, request: Hashable, tokens: int) -> None:
        self._requests[request].cache.truncate(tokens)

    def free(self, request: Hashable) -> int:
        """Forget a request; returns the pages of 16 tokens of one layer that it would hold."""
        found = self._requests.pop(request, None)
        return 0 if found is None else -(-found.length // PAGE_TOKENS) * (found.end - found.start)

    @property
    def pages(self) -> list[int]:
        """Pages of 16 tokens of one layer that fit, in one pool."""
        return [self._kv_bytes // (2 * self._bytes_per_token * PAGE_TOKENS)]

    @property
    def pages_of_group(self) -> list[int]:
        return self.pages

    @property
    def used_pages(self) -> list[int]:
        held = self._requests.values()
        return [sum(-(-r.length // PAGE_TOKENS) * (r.end - r.start) for r in held)]

    def held_bytes(self) -> dict[str, int]:
        """Memory that requests hold; all of it is on the device."""
        return {"device": sum(self.used_pages) * PAGE_TOKENS * self._bytes_per_token, "host": 0}

    def pages_for(
        self, tokens: int, layers: LayerRange | None = None, chunk_tokens: int = 1
    ) -> list[int]:
        """Pages that a request of `tokens` holds."""
        start, end = relative_layers(self.shard, layers)
        return [-(-tokens // PAGE_TOKENS) * (end - start)]

    def has_room(self, growth: Sequence[tuple[Hashable, int]]) -> bool:
        wanted = {request: found.length for request, found in self._requests.items()} | dict(growth)
        held = sum(
            tokens * (self._requests[r].end - self._requests[r].start)
            for r, tokens in wanted.items()
        )
        # A cache grows by doubling.
        return 2 * held * self._bytes_per_token <= self._kv_bytes

    def check(self, piece: RequestPiece, *, values: bool = True) -> None:
        check_piece(self.shard, self._requests.get(piece.request), piece, values=values)

    def step(
        self,
        pieces: Sequence[RequestPiece],
        *,
        microbatch: int = 0,
        following: int | None = None,
        checked: bool = False,
        states: bool = False,
        draw: Draw | None = None,
        inside: list[list[Tensor]] | None = None,
    ) -> list[Any]:
        """As `BatchEngine.step`, one request after the other. Raises KvShort."""
        if not checked:
            for piece in pieces:
                self.check(piece)
        if not self.has_room([(p.request, p.position + len(p.x)) for p in pieces]):
            raise KvShort("too little memory for the step")
        outs: list[Any] = []
        for piece in pieces:
            inner: list[Tensor] = []
            out = self._run(self._requests[piece.request], piece, inner)
            if inside is not None:
                inside.append(inner)
            if draw is not None and isinstance(out, Final):
                out = Final(out.rows, draw(out.logits) if len(out.logits) else [])
            outs.append(out)
        return outs if states else without_states(outs)

    def _run(self, request: _Request, piece: RequestPiece, inner: list[Tensor]) -> Tensor | Final:
        """What leaves; `inner` is lengthened by the rows at the boundaries inside."""
        cache = request.cache
        if piece.position < cache.length:
            cache.truncate(piece.position)
        count = len(piece.x)
        if piece.as_decodes and count > 1:
            parts: list[list[Tensor]] = [[] for _ in range(count)]
            outs = [
                self._run(
                    request,
                    RequestPiece(
                        piece.request,
                        piece.x[i : i + 1],
                        piece.position + i,
                        piece.logits if piece.logits != "last" or i == count - 1 else NONE,
                    ),
                    parts[i],
                )
                for i in range(count)
            ]
            inner += [torch.cat(rows) for rows in zip(*parts, strict=True)]
            return _joined(outs)
        out = self._pass(request, piece, inner)
        for number, layer in enumerate(cache.library.layers):
            if not request.start <= number < request.end:  # skipped: nothing kept, but as far along
                layer.length = piece.position + count
        return out

    def _pass(self, request: _Request, piece: RequestPiece, inner: list[Tensor]) -> Tensor | Final:
        shard, x = self.shard, piece.x
        count, keep = len(x), {ALL: len(x), NONE: 0}.get(piece.logits, 1)
        at_end = shard.is_last and request.end == len(self._gates.layers)
        received = None
        if request.start > 0 or not shard.is_first:
            received = x.to(shard.device, shard.dtype)[None]
            if shard.is_first:  # the model wants ids; what becomes of them is replaced
                x = torch.zeros(count, dtype=torch.int64)
        span = self._span_layers or request.end - request.start
        taps = range(request.start + span, request.end, span)
        with self._gates.only(request.start, request.end, received, taps):
            rows = torch.arange(count - max(keep, 1), count)
            logits = shard.forward_rows(x, request.cache, rows)
            out = self._gates.out[0]
            inner += [part[0] for part in self._gates.tapped]
            return Final(out[rows[:keep]], logits[:keep]) if at_end else out

    def _measure(self) -> int:
        """Bytes that one token keeps in one layer, at most."""
        cache = self.shard.new_cache()
        x = torch.zeros(64, dtype=torch.int64)
        if not self.shard.is_first:
            x = torch.zeros(64, self.shard.hidden)
        self.shard.forward_rows(x, cache, torch.zeros(1, dtype=torch.int64))
        return max(1, cache.bytes // (64 * len(self.shard.layers)))


def _joined(outs: Sequence[Any]) -> Tensor | Final:
    """The outputs of one request's rows as one."""
    if isinstance(outs[0], Final):
        return Final(*map(torch.cat, zip(*outs, strict=True)))
    return torch.cat(outs)
