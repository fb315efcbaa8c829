"""Is each value the same to the bit in C as in numpy, for numbers of every size?"""

from __future__ import annotations

from collections.abc import Callable
from platform import machine
from typing import Any

import numpy as np
import pytest

from core.dispute.kernels import native
from core.dispute.play import in_c
from core.dispute.play.nearest import Nearest
from core.dispute.play.operators import Floats
from core.dispute.referee.leaf import MalformedOperand
from core.protocol.compiled import VARIABLE

Make = Callable[..., Floats]


#: As this processor is best served, and as one without its widest vectors is.
BUILDS = ((), ("-mno-avx512f",)) if machine() in ("x86_64", "AMD64") else ((),)


@pytest.fixture(scope="module", params=BUILDS)
def both(request: pytest.FixtureRequest) -> tuple[Nearest, Nearest]:
    library = native.arithmetic(*request.param)
    if library is None:
        pytest.skip("no C compiles here, or no instruction multiplies and adds at once")
    return Nearest(128), in_c.NearestInC(128, library)


RNG = np.random.default_rng(5)


def plain(*shape: int) -> Floats:
    return RNG.normal(size=shape)


def mixed(*shape: int) -> Floats:
    """Sixty binary orders apart, zeros of both signs among them."""
    found = RNG.normal(size=shape) * 2.0 ** RNG.integers(-50, 10, shape)
    return np.where(RNG.random(shape) < 0.1, np.where(found < 0, -0.0, 0.0), found)


def small_whole(*shape: int) -> Floats:
    """Small numbers of few bits, whose sums are exact and often lie in the middle of two."""
    return RNG.integers(-8, 9, shape) * 2.0 ** RNG.integers(-30, 25, shape)


def subnormal(*shape: int) -> Floats:
    return RNG.normal(size=shape) * 2.0**-1060


def tiny(*shape: int) -> Floats:
    """Products of two are about the smallest double."""
    return RNG.normal(size=shape) * 2.0 ** RNG.integers(-560, -420, shape)


def huge(*shape: int) -> Floats:
    """Products of two are beyond the largest double, or just within."""
    return RNG.normal(size=shape) * 2.0 ** RNG.integers(440, 520, shape)


def zero(*shape: int) -> Floats:
    return np.copysign(np.zeros(shape), RNG.normal(size=shape))


def faint(*shape: int) -> Floats:
    """Products of two, or one and a number of ordinary size, come near the smallest double."""
    sizes = RNG.choice([-960, -930, -800, -480, -30, 0], size=(*shape[:-1], 1))
    return RNG.normal(size=shape) * 2.0 ** (sizes + RNG.integers(-40, 1, shape))


EXTREMES = (faint, mixed, small_whole, subnormal, tiny, huge, zero)


def float32(x: Floats) -> Any:
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(x, -3e38, 3e38).astype(np.float32)


def rows_of(x: Floats) -> Floats:
    """Scores of a causal row: what comes later is −∞."""
    return np.where(np.tri(*x.shape, dtype=bool), x, -np.inf)


def exponents(x: Floats) -> tuple[Floats, Floats]:
    """Scores, and the largest of each row."""
    return x, x.max(axis=1, keepdims=True)


def wide(x: Floats) -> Floats:
    """What a model holds, in float64."""
    return float32(x).astype(np.float64)


#: Operands of each operator, made of [N, K] numbers of a kind.
OPERANDS: dict[str, Callable[[Make, int, int], tuple[Any, ...]]] = {
    "linear": lambda some, n, k: (some(n, k), float32(some(n + 3, k)), None),
    "biased": lambda some, n, k: (some(n, k), float32(some(n + 3, k)), float32(some(n + 3))),
    "score": lambda some, n, k: (some(n, k), some(n + 5, k), 0.125),
    "mix": lambda some, n, k: (np.abs(some(n, k)), some(n, k)),
    "squares": lambda some, n, k: (some(n, 2, k),),
    "total": lambda some, n, k: (some(n, 2, k),),
    "exp": lambda some, n, k: exponents(rows_of(4 * some(n, k))),
    "silu": lambda some, n, k: (3 * some(n, k),),
    "gelu_tanh": lambda some, n, k: (3 * some(n, k),),
    "softcap": lambda some, n, k: (rows_of(20 * some(n, k)), 30.0),
    "norm": lambda some, n, k: (some(n, k), some(n, 1), wide(some(k)), n % 2),
    "rotate": lambda some, n, k: (some(n, k), some(n, k), *wide(plain(2, k)), bool(n % 2)),
    "whiten_change": lambda some, n, k: (some(n, k), some(n, k), np.abs(wide(plain(k)))),
}


def outcome(do: Nearest, name: str, operands: tuple[Any, ...]) -> Any:
    """The values' bits, or what is wrong with an operand."""
    try:
        with np.errstate(all="ignore"):
            made = getattr(do, "linear" if name == "biased" else name)(*operands)
    except MalformedOperand as error:
        return str(error)
    return np.where(np.isnan(made), np.nan, made).view(np.int64)


def compared(both: tuple[Nearest, Nearest], name: str, some: Make, n: int, k: int) -> int:
    """How many values agree: all that there are."""
    with np.errstate(all="ignore"):
        operands = OPERANDS[name](some, n, k)
    in_numpy, ours = (outcome(do, name, operands) for do in both)
    assert np.array_equal(in_numpy, ours), f"{np.count_nonzero(in_numpy != ours)} differ"
    return np.size(ours)


#: Values of each operator: more than a million in all. Numpy takes long for the last ones.
SIZES = {"linear": (250, 300), "biased": (250, 300), "score": (300, 96), "mix": (300, 260)}
SUMS = {"squares": (6000, 200), "total": (6000, 200)}


