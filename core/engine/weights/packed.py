"""Which weights does a checkpoint hold packed, and which numbers do they stand for?

A packed weight is stored as several tensors: codes, scales and, in some formats, zero points and
the group of every input. What it stands for is (number of the code − zero point) × scale, rounded
once to float32. Roots, audits and disputes are about these numbers, so a format is only a way to
write them down (`docs/models.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from core.engine.weights.stored import PIECES, STORED, TensorHasher, as_float32
from core.protocol.errors import ModelUnsupported

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
_BLOCK_VALUES = 2**20


@dataclass(frozen=True)
class CodeKind:
    """What a code of `bits` stands for: an integer from 0 or, signed, from −2^(bits−1) on.

    With `mantissa` it is a float with a sign, an exponent and so many bits of a mantissa.
    """

    bits: int
    is_signed: bool = False
    mantissa: int | None = None

    @property
    def unit(self) -> float:
        """The smallest number above 0."""
        if self.mantissa is None:
            return 1.0
        bias = 2 ** (self.bits - 2 - self.mantissa) - 1
        return 2.0 ** (1 - bias - self.mantissa)

    @cached_property
    def numbers(self) -> Floats:
        """The number [2^bits] of every code."""
        codes = np.arange(2**self.bits)
        if self.mantissa is None:
            signed = codes - 2**self.bits * (self.is_signed & (codes >> (self.bits - 1)))
            return signed.astype(np.float32)
        sign = 1.0 - 2.0 * (codes >> (self.bits - 1))
        size = codes & (2 ** (self.bits - 1) - 1)
        power, digits = size >> self.mantissa, size & (2**self.mantissa - 1)
        is_normal = power > 0
        whole = (digits + (is_normal << self.mantissa)) << (power - is_normal)
        found = (sign * whole * self.unit).astype(np.float32)
        if self == E4M3:
            found[size == 2**7 - 1] = np.nan
        return found


E4M3 = CodeKind(8, mantissa=3)
E2M1 = CodeKind(4, mantissa=1)


@dataclass(frozen=True)
class CodedRows:
    """Rows of a packed matrix: codes uint8 [rows, inputs], scales and zero points [rows, groups].

    An input's group is its number // `group_inputs`, or what `group_of` [inputs] says.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats
    zeros: Floats | None
    group_inputs: int
    group_of: Array | None = None

    def values(self, kind: CodeKind) -> Floats:
        """The float32 values [rows, inputs]."""
        found = kind.numbers[self.codes]
        with np.errstate(over="ignore", invalid="ignore"):  # a publisher's numbers may be absurd
            if self.zeros is not None:
                found -= self._by_input(self.zeros)
            found *= self._by_input(self.scales)
        return found

    def _by_input(self, by_group: Floats) -> Floats:
        if by_group.shape[1] == 1:
            return by_group
        if self.group_of is not None:
            return np.take(by_group, self.group_of, axis=1)
        return np.repeat(by_group, self.group_inputs, axis=1)[:, : self.codes.shape[1]]


#: Rows [start, end) of a matrix from its pieces by role.
Reader = Callable[[Mapping[str, Array], int, int], CodedRows]


@dataclass(frozen=True)
class PackedWeight:
    """A weight that is stored as other tensors: `pieces` maps a role to a stored name.

    With `is_transposed` it is of experts, [experts, inputs, outputs], each packed by outputs.
    """

    name: str
    shape: tuple[int, ...]
    pieces: Mapping[str, str]
    kind: CodeKind
    read: Reader = field(repr=False)
    is_transposed: bool = False

    def blocks(self, pieces: Mapping[str, Array]) -> Iterable[Floats]:
        """The values in order, some indices of the first dimension at a time.

        Raises ModelUnsupported for groups that the weight does not have.
        """
        if self.is_transposed:
            outputs = self.shape[2]
            for expert in range(self.shape[0]):
                start = expert * outputs
                rows = self.read(pieces, start, start + outputs).values(self.kind)
                yield np.ascontiguousarray(rows.T)[None]
            return
        rows_at_once = max(1, _BLOCK_VALUES // math.prod(self.shape[1:]))
        for start in range(0, self.shape[0], rows_at_once):
            end = min(start + rows_at_once, self.shape[0])
            yield self.read(pieces, start, end).values(self.kind)


class Packing:
    """The packed weights of a checkpoint, by name; empty for one that is stored plainly."""

    def __init__(self, weights: Iterable[PackedWeight] = (), beside: Iterable[str] = ()) -> None:
        self.weights = {weight.name: weight for weight in weights}
        self._pieces = {p for weight in self.weights.values() for p in weight.pieces.values()}
        self._beside = frozenset(beside)

    def names(self, stored: Iterable[str]) -> list[str]:
        """Names of the model's tensors, where these are stored."""
        plain = [n for n in stored if n not in self._pieces and n not in self._beside]
        return [*plain, *self.weights]

    def stored(self, names: Iterable[str]) -> list[str]:
        """Names of what is stored of these tensors of the model."""
        found: dict[str, None] = {}
        for name in names:
            weight = self.weights.get(name)
            found |= dict.fromkeys(weight.pieces.values() if weight else [name])
        return list(found)


def piece_values(data: memoryview, dtype: str, shape: Sequence[int]) -> Array:
    """A stored piece as an array of `shape`: floats as float32, everything else as it is stored."""
    if dtype in STORED:
        return as_float32(data, dtype).reshape(shape)
    if dtype not in PIECES:
        raise ModelUnsupported("cannot read a packed weight", why=f"it is stored as {dtype}")
    return np.frombuffer(data, dtype=PIECES[dtype]).reshape(shape)


def read_pieces(weight: PackedWeight, read: Callable[[str], Array]) -> dict[str, Array]:
    """The pieces of a packed weight by role; `read` gives a stored one by its name."""
    return {role: read(stored) for role, stored in weight.pieces.items()}


def value_root(weight: PackedWeight, read: Callable[[str], Array]) -> bytes:
    """The root over the float32 rows that a packed weight stands for."""
    hasher = TensorHasher("F32", weight.shape)
    for block in weight.blocks(read_pieces(weight, read)):
        hasher.update(block.data.cast("B"))
    return hasher.root()
