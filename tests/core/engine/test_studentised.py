"""Coarser weights stand out of the noise that their own rows have.

A model that nobody calibrated accuses nobody.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.dispute.judging.numerics import (
    BF16,
    FP32,
    StudentVerdict,
    judge_rows,
    profile_of,
    standing_of,
    studentised,
)
from core.dispute.trace.families import (
    BF16_PLEA,
    BF16_TOLERANCES,
    FP32_PLEA,
    FP32_TOLERANCES,
    LEAST_DELTA_MICRO,
    SPAN_LAYERS,
)
from core.dispute.trace.program import Plea, Program

RNG = np.random.default_rng(0)


def heavy_tailed(rows: int) -> np.ndarray:
    """How sensitive rows are: some five times more than the median, for every kernel the same
    ones.
    """
    return 1e-2 * np.exp(RNG.normal(size=rows) * 0.6)


def program(tolerances: tuple = FP32_TOLERANCES, plea: Plea = FP32_PLEA) -> Program:
    return Program(
        64,
        64,
        32,
        128,
        272,
        512,
        4,
        2,
        16,
        128,
        LEAST_DELTA_MICRO,
        bytes(32),
        2,
        1,
        plea,
        tolerances,
        (),
        (),
        b"\0" * 4,
        span_layers=SPAN_LAYERS,
    )


def test_an_honest_kernel_is_clean_and_a_coarser_one_is_not() -> None:
    rows = heavy_tailed(96)
    noise = rows * np.exp(RNG.normal(size=96) * 0.2)
    honest = rows * np.exp(RNG.normal(size=96) * 0.2)
    assert standing_of(BF16, studentised(honest, noise)) == StudentVerdict.CLEAN
    assert standing_of(BF16, studentised(3.0 * honest, noise)) == StudentVerdict.SUSPICIOUS
    assert honest.max() > 3.0 * np.median(honest), "plain deviations would not tell"


def test_sixteen_rows_in_a_row_are_enough() -> None:
    rows = heavy_tailed(128)
    served = rows.copy()
    served[40:56] *= 2.5
    assert studentised(served, rows) == pytest.approx(2.5)
    assert studentised(rows, rows) == pytest.approx(1.0)
    assert studentised(served[40:44], rows[40:44]) == pytest.approx(2.5), (
        "fewer rows than sixteen: all of them"
    )


def test_rows_that_are_exact_only_here_are_infinitely_off() -> None:
    assert studentised(np.array([0.0, 1e-3]), np.array([0.0, 0.0])) == math.inf
    assert studentised(np.zeros(4), np.zeros(4)) == pytest.approx(1.0)
    assert studentised(np.array([np.inf, 1.0]), np.ones(2)) == math.inf
    with pytest.raises(ValueError, match="deviations"):
        studentised(np.ones(3), np.ones(2))


def test_a_programs_profile_is_what_its_tolerances_say() -> None:
    profile = profile_of(program())
    for depth in (1, 5, 6, 7, 30):
        assert profile.tolerance(depth) == FP32.tolerance(depth)
        assert profile.tolerance(depth, 20) == 2 * FP32.tolerance(depth), (
            "short windows have twice the room"
        )
    assert (profile.single_row, profile.single_row_depth) == (
        FP32.single_row,
        FP32.single_row_depth,
    )
    assert profile.token_margin == FP32.token_margin
    assert (profile.window_rows, profile.least_rows) == (64, 16)


def test_a_program_of_bfloat16_machines_has_their_published_table() -> None:
    profile = profile_of(program(BF16_TOLERANCES, BF16_PLEA))
    assert profile == BF16
    shadow = profile_of(program((), BF16_PLEA))
    assert shadow.is_shadow and shadow.suspicious_q == BF16.suspicious_q


def test_in_shadow_deviations_are_told_and_nobody_is_accused() -> None:
    shadow = profile_of(program(()))
    assert shadow.is_shadow and not profile_of(program()).is_shadow
    reference = RNG.normal(size=(80, 16))
    verdict = judge_rows(shadow, 3, reference * 1.5, reference)
    assert not verdict.at_fault
    assert verdict.ratio == pytest.approx(0.5)
    assert verdict.limit == math.inf
    broken = reference.copy()
    broken[3, 3] = np.nan
    assert judge_rows(shadow, 3, broken, reference).at_fault, (
        "what is no number is a fault everywhere"
    )