@pytest.mark.parametrize("name", OPERANDS)
def test_a_million_values_are_the_same(both: tuple[Nearest, Nearest], name: str) -> None:
    n, k = SIZES.get(name) or SUMS.get(name) or (300, 400)
    count = compared(both, name, plain, n, k)
    assert count >= (12_000 if name in SUMS else 63_000)


@pytest.mark.parametrize("some", EXTREMES)
@pytest.mark.parametrize("name", OPERANDS)
def test_extreme_numbers_make_the_same(
    both: tuple[Nearest, Nearest], name: str, some: Make
) -> None:
    for n, k in ((1, 1), (3, 8), (5, 130), (9, 257) if name != "score" else (9, 200)):
        compared(both, name, some, n, k)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 64, 127, 128, 129, 255, 256])
def test_every_width_of_a_row_makes_the_same(both: tuple[Nearest, Nearest], width: int) -> None:
    for name in OPERANDS:
        for n in (1, 4, 6):
            compared(both, name, plain, n, width)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ties_and_what_lies_beside_them_make_the_same(
    both: tuple[Nearest, Nearest], sign: float
) -> None:
    """Half a unit, and a term ever further below it, until the referee's grid drops that."""
    ones = np.ones((1, 4), np.float32)
    x = np.array([[one, 2.0**-53, sign * 2.0**-k, 0] for k in range(54, 190) for one in (1, 1.5)])
    in_numpy, ours = both
    for made in (
        lambda do: do.linear(x, ones, None),
        lambda do: do.linear(x, ones, np.zeros(1, np.float32)),
        lambda do: do.score(x, ones.astype(np.float64), 0.125),
        lambda do: do.mix(x, ones.astype(np.float64)),
        lambda do: do.total(x),
        lambda do: do.total(np.repeat(x, 128, axis=1)),
    ):
        assert np.array_equal(made(in_numpy), made(ours))


def test_what_is_far_from_one_makes_the_same_and_is_seldom_left_open(
    both: tuple[Nearest, Nearest],
) -> None:
    """Crafted rows can have scores far apart: what is left open takes a thousand times as long."""
    in_numpy, ours = both
    far = np.concatenate([np.linspace(-800, 800, 501), [-1e5, 1e5, -1e200, 1e200]])[None]
    values = plain(64, 256)
    far_apart = np.repeat([-600.0, 0.0], 128) * np.linspace(0.5, 1.0, 16)[:, None]
    weights = np.abs(plain(16, 256)) * np.exp(far_apart)
    for made in (
        lambda do: do.exp(-np.abs(far), np.zeros((1, 1))),
        lambda do: do.exp(far, far.max(axis=1, keepdims=True)),
        lambda do: do.silu(far),
        lambda do: do.gelu_tanh(far / 9),
        lambda do: do.softcap(far[:, :-2], 1.5),
        lambda do: do.mix(weights, values),
    ):
        with np.errstate(all="ignore"):
            ours.asked = 0
            assert np.array_equal(made(in_numpy), made(ours))
            assert ours.asked < far.size / 12


def test_a_soft_cap_of_what_is_near_zero_is_itself(both: tuple[Nearest, Nearest]) -> None:
    """Faint rows make such scores, and each that is left open takes a thousand times as long."""
    in_numpy, ours = both
    for cap in (1.5, 50.0, 2.0**-3):
        sizes = cap * 2.0 ** RNG.integers(-66, -27, (1, 2000))
        x = np.copysign(sizes * RNG.choice([1.0, 1.0 + 2.0**-52, 2.0 - 2.0**-52], (1, 2000)), sizes)
        x = np.concatenate([x, -x, plain(1, 500) * sizes[:, :500], np.array([[-0.0, 5e-324]])], 1)
        ours.asked = 0
        assert np.array_equal(
            outcome(in_numpy, "softcap", (x, cap)), outcome(ours, "softcap", (x, cap))
        )
        assert ours.asked == 0


def test_ties_of_products_are_settled(both: tuple[Nearest, Nearest]) -> None:
    """Faint rows leave a norm's factor and a bias as they are, numbers of few bits."""
    in_numpy, ours = both
    x, y = (wide(plain(400, 50)) * 2.0**-100 for _ in range(2))
    r, gain, (c, s) = np.full((400, 1), 1000.0), wide(plain(50)), wide(plain(2, 50))
    for made in (
        lambda do: do.norm(x, r, gain, 0),
        lambda do: do.norm(x, r * (1 + 2.0**-26), gain * 0, 1),
        lambda do: do.rotate(x, y * 2.0**-7, c, s, True),
    ):
        in_numpy.asked = ours.asked = 0
        assert np.array_equal(made(in_numpy), made(ours))
        assert in_numpy.asked > 20 > ours.asked


def test_hardly_a_value_is_left_open(both: tuple[Nearest, Nearest]) -> None:
    _, ours = both
    library, x = native.arithmetic(), plain(256, 512)
    assert library is not None
    _, still_open = ours._dots(x, plain(256, 512), None, 128, 1.0)  # type: ignore[attr-defined]
    assert still_open <= 2
    found = np.empty((256, 4))
    open_sums = library.part_sums(x.ctypes.data, 512, found.ctypes.data, 256, 512, 128, 0)
    assert open_sums <= 2 and np.isfinite(found).sum() == found.size - open_sums


def test_without_a_compiler_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert native.arithmetic.__wrapped__() is None
    assert native.hashing.__wrapped__() is None
    monkeypatch.setattr(in_c, "arithmetic", lambda: None)
    assert type(in_c.nearest(128)) is Nearest


def test_with_a_compiler_c_computes() -> None:
    wanted = Nearest if native.arithmetic() is None else in_c.NearestInC
    assert type(in_c.nearest(128)) is wanted
