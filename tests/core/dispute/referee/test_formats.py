"""Committed bytes mean what IEEE 754 says, exactly, in all four formats."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest

from core.dispute.referee.formats import Format, decode, decode_bits
from core.dispute.referee.real import Real


def _same(found: Real | None, value: float) -> bool:
    if not math.isfinite(value):
        return found is None
    return found is not None and Fraction(found.m) * Fraction(2) ** found.e == Fraction(value)


def test_every_fp16_pattern() -> None:
    values = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    assert all(_same(decode_bits(i, Format.FP16), float(v)) for i, v in enumerate(values))


def test_every_bf16_pattern_is_the_upper_half_of_an_fp32() -> None:
    with np.errstate(invalid="ignore"):  # the signalling NaN among them
        values = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    assert all(_same(decode_bits(i, Format.BF16), float(v)) for i, v in enumerate(values))


@pytest.mark.parametrize(("fmt", "code", "width"), [(Format.FP32, "<f", 4), (Format.F64, "<d", 8)])
def test_patterns_of_the_wide_formats(fmt: Format, code: str, width: int) -> None:
    rng = random.Random(5)
    for _ in range(5000):
        raw = rng.randbytes(width)
        if rng.random() < 0.2:  # subnormals and what is not finite are rare by chance
            raw = raw[:-2] + rng.choice((b"\x00\x00", b"\x00\x80", b"\xf0\x7f", b"\x80\x7f"))
        found = decode(raw, fmt)
        assert _same(found and found[0], struct.unpack(code, raw)[0])


def test_one_value_that_is_not_finite_spoils_a_run() -> None:
    good = struct.pack("<3d", 1.0, -0.0, 5e-324)
    assert decode(good, Format.F64) == [Real(2**52, -52), Real(0, -1074), Real(1, -1074)]
    assert decode(good + struct.pack("<d", math.nan), Format.F64) is None
