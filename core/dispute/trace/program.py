"""Which operators does a model consist of, in bytes that its id commits to? (`docs/trust.md` §1)

`keccak256` of the bytes is the model's numerics profile. Twin: contracts/src/trace/Program.sol.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any

from core.dispute.referee import Format, LeafKind

VERSION = 4
#: Operands that are what the last layer made in the first pass, and the section's input; no
#: operand, tensor or constant.
EXACT, INPUT, NONE = 253, 254, 255
#: Sections before those of the layer types.
FROM_ROWS, FROM_TOKENS, LEAVE, HEAD, PLEADED, FIRST_LAYER_TYPE = range(6)

_HEADER = struct.Struct(">BBBBIIIIIIHHHHIBB32sQBB")
#: Fields of a program in the order of the header, behind version and formats.
_NUMBERS = [
    "hidden",
    "query",
    "keys",
    "inner",
    "vocab",
    "context",
    "heads",
    "key_heads",
    "head_dim",
    "part_terms",
    "delta_micro",
    "tables",
    "sigma",
]
_TOLERANCE = struct.Struct(">BHQ")


class Form(IntEnum):
    """Shape of what an operator makes: rows × segments × length."""

    HIDDEN = 0  # N × 1 × D
    QUERY = 1  # N × 1 × heads·d
    KEYS = 2  # N × 1 × key heads·d
    INNER = 3  # N × 1 × F
    SCALAR = 4  # 1 × 1 × N
    PER_HEAD = 5  # N × 1 × heads
    PER_KEY_HEAD = 6  # N × 1 × key heads
    SCORES = 7  # N × heads × N
    TURNED = 8  # 1 × key heads·d × N
    WINDOW = 9  # w × 1 × D
    WINDOW_SCALAR = 10  # 1 × 1 × w
    TOTAL = 11  # 1 × 1 × 1
    LOGITS = 12  # 1 × 1 × V
    VERDICT = 13  # nothing: a comparison of what was made


@dataclass(frozen=True)
class Op:
    """One operator.

    `a` and `b` count the operators of the section; `tensor` and `bias` count tensors in order of
    name.
    """

    kind: LeafKind
    form: Form
    a: int = NONE
    b: int = NONE
    tensor: int = NONE
    bias: int = NONE
    constant: int = NONE
    flag: int = 0

    def to_bytes(self) -> bytes:
        return bytes(astuple(self))


@dataclass(frozen=True)
class Section:
    """Operators in the order of computation.

    `tensors` is how many tensors the part of the model has that they use.
    """

    tensors: int
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Tolerance:
    """T in 10^-12, for at most `max_depth` layers and windows of at least `min_rows` rows."""

    max_depth: int
    min_rows: int
    parts_per_trillion: int


@dataclass(frozen=True)
class Plea:
    """How the noise of rows is measured, by a second pass in which every value is shaken.

    A deviation is held to K times the change that this makes. A value is shaken by its own sign
    times 2^-`own_bits` of itself, beside what it shares with its neighbours.
    """

    parts_per_trillion: int  # K in 10^-12
    own_bits: int  # 24 for sums and activations in float32, 9 for activations in bfloat16


@dataclass(frozen=True)
class Program:
    """Everything about a model that a leaf's operator, operands and parameters follow from."""

    hidden: int
    query: int
    keys: int
    inner: int
    vocab: int
    context: int  # rows of the rotary tables
    heads: int
    key_heads: int
    head_dim: int
    part_terms: int  # of a partial sum, where a reduction has more: 128 or 256
    delta_micro: int
    tables_root: bytes
    tables: int  # tensors under tables_root
    sigma: int  # which of them is σ: row b is the boundary before layer b
    plea: Plea
    tolerances: tuple[Tolerance, ...]
    constants: tuple[int, ...]  # bits of float64, or whole numbers
    sections: tuple[Section, ...]
    layer_types: bytes
    #: Layers between two boundaries that a stage signs; 0: all that it has.
    span_layers: int = 0
    row_format: Format = Format.FP32
    weight_format: Format = Format.FP32
    table_format: Format = Format.FP32

    def ends_at(self, layer_to: int) -> bool:
        """Whether a stage up to this layer is the last, which signs token ids and state rows."""
        return layer_to == len(self.layer_types)

    def to_bytes(self) -> bytes:
        """The bytes whose Keccak hash is the numerics profile."""
        formats = self.row_format, self.weight_format, self.table_format
        numbers = (getattr(self, name) for name in _NUMBERS)
        out = [
            _HEADER.pack(
                VERSION,
                *formats,
                *numbers,
                self.tables_root,
                *astuple(self.plea),
                self.span_layers,
            ),
            bytes((len(self.tolerances),)),
            *(
                _TOLERANCE.pack(t.max_depth, t.min_rows, t.parts_per_trillion)
                for t in self.tolerances
            ),
            bytes((len(self.constants),)),
            *(constant.to_bytes(8, "big") for constant in self.constants),
            bytes((len(self.sections),)),
        ]
        for section in self.sections:
            out.append(bytes((section.tensors, len(section.ops))))
            out += [op.to_bytes() for op in section.ops]
        out += [len(self.layer_types).to_bytes(2, "big"), self.layer_types]
        return b"".join(out)

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Raises ValueError unless `data` is exactly one program."""
        reader = _Reader(data)
        version, row, weight, table, *numbers = _HEADER.unpack(reader.take(_HEADER.size))
        *numbers, root, parts, own_bits, span_layers = numbers
        if version != VERSION:
            raise ValueError(f"operator program of version {version}")
        tolerances = tuple(
            Tolerance(*_TOLERANCE.unpack(reader.take(_TOLERANCE.size)))
            for _ in range(reader.byte())
        )
        constants = tuple(int.from_bytes(reader.take(8), "big") for _ in range(reader.byte()))
        sections = []
        for _ in range(reader.byte()):
            tensors, ops = reader.byte(), reader.byte()
            sections.append(Section(tensors, tuple(_op(reader.take(8)) for _ in range(ops))))
        layer_types = reader.take(int.from_bytes(reader.take(2), "big"))
        reader.end()
        known: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True))
        return cls(
            **known,
            tables_root=root,
            plea=Plea(parts, own_bits),
            tolerances=tolerances,
            constants=constants,
            sections=tuple(sections),
            layer_types=layer_types,
            span_layers=span_layers,
            row_format=Format(row),
            weight_format=Format(weight),
            table_format=Format(table),
        )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) != count:
            raise ValueError("an operator program cut short")
        self._at += count
        return found

    def byte(self) -> int:
        return self.take(1)[0]

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError("bytes after an operator program")


def _op(data: bytes) -> Op:
    kind, form, *rest = data
    return Op(LeafKind(kind), Form(form), *rest)
