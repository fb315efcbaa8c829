"""What is one leaf of a trace: which operator, under which parameters, over which committed bytes?

A leaf's operands are three runs of little-endian values: of the trace (float64, the result first), of the model's
tensors, and of a row that a machine signed. What is wrong with the bytes themselves is the fault of whoever committed
them: `Ruling` says who. Twin: contracts/src/interfaces/IReferee.sol.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from core.dispute.referee.formats import LAYOUTS, Format, decode
from core.dispute.referee.real import Real
from core.dispute.referee.sums import MAX_TERMS


class Kind(IntEnum):
    """Operator of a leaf. The numbers are part of the protocol; see `exact.py` for each one's value."""

    COPY = 0
    INPUT = 1
    EMBED = 2
    LINEAR = 3
    SUM = 4
    BIAS_SUM = 5
    SQUARES = 6
    NORM_SCALE = 7
    NORM = 8
    ROPE = 9
    SCORE = 10
    STABILISER = 11
    EXP = 12
    PROBABILITY = 13
    MIX = 14
    SILU = 15
    GELU_TANH = 16
    PRODUCT = 17
    ADD = 18
    SCALE = 19
    SOFTCAP = 20
    WHITEN_DIFFERENCE = 21
    WHITEN_REFERENCE = 22
    EXCEEDS = 23
    COUNT = 24
    MAXIMUM = 25
    GREEDY = 26
    GUMBEL = 27
    OUTSIDE_MIN_P = 28
    OUTSIDE_TOP_K = 29


class Ruling(IntEnum):
    """What a leaf proves, and about whom."""

    FAILS = 0  # the trace is wrong here, or holds a number that is not finite
    HOLDS = 1
    ROW_MALFORMED = 2  # a signed row holds an infinity or NaN: its signer's fault
    MODEL_MALFORMED = 3  # the registered model does: nobody's fault who served it


class LeafError(ValueError):
    """Parameters or lengths that no leaf of this kind has; the contract reverts on them."""


@dataclass(frozen=True)
class Leaf:
    """One element on trial."""

    kind: Kind
    params: tuple[int, ...]
    operands: bytes

    @property
    def params_bytes(self) -> bytes:
        """Parameters as the contract takes them: one 32-byte word each."""
        return b"".join(word.to_bytes(32, "big") for word in self.params)


@dataclass(frozen=True)
class Operands:
    """Decoded operands, all finite."""

    trace: list[Real]
    model: list[Real]
    row: list[Real]


class Malformed(Exception):
    """An operand is not a finite number. `check` answers with the ruling."""

    def __init__(self, ruling: Ruling) -> None:
        super().__init__(ruling.name)
        self.ruling = ruling


def words(params: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`params` if there are `count` of them."""
    if len(params) != count:
        raise LeafError(f"{len(params)} parameters instead of {count}")
    return params


def to_format(code: int) -> Format:
    if code > Format.F64:
        raise LeafError(f"no number format {code}")
    return Format(code)


def to_flag(word: int) -> bool:
    if word > 1:
        raise LeafError(f"a flag of {word}")
    return word == 1


def to_terms(n: int) -> int:
    if not 1 <= n <= MAX_TERMS:
        raise LeafError(f"{n} terms; a leaf has 1 to {MAX_TERMS}")
    return n


def to_constant(bits: int) -> Real:
    """A finite float64 given by its bits in a parameter."""
    found = decode(bits.to_bytes(8, "little"), Format.F64) if bits < 2**64 else None
    if found is None:
        raise LeafError(f"parameter {bits:#x} is no finite float64")
    return found[0]


Run = tuple[Format, int]


def split(data: bytes, trace: int, model: Run | None = None, row: Run | None = None) -> Operands:
    """Cut operands into their runs. Raises LeafError for another length, Malformed for a value that is not finite."""
    runs = [(Format.F64, trace), model or (Format.F64, 0), row or (Format.F64, 0)]
    sizes = [LAYOUTS[fmt].width_bytes * count for fmt, count in runs]
    if len(data) != sum(sizes):
        raise LeafError(f"{len(data)} bytes of operands instead of {sum(sizes)}")
    model_at, row_at = sizes[0], sizes[0] + sizes[1]
    found_row = decode(data[row_at:], runs[2][0])
    if found_row is None:
        raise Malformed(Ruling.ROW_MALFORMED)
    found_model = decode(data[model_at:row_at], runs[1][0])
    if found_model is None:
        raise Malformed(Ruling.MODEL_MALFORMED)
    found_trace = decode(data[:model_at], Format.F64)
    if found_trace is None:
        raise Malformed(Ruling.FAILS)
    return Operands(found_trace, found_model, found_row)
