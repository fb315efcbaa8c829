"""How are a model folder's tensors read for a trace, and opened under the registered roots?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from core.dispute.trace.derive import Weights
from core.dispute.trace.evidence import RowOpening, WeightOpening
from core.dispute.trace.layout import EMBED_PART, TABLES_PART, TraceLayout
from core.dispute.trace.sources import open_part
from core.engine.model.naming import Parts
from core.engine.weights.shape import model_parts
from core.engine.weights.tensors import TensorFolder
from core.protocol import commit

Float32s = npt.NDArray[np.float32]
#: Tensors that stay in memory beside the one in use, in bytes.
_CACHE_BYTES = 512 * 2**20


@dataclass
class TraceModel:
    """A model's tensors by part (`derive.Weights.part`) and number, as float32 rows."""

    folder: TensorFolder
    parts: Parts
    tables: Mapping[str, Float32s]
    _cache: OrderedDict[tuple[int, int], Float32s] = field(default_factory=OrderedDict)
    _opened: dict[tuple[int, int], _Opened] = field(default_factory=dict)
    _roots: dict[int, list[bytes]] = field(default_factory=dict)

    @classmethod
    def open(cls, model_dir: Path, tables: Mapping[str, Float32s] | None = None) -> TraceModel:
        """Raises ModelMissing or ModelUnsupported."""
        folder = TensorFolder(model_dir)
        return cls(folder, model_parts(model_dir, folder), tables or {})

    @property
    def layers(self) -> int:
        return len(self.parts.layers)

    def names(self, part: int) -> list[str]:
        """A part's tensors in the order that programs count them in."""
        return sorted(self.tables if part == TABLES_PART else self._stored(part))

    def tensor(self, part: int, number: int) -> Float32s:
        """One tensor as [rows, columns]; a vector is one row."""
        key = (part, number)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        name = self.names(part)[number]
        if part == TABLES_PART:
            return self.tables[name]
        found = self.folder.read_float32(self._stored(part)[name])
        found = found.reshape(1, -1) if found.ndim < 2 else found.reshape(len(found), -1)
        self._cache[key] = found
        while len(self._cache) > 1 and sum(t.nbytes for t in self._cache.values()) > _CACHE_BYTES:
            self._cache.popitem(last=False)
        return found

    def sigma(self, layout: TraceLayout) -> npt.NDArray[np.float64]:
        """Sizes [D] of the channels of rows that leave the layout's layers."""
        row = self.tensor(TABLES_PART, layout.program.sigma)[layout.layer_to]
        return np.asarray(row, np.float64)

    def weights(self, want: Weights) -> bytes:
        width = want.format.width_bytes
        row = self.tensor(want.part, want.tensor)[want.row]
        return _bytes(row)[want.column * width : (want.column + want.count) * width]

    def open_weights(self, want: Weights) -> WeightOpening:
        """The opening of these weights under their part's root. Hashes the part the first time."""
        names = self.names(want.part)
        roots = self._tensor_roots(want.part)
        leaves = [
            commit.leaf_hash(name.encode() + b"\x00" + root)
            for name, root in zip(names, roots, strict=True)
        ]
        rows = self._committed(want.part, want.tensor)
        return WeightOpening(
            rows.open(
                self.tensor(want.part, want.tensor),
                want.row,
                want.column * want.format.width_bytes,
            ),
            names[want.tensor].encode(),
            roots[want.tensor],
            tuple(commit.merkle_proof(leaves, want.tensor)),
        )

    @cached_property
    def tables_root(self) -> bytes:
        """Root of the rotary tables and σ, as programs name it."""
        names, roots = self.names(TABLES_PART), self._tensor_roots(TABLES_PART)
        return commit.merkle_root(
            name.encode() + b"\x00" + root for name, root in zip(names, roots, strict=True)
        )

    def _stored(self, part: int) -> Mapping[str, str]:
        if part == EMBED_PART:
            return self.parts.embed
        return self.parts.layers[part] if part < self.layers else self.parts.head

    def _tensor_roots(self, part: int) -> list[bytes]:
        if part not in self._roots:
            count = len(self.names(part))
            self._roots[part] = [self._committed(part, i).root for i in range(count)]
        return self._roots[part]

    def _committed(self, part: int, number: int) -> _Opened:
        key = (part, number)
        if key not in self._opened:
            self._opened[key] = _Opened(self.tensor(part, number))
        return self._opened[key]


class _Opened:
    """The tree over a tensor's rows; the rows themselves are handed in again to be opened."""

    def __init__(self, matrix: Float32s) -> None:
        self._hashes = [commit.row_hash(i, _bytes(row)) for i, row in enumerate(matrix)]
        self.root = commit.root_of_hashes(self._hashes)

    def open(self, matrix: Float32s, row: int, start: int) -> RowOpening:
        """The part of a row that holds byte `start`."""
        return open_part(self._hashes, row, _bytes(matrix[row]), start)


def _bytes(row: Any) -> bytes:
    return np.ascontiguousarray(row, dtype="<f4").tobytes()
