"""Do copies, products and sums hold? Inputs, embeddings, linear layers and their partial sums, residuals, gates.

γ_n = n·u / (1 − n·u), u = 2^-50, η = 2^-1074. A dot product of more than 256 terms is a tree of partial sums: LINEAR or MIX over
each 256 terms, SUM over the parts, BIAS_SUM where the layer has a bias. Twin: contracts/src/referee/LinearCheck.sol.
"""

from __future__ import annotations

from core.dispute.referee.leaf import LeafError, split, to_constant, to_format, to_terms, words
from core.dispute.referee.real import ETA, Real, add, magnitude, mul, scaled, sub, within
from core.dispute.referee.sums import dot, exact_sum, holds_gamma

_U = -50

Params = tuple[int, ...]


def copy(params: Params, operands: bytes) -> bool:
    """y and x have the same bits. Operands: y, x."""
    words(params, 0)
    split(operands, 2)
    return operands[:8] == operands[8:]


def input_copy(params: Params, operands: bytes) -> bool:
    """y is the number in the signed row. Parameters: row format. Operands: y; row x."""
    (row,) = words(params, 1)
    found = split(operands, 1, row=(to_format(row), 1))
    return sub(found.trace[0], found.row[0]).m == 0


def embed(params: Params, operands: bytes) -> bool:
    """|y − c·w| ≤ u|y| + η. Parameters: weight format, c. Operands: y; weight w."""
    fmt, constant = words(params, 2)
    factor = to_constant(constant)
    found = split(operands, 1, (to_format(fmt), 1))
    return _is_product(found.trace[0], factor, found.model[0])


def linear(params: Params, operands: bytes) -> bool:
    """|y − Σ w·x| ≤ γ_n Σ|w·x|. Parameters: weight format, n. Operands: y, x[n]; weights w[n]."""
    fmt, n = words(params, 2)
    found = split(operands, 1 + to_terms(n), (to_format(fmt), n))
    return holds_gamma(found.trace[0], dot(found.model, found.trace[1:]), n)


def mix(params: Params, operands: bytes) -> bool:
    """|y − Σ p·v| ≤ γ_n Σ|p·v|: attention output. Parameters: n. Operands: y, p[n], v[n]."""
    (n,) = words(params, 1)
    trace = split(operands, 1 + 2 * to_terms(n)).trace
    return holds_gamma(trace[0], dot(trace[1 : n + 1], trace[n + 1 :]), n)


def squares(params: Params, operands: bytes) -> bool:
    """|y − Σ x²| ≤ γ_n Σ x². Parameters: n. Operands: y, x[n]."""
    (n,) = words(params, 1)
    trace = split(operands, 1 + to_terms(n)).trace
    return holds_gamma(trace[0], dot(trace[1:], trace[1:]), n)


def sum_of_parts(params: Params, operands: bytes) -> bool:
    """|y − Σ x| ≤ γ_n Σ|x|. Parameters: n. Operands: y, x[n]."""
    (n,) = words(params, 1)
    trace = split(operands, 1 + to_terms(n)).trace
    return holds_gamma(trace[0], exact_sum(trace[1:]), n)


def bias_sum(params: Params, operands: bytes) -> bool:
    """|y − Σ x − b| ≤ γ_{n+1} (Σ|x| + |b|). Parameters: weight format, n < 256. Operands: y, x[n]; bias b."""
    fmt, n = words(params, 2)
    if n == 0:
        raise LeafError("a bias added to nothing")
    to_terms(n + 1)
    found = split(operands, 1 + n, (to_format(fmt), 1))
    return holds_gamma(found.trace[0], exact_sum([*found.trace[1:], *found.model]), n + 1)


def product(params: Params, operands: bytes) -> bool:
    """|y − a·b| ≤ u|y| + η: gate product. Operands: y, a, b."""
    words(params, 0)
    y, a, b = split(operands, 3).trace
    return _is_product(y, a, b)


def scale(params: Params, operands: bytes) -> bool:
    """|y − c·x| ≤ u|y| + η. Parameters: c. Operands: y, x."""
    (constant,) = words(params, 1)
    factor = to_constant(constant)
    y, x = split(operands, 2).trace
    return _is_product(y, factor, x)


def addition(params: Params, operands: bytes) -> bool:
    """|y − (a + b)| ≤ u|y|: residual. Operands: y, a, b."""
    words(params, 0)
    y, a, b = split(operands, 3).trace
    return within(y, add(a, b), scaled(magnitude(y), _U))


def _is_product(y: Real, a: Real, b: Real) -> bool:
    return within(y, mul(a, b), add(scaled(magnitude(y), _U), ETA))
