"""e^x, ln x and the noise are as exact as the referee's docstrings promise."""

from __future__ import annotations

import random
from decimal import Decimal, localcontext

import pytest

from core.dispute.referee.noise import gumbel_of
from core.dispute.referee.real import Real
from core.dispute.referee.transcend import POINT, UNIT, exp_fixed, ln_fixed, to_fixed

DIGITS = 80
SAMPLES = 1500


def _decimal(value: Real) -> Decimal:
    return Decimal(value.m) * Decimal(2) ** value.e


def test_exp_is_within_2_to_the_minus_104_of_itself() -> None:
    rng = random.Random(1)
    with localcontext() as context:
        context.prec = DIGITS
        for _ in range(SAMPLES):
            x = rng.choice((-1, 1)) * (rng.getrandbits(132) >> rng.randrange(132))
            exact = (Decimal(x) / UNIT).exp()
            assert abs(_decimal(exp_fixed(x)) / exact - 1) < Decimal(2) ** -104


def test_ln_is_within_2_to_the_minus_107() -> None:
    rng = random.Random(2)
    with localcontext() as context:
        context.prec = DIGITS
        for _ in range(SAMPLES):
            m = (rng.getrandbits(250) >> rng.randrange(250)) or 1
            e = rng.randint(-1200, 1100)
            exact = (Decimal(m) * Decimal(2) ** e).ln()
            assert abs(Decimal(ln_fixed(m, e)) / UNIT - exact) < Decimal(2) ** -107


def test_ln_near_one_is_within_2_to_the_minus_112() -> None:
    rng = random.Random(3)
    with localcontext() as context:
        context.prec = DIGITS
        for _ in range(SAMPLES):
            m = UNIT + rng.choice((-1, 1)) * rng.getrandbits(rng.randint(1, 117))
            exact = (Decimal(m) / UNIT).ln()
            assert abs(Decimal(ln_fixed(m, -POINT)) / UNIT - exact) < Decimal(2) ** -112


@pytest.mark.parametrize("words", [range(300), range(2**32 - 300, 2**32)], ids=["low", "high"])
def test_noise_at_the_ends_is_within_2_to_the_minus_78(words: range) -> None:
    with localcontext() as context:
        context.prec = DIGITS
        for word in words:
            exact = -(-((Decimal(word) + Decimal("0.5")) / 2**32).ln()).ln()
            assert abs(Decimal(gumbel_of(word)) / UNIT - exact) < Decimal(2) ** -78


def test_arguments_saturate_instead_of_growing() -> None:
    assert to_fixed(Real(1, 5000)) == UNIT << 12
    assert to_fixed(Real(-1, 5000)) == -(UNIT << 12)
    assert to_fixed(Real(-3, -1)) == -3 * UNIT // 2
    assert to_fixed(Real(0, 5000)) == to_fixed(Real(1, -5000)) == 0
