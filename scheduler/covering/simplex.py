"""What is the best fractional mix of columns within a supply, and each machine's worth?

max Σ u_p x_p, Σ_p m_{tp} x_p ≤ n_t, x ≥ 0 by the revised simplex: few rows, any number of columns.
No solver needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.fleet.arrays import Floats, Ints

EPSILON = 1e-9
#: Pivots without progress after which the lowest index enters instead of the best (Bland), which
#: never cycles.
STALLED = 20


@dataclass(frozen=True)
class Mix:
    """``basis`` lists columns, or -1 - t for the slack of row t; ``prices`` are not negative."""

    value: float
    prices: Floats
    basis: Ints
    amounts: Floats


def maximise(
    counts: Floats, worth: Floats, supply: Floats, basis: Ints | None = None, pivots: int = 400
) -> Mix:
    """The relaxation over `counts` [row, column], started warm by an earlier `basis` if given.

    Should the pivots run out, the mix is feasible and the prices are those of the last basis.
    """
    rows = len(supply)
    if basis is None:
        basis = -1 - np.arange(rows)
    basis = basis.copy()
    scale = max(1.0, float(worth.max(initial=0.0)))
    stalled = 0
    matrix, gain = _of_basis(counts, worth, basis)
    inverse = np.linalg.inv(matrix)
    for _ in range(pivots):
        amounts, prices = inverse @ supply, gain @ inverse
        reduced = worth - prices @ counts if worth.size else np.zeros(0)
        slack = -prices
        if stalled > STALLED:
            entering = _lowest(reduced, slack, EPSILON * scale)
        else:
            entering = _best(reduced, slack, EPSILON * scale)
        if entering is None:
            break
        column = inverse @ _column(counts, entering)
        growing = np.flatnonzero(column > EPSILON)
        if (
            not growing.size
        ):  # only a column without machines: nothing limits it, nothing is planned with it
            break
        ratios = np.maximum(0.0, amounts[growing]) / column[growing]
        step = float(ratios.min())
        ties = growing[ratios <= step + EPSILON]
        leaving = int(ties[np.argmin(basis[ties])])
        stalled = 0 if step > EPSILON else stalled + 1
        basis[leaving] = entering
        matrix[:, leaving] = _column(counts, entering)
        gain[leaving] = worth[entering] if entering >= 0 else 0.0
        inverse = np.linalg.inv(matrix)
    amounts, prices = np.maximum(0.0, inverse @ supply), np.maximum(0.0, gain @ inverse)
    return Mix(float(gain @ amounts), prices, basis, amounts)


def _of_basis(counts: Floats, worth: Floats, basis: Ints) -> tuple[Floats, Floats]:
    matrix = np.column_stack([_column(counts, int(j)) for j in basis])
    return matrix, np.array([worth[j] if j >= 0 else 0.0 for j in basis])


def _column(counts: Floats, j: int) -> Floats:
    if j >= 0:
        return counts[:, j]
    unit = np.zeros(len(counts))
    unit[-1 - j] = 1.0
    return unit


def _best(reduced: Floats, slack: Floats, above: float) -> int | None:
    column = int(np.argmax(reduced)) if reduced.size else -1
    row = int(np.argmax(slack))
    if column >= 0 and reduced[column] >= slack[row]:
        return column if reduced[column] > above else None
    return -1 - row if slack[row] > above else None


def _lowest(reduced: Floats, slack: Floats, above: float) -> int | None:
    rows = np.flatnonzero(slack > above)
    if rows.size:
        return int(-1 - rows[-1])
    columns = np.flatnonzero(reduced > above)
    return int(columns[0]) if columns.size else None
