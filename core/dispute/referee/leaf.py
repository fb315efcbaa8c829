"""What is one leaf of a trace: which operator, under which parameters, over which committed bytes?

A leaf's operands are three runs of little-endian values: of the trace (float64, the result first),
of the model's tensors, and of a row that a machine signed. What is wrong with the bytes themselves
is the fault of the party that committed them: `Ruling` says which. Twin:
contracts/src/interfaces/IReferee.sol.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from core.dispute.referee.formats import Format, decode
from core.dispute.referee.real import Real
from core.dispute.referee.sums import MAX_TERMS


class LeafKind(IntEnum):
    """Operator of a leaf. The numbers are part of the protocol; `exact.py` has each one's value."""

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
    WHITEN_CHANGE = 23
    EXCEEDS = 24
    GREEDY = 25
    GUMBEL = 26
    OUTSIDE_MIN_P = 27


class Ruling(IntEnum):
    """What a leaf proves, and about whom."""

    FAILS = 0  # the trace is wrong here, or holds a number that is not finite
    HOLDS = 1
    ROW_MALFORMED = 2  # a signed row holds an infinity or NaN: its signer's fault
    MODEL_MALFORMED = 3  # the registered model does: no fault of its server


class LeafError(ValueError):
    """Parameters or lengths that no leaf of this kind has; the contract reverts on them."""


@dataclass(frozen=True)
class Leaf:
    """One element on trial.

    `shake` is in 2^-24 of the value: the result is the nearest float64, changed by as much and
    rounded again. Verdicts have none.
    """

    kind: LeafKind
    params: tuple[int, ...]
    operands: bytes
    shake: int = 0


@dataclass(frozen=True)
class Operands:
    """Decoded operands, all finite."""

    trace: list[Real]
    model: list[Real]
    row: list[Real]


class MalformedOperand(Exception):
    """An operand is not a finite number. `rule` answers with the ruling."""

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


#: Format and number of the values that a leaf reads of a tensor, or of a signed row.
Numbers = tuple[Format, int]
_NOTHING: Numbers = (Format.F64, 0)


def split(data: bytes, trace: int, model: Numbers = _NOTHING, row: Numbers = _NOTHING) -> Operands:
    """Cut operands into their three runs.

    Raises LeafError for another length, MalformedOperand for a value that is not finite.
    """
    model_at = 8 * trace
    row_at = model_at + model[0].width_bytes * model[1]
    end = row_at + row[0].width_bytes * row[1]
    if len(data) != end:
        raise LeafError(f"{len(data)} bytes of operands instead of {end}")
    return Operands(
        row=_finite(data[row_at:], row[0], Ruling.ROW_MALFORMED),
        model=_finite(data[model_at:row_at], model[0], Ruling.MODEL_MALFORMED),
        trace=_finite(data[:model_at], Format.F64, Ruling.FAILS),
    )


def _finite(data: bytes, fmt: Format, otherwise: Ruling) -> list[Real]:
    found = decode(data, fmt)
    if found is None:
        raise MalformedOperand(otherwise)
    return found
