"""Which number do these committed bytes hold, exactly?

Values are little-endian, as rows and tensors are committed. A finite one is an integer times a
power of two: subnormals and both zeros included. Twin: contracts/src/referee/Decode.sol.
"""

from __future__ import annotations

from enum import IntEnum

from core.dispute.referee.real import Real


class Format(IntEnum):
    """IEEE-754 style number formats, by the code that parameters carry."""

    BF16 = 0
    FP16 = 1
    FP32 = 2
    F64 = 3

    @property
    def width_bytes(self) -> int:
        return (2, 2, 4, 8)[self]

    @property
    def fraction_bits(self) -> int:
        return (7, 10, 23, 52)[self]

    @property
    def exponent_bits(self) -> int:
        return (8, 5, 8, 11)[self]


#: Bytes of the float64 −∞, the score of a masked key.
MINUS_INFINITY = bytes.fromhex("000000000000f0ff")


def decode_bits(bits: int, fmt: Format) -> Real | None:
    """The number with this bit pattern, or None for an infinity or NaN."""
    width, exponent_bits = fmt.fraction_bits, fmt.exponent_bits
    limit = (1 << exponent_bits) - 1
    fraction, field = bits & ((1 << width) - 1), bits >> width & limit
    if field == limit:
        return None
    mantissa = fraction | (1 << width) if field else fraction
    negative = bits >> (8 * fmt.width_bytes - 1)
    # The exponent's bias, so that the mantissa counts units of its last bit.
    bias = (1 << (exponent_bits - 1)) - 1 + width
    return Real(-mantissa if negative else mantissa, (field or 1) - bias)


def decode(data: bytes, fmt: Format) -> list[Real] | None:
    """The numbers in these bytes, or None if one of them is not finite."""
    width = fmt.width_bytes
    values = []
    for start in range(0, len(data), width):
        value = decode_bits(int.from_bytes(data[start : start + width], "little"), fmt)
        if value is None:
            return None
        values.append(value)
    return values
