"""How does one pass of a shard serve many requests at once?

The rows of a step, decode rows and prompt chunks of different requests at different positions, are
packed into one row of T tokens without padding and run through the library's own layers; only
attention asks which request a row is of. Requests may run any part of the owned layers: the pass
is cut where a request enters or leaves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.engine.batch.graphs import Capture, DecodeGraphs, cuda_capture
from core.engine.batch.learned_layout import learn_layout
from core.engine.batch.pieces import ALL, NONE, RequestPiece, check_piece, relative_layers
from core.engine.batch.plan import PassPlan, PlannedRows
from core.engine.kernels.head import ended, final
from core.engine.kernels.plain_layers import plain_layers
from core.engine.memory.offload import SwapStore
from core.engine.memory.paged_kv import Held, PagedKv
from core.engine.memory.pages import Pages
from core.engine.memory.prefix import PrefixIndex
from core.engine.memory.sizing import Offload, make_memory
from core.engine.model.blocks import Draw, Final, ModelShard, without_states
from core.engine.model.gates import LayerGates
from core.engine.model.library_pass import run_library
from core.protocol.types import LayerRange


class BatchEngine:
    """A shard and the pages of all its requests; from one thread, without socket and clock."""

    def __init__(
        self,
        shard: ModelShard,
        *,
        kv_bytes: int,
        offload: Offload | None = None,
        prefix_share: float = 0.25,
        least_rows: int = 2,
        capture: Capture | None = None,
        span_layers: int = 0,
    ) -> None:
        """`kv_bytes` bounds the hot pages.

        Up to `prefix_share` of them keep prompts for later requests with the same, and rows that
        left with these take at most as many bytes more. A pass of fewer than `least_rows` is
        padded: some kernels sum a single row in another order (`Packed.least_rows` tells; 1
        promises no bits). Steps of single rows are captured by `capture`, by default as CUDA graphs
        where the shard lies on such a device. Every `span_layers` of a request's layers there is a
        boundary inside, whose rows are given too (0: there is none). Raises ModelUnsupported where
        the layers cannot share pages (see `core.engine.batch.compat`), UsageError where `kv_bytes`
        is too few.
        """
        self.shard = shard
        self._least_rows, self._span_layers = least_rows, span_layers
        self._plain = plain_layers(shard)
        self._gates = LayerGates(shard.decoder_layers)
        try:
            self.layout = learn_layout(shard, self._gates)
            allocators, self.store = make_memory(
                self.layout, kv_bytes, shard.dtype, shard.spread.devices, offload
            )
        except BaseException:
            self._gates.remove()
            raise
        self.kv = PagedKv(self.layout, allocators, self.store)
        per_block = self.layout.pages_for(1, 0, len(shard.layers))
        room = min(a.resident // n for a, n in zip(allocators, per_block, strict=True) if n)
        kept = int(room * prefix_share)
        self.prefixes = (
            PrefixIndex(self.kv, max_blocks=kept, max_row_bytes=int(kv_bytes * prefix_share))
            if kept
            else None
        )
        layers = len(shard.layers)
        # A graph is of one device.
        if capture is None and [d.type for d in shard.spread.devices] == ["cuda"]:
            capture = cuda_capture()
        #: None also where pages are swapped: they lie elsewhere at every turn.
        self.graphs = (
            None
            if capture is None or isinstance(self.store, SwapStore)
            else DecodeGraphs(shard, self._gates, self.kv, capture, self._inside(0, layers))
        )

    def close(self) -> None:
        """Give the shard back as it was, and stop the copier."""
        self._gates.remove()
        if isinstance(self.store, SwapStore):
            self.store.close()

    # --- requests ---

    def open(
        self, request: Hashable, layers: LayerRange | None = None, *, microbatch: int = 0
    ) -> None:
        """Begin a request that runs `layers` of the model, all owned ones when None."""
        start, end = relative_layers(self.shard, layers)
        self.kv.open(request, start, end, microbatch)

    @property
    def shares_prefixes(self) -> bool:
        """Whether chunks of prompts are kept at all."""
        return self.prefixes is not None

    def adopt(self, request: Hashable, links: Sequence[bytes], tokens: int) -> Tensor | None:
        """What a step over a request's next chunk would give, where the same has been run and kept;
        None where not. The request then has `tokens` positions. `links` are those of its chunks
        since its beginning, this one included. What would be inside stands before what leaves, and
        in its place where nothing leaves: [n, (boundaries + 1)·D].
        """
        if self.prefixes is None:
            return None
        return self.prefixes.adopt(self.kv.requests[request], links, tokens)

    def length(self, request: Hashable) -> int:
        """Positions that a request holds here. Raises KeyError for an unknown one."""
        return self.kv.requests[request].length

    def truncate(self, request: Hashable, tokens: int) -> None:
        """Forget positions from `tokens` on. UsageError where a window let go what is needed."""
        self.kv.truncate(self.kv.requests[request], tokens)

    def free(self, request: Hashable) -> int:
        """Forget a request; returns the pages it held, 0 for an unknown one."""
        return self.kv.free(request)

    @property
    def pages(self) -> list[int]:
        """Pages of each pool that requests can hold, over all microbatches."""
        return [a.free_pages + a.used_pages for a in self.kv.allocators]

    @property
    def groups(self) -> int:
        """Microbatches that requests are divided into; pages of one are of no use to another."""
        return self.store.microbatches if isinstance(self.store, SwapStore) else 1

    @property
    def pages_of_group(self) -> list[int]:
        """Pages of each pool that the requests of one microbatch can hold together."""
        if isinstance(self.store, SwapStore):
            return [plan.pages_of_microbatch for plan in self.store.plans]
        return self.pages

    @property
    def swapped(self) -> tuple[int, float]:
        """Bytes copied between the places so far, and seconds that steps have waited for them."""
        store = self.store
        return (store.copied_bytes, store.stalled_s) if isinstance(store, SwapStore) else (0, 0.0)

    @property
    def used_pages(self) -> list[int]:
        """Those that requests hold now; what is kept for others goes to whichever needs it."""
        # Not below 0: other threads look while pages change hands.
        return [max(0, a.used_pages - a.idle_pages) for a in self.kv.allocators]

    def held_bytes(self) -> dict[str, int]:
        """Bytes that requests hold on the device, and that may be swapped to the host or files.

        And those kept for prompts that begin the same: pages that no request holds, and rows.
        """
        held = {"device": 0, "host": 0, "files": 0, "kept": 0}
        item_bytes = self.shard.dtype.itemsize
        if self.prefixes is not None:
            held["kept"] = self.prefixes.row_bytes
        away = "files" if isinstance(self.store, SwapStore) and self.store.is_in_files else "host"
        for shape, allocator in zip(self.layout.shapes, self.kv.allocators, strict=True):
            page_bytes, resident = shape.page_bytes(item_bytes), allocator.used_resident_pages
            idle = min(allocator.idle_pages, resident)
            held["device"] += (resident - idle) * page_bytes
            held["kept"] += idle * page_bytes
            held[away] += (allocator.used_pages - resident) * page_bytes
        return held

    def pages_for(
        self, tokens: int, layers: LayerRange | None = None, chunk_tokens: int = 1
    ) -> list[int]:
        """Pages of each pool that a request may hold as it grows to `tokens` by `chunk_tokens`."""
        start, end = relative_layers(self.shard, layers)
        return self.layout.pages_for(tokens, start, end, chunk_tokens)

    def has_room(self, growth: Sequence[tuple[Hashable, int]]) -> bool:
        """Whether these (request, tokens) could all be reached now."""
        return self.kv.has_room([(self.kv.requests[r], tokens) for r, tokens in growth])

    # --- steps ---

    def check(self, piece: RequestPiece, *, values: bool = True) -> None:
        """Raises ValueError, ContextTooLong or UsageError for a piece that no step can take."""
        check_piece(self.shard, self.kv.requests.get(piece.request), piece, values=values)

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
        """Run one batch, each request at most once; one output per piece, in order.

        `checked` if `check` saw every piece. That is activations [n, D] where the request leaves
        before the model's end, else float32 logits: [n, V], [1, V] or [0, V] as the piece asks;
        with `states` a `Final`, the rows that they were made of beside them. With `draw` what it
        makes of them instead: it is given all logits in the order of the pieces, but never more of
        them at once than memory is at hand for. All of a batch's requests are of one microbatch;
        `following` names the one that is likely next, whose pages are fetched meanwhile. `inside`
        is lengthened by the rows [n, D] at each boundary inside, for each piece. Raises as
        `check`, or KvShort; no request has then moved, but positions that a piece repeats are
        forgotten.
        """
        if len({piece.request for piece in pieces}) < len(pieces):
            raise ValueError("a request steps once in a batch")
        if not checked:
            for piece in pieces:
                self.check(piece)
        held = [self.kv.requests[piece.request] for piece in pieces]
        if any(h.microbatch != microbatch for h in held):
            raise ValueError(f"a request of another microbatch in a step of {microbatch}")
        if not pieces:
            return []
        for h, piece in zip(held, pieces, strict=True):
            if piece.position < h.length:
                self.kv.truncate(h, piece.position)
        growth = [(h, p.position + len(p.x)) for h, p in zip(held, pieces, strict=True)]
        self.kv.grow(growth)
        if isinstance(self.store, SwapStore):
            self.store.turn(microbatch, self._swapped_pages, following)
        self.kv.prepare_pages()
        with torch.inference_mode():
            outs, inner = self._run(pieces, held, microbatch, draw)
        for (h, tokens), piece, out, parts in zip(growth, pieces, outs, inner, strict=True):
            if piece.links and self.prefixes is not None:
                # The caller computes logits: they are as wide as the vocabulary.
                left = [] if isinstance(out, Final) else [out]
                if parts or left:
                    kept = torch.cat([*parts, *left], -1) if parts else out
                else:
                    kept = out.rows[:0]
                self.prefixes.keep(h, piece.links, tokens, kept)
            self.kv.grown(h, tokens)
        if inside is not None:
            inside += inner
        return outs if states else without_states(outs)

    def _swapped_pages(self, microbatch: int) -> list[Pages]:
        found: list[list[Pages]] = [[] for _ in self.kv.allocators]
        for held in self.kv.requests.values():
            if held.microbatch == microbatch:
                for number, table in held.tables.items():
                    pages = table.held()
                    swapped = pages[pages >= self.kv.allocator(number).resident]
                    if len(swapped):
                        found[self.layout.classes[number].pool].append(swapped)
        return [np.concatenate(pages) if pages else np.zeros(0, np.int64) for pages in found]

    def _run(
        self,
        pieces: Sequence[RequestPiece],
        held: Sequence[Held],
        microbatch: int,
        draw: Draw | None,
    ) -> tuple[list[Tensor | Final], list[list[Tensor]]]:
        """What leaves of each piece, and what is at the boundaries inside."""
        rows: list[Any] = [piece.x for piece in pieces]
        inner: list[list[Tensor]] = [[] for _ in pieces]
        bounds = [self._inside(h.start, h.end) for h in held]
        cuts = sorted({h.start for h in held} | {h.end for h in held})
        for start, end in pairwise(cuts):
            inside = [i for i, h in enumerate(held) if h.start <= start and end <= h.end]
            if inside:
                taps = sorted({b for i in inside for b in bounds[i] if start < b < end})
                outs, tapped = self._segment(
                    start,
                    end,
                    [pieces[i] for i in inside],
                    [held[i] for i in inside],
                    [rows[i] for i in inside],
                    microbatch,
                    draw,
                    taps,
                )
                for number, (i, out) in enumerate(zip(inside, outs, strict=True)):
                    rows[i] = out
                    inner[i] += [part[number] for b, part in tapped.items() if b in bounds[i]]
                    if end in bounds[i]:
                        inner[i].append(out)
        return rows, inner

    def _inside(self, start: int, end: int) -> range:
        """The boundaries inside layers [start, end) of the shard."""
        span = self._span_layers or end - start
        return range(start + span, end, span)

    def _segment(
        self,
        start: int,
        end: int,
        pieces: Sequence[RequestPiece],
        held: Sequence[Held],
        inputs: Sequence[Tensor],
        microbatch: int,
        draw: Draw | None,
        taps: Sequence[int],
    ) -> tuple[list[Any], dict[int, list[Tensor]]]:
        """Layers [start, end) for pieces that all run them; logits or draws at the model's end.

        And what entered each layer of `taps`.
        """
        shard, planned, first = self.shard, [], 0
        for piece, h in zip(pieces, held, strict=True):
            count = len(piece.x)
            alone = piece.as_decodes or count == 1
            planned.append(PlannedRows(h, first, count, piece.position, alone))
            first += count
        starts = np.repeat([r.position - r.first for r in planned], [r.count for r in planned])
        positions = torch.from_numpy(np.arange(first) + starts)
        # What comes from layers before these lies where they left it.
        x = torch.cat([one.to(shard.device) for one in inputs]) if len(inputs) > 1 else inputs[0]
        at_end = shard.is_last and end == len(self._gates.layers)
        wanted = _wanted(pieces, planned) if at_end else []
        made, tapped = self._rows(
            planned, x, positions, (start, end), microbatch, wanted or None, draw, taps
        )
        inner = {
            b: [part[r.first : r.first + r.count] for r in planned]
            for b, part in zip(taps, tapped, strict=True)
        }
        if not at_end:
            return [made[r.first : r.first + r.count] for r in planned], inner
        if not wanted:
            nothing = Final(torch.empty(0, shard.hidden), torch.empty(0, shard.vocab))
            return [nothing for _ in planned], inner
        counts = [_wanted_count(piece) for piece in pieces]
        ends = np.cumsum(counts)
        return [
            Final(made.rows[end - count : end], made.logits[end - count : end])
            for count, end in zip(counts, ends, strict=True)
        ], inner

    def _rows(
        self,
        planned: Sequence[PlannedRows],
        x: Tensor,
        positions: Tensor,
        layers: tuple[int, int],
        microbatch: int,
        wanted: list[int] | None,
        draw: Draw | None,
        taps: Sequence[int],
    ) -> tuple[Any, list[Tensor]]:
        """Rows x [T] or [T, D] after these layers: [T, D], or a `Final` of the `wanted` ones.

        And what entered each layer of `taps` [T, D].
        """
        shard, count, (start, end) = self.shard, len(positions), layers
        tapped: list[Tensor] = []
        from_ids = start == 0 and shard.is_first
        x = x.to(shard.device, None if from_ids else shard.dtype)
        if self.graphs is not None and all(r.as_decodes for r in planned):
            whole = (start, end) == (0, len(self._gates.layers))
            found = self.graphs.try_step(planned, x, positions) if whole else None
            if found is not None:
                own = len(found) - len(taps)
                left, tapped = found[:own], list(found[own:])
                made = left[0] if wanted is None else final(*(p[wanted] for p in left), draw)
                return made, tapped
        plan = PassPlan(self.kv, self._gates, planned, start, end, microbatch, shard.dtype)
        if self._plain is not None:
            rows = shard.model.get_input_embeddings()(x) if from_ids else x
            hidden = rows
            for first, last in pairwise((start, *taps, end)):
                hidden = self._plain.run(plan, hidden, positions, first, last)
                tapped.append(hidden)
            tapped.pop()
            return (
                hidden
                if wanted is None
                else ended(shard.model, hidden[wanted], draw, least_rows=self._least_rows)
            ), tapped
        spare = max(0, self._least_rows - count)
        if spare:
            x = torch.cat([x, *[x[-1:]] * spare])
            positions = torch.cat([positions, *[positions[-1:]] * spare])
        keep = None if wanted is None else wanted + wanted[-1:] * (self._least_rows - len(wanted))
        kept = None if keep is None else torch.tensor(keep, device=shard.spread.last)
        out = run_library(
            shard,
            self._gates,
            plan,
            x,
            positions.to(shard.device),
            (start, end),
            kept,
            taps,
            tapped,
        )
        tapped = [part[:count] for part in tapped]
        if wanted is None:
            return out[:count], tapped
        return final(out.rows[: len(wanted)], out.logits[: len(wanted)], draw), tapped


def _wanted_count(piece: RequestPiece) -> int:
    return {ALL: len(piece.x), NONE: 0}.get(piece.logits, 1)


def _wanted(pieces: Sequence[RequestPiece], planned: Sequence[PlannedRows]) -> list[int]:
    rows = []
    for piece, r in zip(pieces, planned, strict=True):
        end = r.first + r.count
        rows += range(end - _wanted_count(piece), end)
    return rows
