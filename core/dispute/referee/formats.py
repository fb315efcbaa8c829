"""Which number do these committed bytes hold, exactly?

Values are little-endian, as rows and tensors are committed. A finite one is an integer times a power of two: subnormals and
both zeros included. Twin: contracts/src/referee/Decode.sol.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from core.dispute.referee.real import Real


class Format(IntEnum):
    """Number formats by the code that parameters carry."""

    BF16 = 0
    FP16 = 1
    FP32 = 2
    F64 = 3


@dataclass(frozen=True)
class Layout:
    """Widths of an IEEE-754 style binary format."""

    width_bytes: int
    fraction_bits: int
    exponent_bits: int

    @property
    def offset(self) -> int:
        """What to take from the exponent field so that the mantissa counts units of its last bit."""
        return (1 << (self.exponent_bits - 1)) - 1 + self.fraction_bits


LAYOUTS = {
    Format.BF16: Layout(2, 7, 8),
    Format.FP16: Layout(2, 10, 5),
    Format.FP32: Layout(4, 23, 8),
    Format.F64: Layout(8, 52, 11),
}

#: Bytes of the float64 −∞, the score of a masked key.
MINUS_INFINITY = bytes.fromhex("000000000000f0ff")


def decode_bits(bits: int, fmt: Format) -> Real | None:
    """The number with this bit pattern, or None for an infinity or NaN."""
    layout = LAYOUTS[fmt]
    fraction = bits & ((1 << layout.fraction_bits) - 1)
    limit = (1 << layout.exponent_bits) - 1
    field = bits >> layout.fraction_bits & limit
    if field == limit:
        return None
    mantissa = fraction | (1 << layout.fraction_bits) if field else fraction
    negative = bits >> (8 * layout.width_bytes - 1)
    return Real(-mantissa if negative else mantissa, (field or 1) - layout.offset)


def decode(data: bytes, fmt: Format) -> list[Real] | None:
    """The numbers in these bytes, or None if one of them is not finite."""
    width = LAYOUTS[fmt].width_bytes
    values = []
    for start in range(0, len(data), width):
        value = decode_bits(int.from_bytes(data[start : start + width], "little"), fmt)
        if value is None:
            return None
        values.append(value)
    return values
