"""How does an auditor run a whole request, all its rows at once?

Nothing is remembered, so nothing is paged: a row attends to those before it in the same pass.
Weights are laid out as miners lay them out, and plain layers go through the same C; in float64 too,
where judging is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.engine.batch.learned_layout import learn_layout
from core.engine.kernels.head import ended, final
from core.engine.kernels.plain_layers import plain_layers
from core.engine.kernels.prepack import prepack
from core.engine.memory.row_attention import is_plain
from core.engine.model.attention import chunk_rows
from core.engine.model.blocks import Draw, Final, ModelShard, aligned, output_of
from core.engine.model.gates import LayerGates
from core.engine.model.library_pass import run_library
from core.engine.native.native import NoKernels, kernels
from core.protocol.errors import ModelUnsupported


def prepare(shard: ModelShard, model_dir: Path | None = None) -> ModelShard:
    """The same shard, packed in place: `run_whole` is faster from now on, and `forward` has the
    packed products. Numbers change by as much as two kernels differ. It takes about as long as it
    saves on 500 rows. `model_dir` as in `prepack`.
    """
    if shard.device.type != "cpu":  # there the library's own kernels are the fast ones
        return shard
    prepack(shard, model_dir=model_dir)
    try:
        shard.whole = WholeRequests(shard)
    except (
        ModelUnsupported
    ):  # its layers attend in a way of their own, which `forward` leaves to them
        shard.whole = None
    return shard


def run_whole(
    shard: ModelShard,
    x: Tensor,
    rows: Tensor | None = None,
    *,
    states: bool = False,
    draw: Draw | None = None,
    served: Tensor | None = None,
) -> Tensor | Final:
    """A request from its first position, with nothing before it and nothing kept.

    `x` is ids [T] or activations [T, D], `rows` [n] says which rows are wanted, all where it is
    None. Returns activations [n, D], or of a last stage logits [n, V]. With `states` a last stage
    gives what its logits were made of beside them, and with `draw` what that makes of them, a few
    rows at a time where the shard is prepared. Logits are those of `served` [n, D] where it is
    given, rows that another machine says left the last layer. Raises as `ModelShard.forward` does.
    """
    if rows is None:
        rows = torch.arange(len(x))
    if shard.whole is None:
        with output_of(shard.decoder_layers[-1], rows, served) as left:
            found = shard.forward_rows(x, shard.new_cache(), rows)
        if not shard.is_last:
            return found[rows]
        last = left[0].reshape(len(x), -1).to(x.device)[rows]
        made = Final(last, found if draw is None else draw(found))
    else:
        shard.check(x, 0)
        entering = x if shard.is_first else aligned(x.to(shard.dtype))
        out = shard.whole.run(entering, rows, draw, served)
        if not isinstance(out, Final):
            return out
        made = out
    return made if states or draw is not None else made.logits


def head_logits(shard: ModelShard, states: Tensor) -> Tensor:
    """Logits [n, V] of rows [n, D] that left the model's last layer, by final norm and head alone.

    The layers of the shard run on zeros beside it, for the library has no other way in.
    """
    width = () if shard.is_first else (shard.hidden,)
    dtype = torch.int64 if shard.is_first else shard.dtype
    made = run_whole(shard, torch.zeros(len(states), *width, dtype=dtype), served=states)
    assert isinstance(made, Tensor), "no rows were asked for"
    return made


class WholeRequests:
    """What runs whole requests through a shard. One at a time, from one thread."""

    def __init__(self, shard: ModelShard) -> None:
        """Raises ModelUnsupported where our attention is not the layers' own."""
        self._shard = shard
        self._plain = plain_layers(shard)
        self._gates = LayerGates(shard.decoder_layers)
        try:
            with shard.precision():
                learn_layout(shard, self._gates)
        except BaseException:
            self._gates.remove()
            raise

    def run(
        self,
        x: Tensor,
        rows: Tensor,
        draw: Draw | None = None,
        served: Tensor | None = None,
    ) -> Tensor | Final:
        """ids [T] or [T, D] → [len(rows), D], at the end with logits or what `draw` makes."""
        shard, plan = self._shard, _Rows(len(x), self._shard.windows, self._gates)
        positions = torch.arange(len(x))
        model, layers = shard.model, len(shard.decoder_layers)
        with torch.inference_mode(), shard.precision():
            if self._plain is not None:
                entering = model.get_input_embeddings()(x) if shard.is_first else x
                hidden = self._plain.run(plan, entering, positions, 0, layers)[rows]
                if not shard.is_last:
                    return hidden
                judged = hidden if served is None else aligned(served.to(hidden))
                return Final(hidden, ended(model, judged, draw).logits)
            keep = rows if shard.is_last else None
            with output_of(shard.decoder_layers[-1], rows, served):
                found = run_library(shard, self._gates, plan, x, positions, (0, layers), keep)
            return final(*found, draw) if isinstance(found, Final) else found[rows]


class _Rows:
    """Answers the attention calls of a pass whose rows are one whole request."""

    def __init__(self, rows: int, windows: list[int], gates: LayerGates) -> None:
        self.rows = rows
        self._windows, self._gates = windows, gates

    def seen_alone(self, start: int, end: int) -> npt.NDArray[np.int64] | None:
        """None: these rows attend to each other."""
        return None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, e] → [1, T, H, e], for the layer now running."""
        return self.attend_at(self._gates.layer, query, key, value, options)

    def attend_at(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """The same for a layer by its number in the shard."""
        window = self._windows[layer]
        if is_plain(options):
            try:
                return attend_whole(query[0], key[0], value[0], window, float(options["scaling"]))[
                    None
                ]
            except NoKernels:
                pass
        return chunk_rows(query[0], key[0], value[0], 0, 0, window, options)[None]


def attend_whole(query: Tensor, key: Tensor, value: Tensor, window: int, scaling: float) -> Tensor:
    """[H, T, d] over [K, T, d] and [K, T, e] → [T, H, e]: row i sees rows up to i, the last
    `window` of them where it is not 0. Raises NoKernels for other numbers than float32 and float64,
    and where there is no compiler.
    """
    if query.dtype not in (torch.float32, torch.float64) or query.device.type != "cpu":
        raise NoKernels(f"no attention of {query.dtype} on {query.device.type}")
    library = kernels(8 * query.dtype.itemsize)
    parts = [part if part.stride(2) == 1 else part.contiguous() for part in (query, key, value)]
    H, T, d = query.shape
    K, e = key.shape[0], value.shape[2]
    strides = np.array([part.stride(i) for part in parts for i in (1, 0)], np.int64)
    out = torch.empty(T, H, e, dtype=query.dtype)
    failed = library.attend_whole(
        *(part.data_ptr() for part in parts),
        strides.ctypes.data,
        out.data_ptr(),
        T,
        K,
        H // K,
        d,
        e,
        window,
        scaling,
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"no memory for the scores of {T} rows")
    return out
