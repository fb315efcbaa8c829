"""Does our kernel multiply right, whatever the shape, the rows, the threads and the processor's
width?
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from core.engine.kernels.layouts import HalfPanels, Panels
from core.engine.native import native
from core.engine.native.native import NoKernels, compile_kernels, kernels, open_kernels

try:
    kernels()
except NoKernels as error:
    pytest.skip(f"no C kernels: {error}", allow_module_level=True)

#: What is compiled for a module's tests is compiled once.
pytestmark = pytest.mark.xdist_group("layouts")
#: (out, in): columns that fill no panel, a depth of several chunks, one number.
SHAPES = [(32, 64), (45, 31), (640, 2048), (1, 1), (7, 1000), (129, 257)]
ROWS = [1, 2, 5, 6, 7, 13, 47, 48, 49, 150]


@pytest.fixture(scope="module", params=["native", "narrow", "wide", "streamed"])
def width(request: pytest.FixtureRequest) -> str:
    """As this processor has it, as ones with shorter and longer vectors would, and with results
    written past the caches.
    """
    return str(request.param)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Any]:
    """The kernels for a width and so many bits of a number; None: this processor's own."""
    vectors = {
        "narrow": ["-DVECTOR_BYTES=16", "-DMOST_ROWS=8"],
        "wide": ["-DVECTOR_BYTES=64", "-DMOST_ROWS=12"],
        "streamed": ["-DLARGE=1"],
    }

    @cache
    def of(width: str, bits: int) -> Any:
        if width == "native":
            return None
        folder = tmp_path_factory.mktemp(width)
        return open_kernels(compile_kernels(folder, *vectors[width], f"-DREAL_BITS={bits}"), bits)

    return of


@pytest.fixture(scope="module", params=[32, 64])
def panels(
    request: pytest.FixtureRequest, width: str, compiled: Callable[[str, int], Any]
) -> Panels:
    """Of float32 and of float64."""
    bits = request.param
    dtype = {32: torch.float32, 64: torch.float64}[bits]
    return Panels(dtype, compiled(width, bits))


def _made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_that_of_the_plain_weight(panels: Panels, shape: tuple[int, int]) -> None:
    weight, bias = _made(*shape).to(panels.dtype), _made(shape[0], seed=1).to(panels.dtype)
    laid = panels.lay(weight)
    for rows in ROWS:
        x = _made(rows, shape[1], seed=rows).to(panels.dtype)
        expected = x.double() @ weight.double().t()
        unit = {torch.float32: 1e-5, torch.float64: 1e-14}[panels.dtype]
        close = unit * float(expected.abs().max()) + unit / 10
        got = panels.multiply(x, laid, None, shape[0])
        assert got.shape == expected.shape and (got - expected).abs().max() < close
        assert (panels.multiply(x, laid, bias, shape[0]) - expected - bias).abs().max() < close


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_beside_any_rows_and_on_any_processor(
    panels: Panels, shape: tuple[int, int]
) -> None:
    weight = _made(*shape).to(panels.dtype)
    x = _made(max(ROWS), shape[1], seed=3).to(panels.dtype)
    laid, native = panels.lay(weight), Panels(panels.dtype)
    whole = native.multiply(x, native.lay(weight), None, shape[0])
    for rows in ROWS:
        assert torch.equal(panels.multiply(x[:rows], laid, None, shape[0]), whole[:rows])
        last = panels.multiply(x[-rows:], laid, None, shape[0])
        assert torch.equal(last, whole[-rows:])


def test_threads_change_no_bit() -> None:
    panels, weight, x = Panels(), _made(1500, 300), _made(20, 300, seed=4)
    laid, before = panels.lay(weight), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = panels.multiply(x, laid, None, 1500)
        for threads in (2, 3):
            torch.set_num_threads(threads)
            for _ in range(20):
                assert torch.equal(panels.multiply(x, laid, None, 1500), alone)
    finally:
        torch.set_num_threads(before)


def test_rows_may_lie_anywhere() -> None:
    panels, weight = Panels(), _made(40, 24)
    laid, wide = panels.lay(weight), _made(6, 100, seed=5)
    expected = panels.multiply(wide[:, 3:27].contiguous(), laid, None, 40)
    assert torch.equal(panels.multiply(wide[:, 3:27], laid, None, 40), expected)
    turned = wide[:, 3:27].t().contiguous().t()
    assert torch.equal(panels.multiply(turned, laid, None, 40), expected)
    assert torch.equal(panels.multiply(wide[None, :, 3:27], laid, None, 40), expected[None])
    assert panels.multiply(wide[:0, :24], laid, None, 40).shape == (0, 40)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    panels, weight, x = Panels(), _made(40, 24), _made(7, 24)
    laid = panels.lay(weight)
    clean = panels.multiply(x, laid, None, 40)
    x[3, 5] = torch.nan
    got = panels.multiply(x, laid, None, 40)
    assert got[3].isnan().all()
    assert torch.equal(got[[0, 1, 2, 4, 5, 6]], clean[[0, 1, 2, 4, 5, 6]])


def test_other_numbers_and_widths_are_refused() -> None:
    panels = Panels()
    with pytest.raises(NoKernels, match="bfloat16"):
        panels.lay(_made(8, 8).bfloat16())
    with pytest.raises(NoKernels, match="bfloat16"):
        Panels(torch.bfloat16)
    laid = panels.lay(_made(8, 8))
    with pytest.raises(RuntimeError, match="of 9"):
        panels.multiply(_made(1, 9), laid, None, 8)
    with pytest.raises(RuntimeError, match="float64 of 8"):
        panels.multiply(_made(1, 8).double(), laid, None, 8)


def test_a_machine_without_a_compiler_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_CC", "")
    with pytest.raises(NoKernels, match="no compiler"):
        compile_kernels(tmp_path)
    monkeypatch.setenv("HEADRACE_CC", "false")
    with pytest.raises(NoKernels, match="refuses"):
        compile_kernels(tmp_path)
    monkeypatch.delenv("HEADRACE_CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoKernels, match="has no C compiler"):
        compile_kernels(tmp_path)


def test_kernels_that_cannot_be_had_are_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_CC", "")
    native._made_once.cache_clear()
    try:
        for _ in range(3):
            with pytest.raises(NoKernels, match="no compiler"):
                kernels()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    finally:
        native._made_once.cache_clear()


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_in_bfloat16_give_the_bits_of_the_same_in_float32(
    width: str, shape: tuple[int, int], compiled: Callable[[str, int], Any]
) -> None:
    half, whole = HalfPanels(compiled(width, 32)), Panels()
    weight, bias = _made(*shape).bfloat16(), _made(shape[0], seed=1)
    laid, wide = half.lay(weight), whole.lay(weight.float())
    assert laid.nbytes == half._width * -(-shape[0] // half._width) * shape[1] * 2
    for rows in ROWS:
        x = _made(rows, shape[1], seed=rows)
        got = half.multiply(x, laid, bias, shape[0])
        assert torch.equal(got, whole.multiply(x, wide, bias, shape[0]))
    with pytest.raises(NoKernels, match=r"not torch\.float32"):
        half.lay(weight.float())
