"""Are the right bytes moved and no others, and is whatever no address tells left to the library?"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.memory import page_copies
from core.engine.memory.page_copies import move
from core.engine.native import native
from core.engine.native.native import NoKernels, kernels
from core.protocol.compiled import compile_c

try:
    kernels()
except NoKernels as error:
    pytest.skip(f"no C kernels: {error}", allow_module_level=True)

LEAST = page_copies._LEAST_BYTES
#: Options that only the processors have which know what they turn off.
WIDTHS = (
    {
        "native": [],
        "256 bits": ["-mno-avx512f"],
        "128 bits": ["-mno-avx"],
        "none": ["-U__SSE2__", "-U__AVX__", "-U__AVX512F__"],
    }
    if platform.machine() in ("x86_64", "AMD64")
    else {"native": []}
)


@pytest.fixture(scope="module", params=WIDTHS)
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """As this processor has it, and as ones with shorter vectors would."""
    source = Path(native.__file__).with_name("moves.c")
    file = compile_c([source], tmp_path_factory.mktemp("moves"), *WIDTHS[request.param])
    found = ctypes.CDLL(str(file)).stream
    found.argtypes, found.restype = kernels().stream.argtypes, None
    return found


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that went past the caches."""
    found: list[int] = []

    class _Told:
        def stream(self, to: int, from_: int, size_bytes: int) -> None:
            found.append(size_bytes)
            kernels().stream(to, from_, size_bytes)

    monkeypatch.setattr(page_copies, "kernels", _Told)
    return found


def _noise(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


@given(
    count=st.integers(0, 300) | st.integers(0, 40_000),
    to=st.integers(0, 200),
    from_=st.integers(0, 200),
    seed=st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_every_byte_arrives_and_none_beside_them(
    stream: Callable, count: int, to: int, from_: int, seed: int
) -> None:
    source, target = _noise(count + 400, seed), _noise(count + 400, seed + 100)
    expected = target.clone()
    expected[to : to + count] = source[from_ : from_ + count]
    before = source.clone()
    stream(target.data_ptr() + to, source.data_ptr() + from_, count)
    assert torch.equal(target, expected)
    assert torch.equal(source, before)


@given(
    rows=st.integers(1, 200),
    width=st.integers(1, 900),
    skipped=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.uint8]),
)
@settings(max_examples=100, deadline=None)
def test_rows_of_tables_move_like_the_librarys(
    rows: int, width: int, skipped: tuple[int, int], dtype: torch.dtype
) -> None:
    a, b = skipped
    source = torch.arange((rows + a) * width).view(-1, width).to(dtype)
    target = torch.zeros(rows + b + 1, width, dtype=dtype)
    expected = target.clone()
    expected[b : b + rows].copy_(source[a:])
    move(target[b : b + rows], source[a:])
    assert torch.equal(target, expected)


def test_only_what_lies_alike_goes_by_address(streamed: list[int]) -> None:
    n = LEAST // 4
    source = torch.randn(2 * n)
    move(torch.empty(n), source[:n])
    assert streamed == [LEAST]
    left = {
        "few": (torch.empty(n - 1), source[: n - 1]),
        "spread": (torch.empty(2, n), source[:n]),
        "another type": (torch.empty(n, dtype=torch.float64), source[:n]),
        "every second": (torch.empty(n), source[::2]),
        "every second there": (torch.empty(2 * n)[::2], source[:n]),
        "turned": (torch.empty(n, 2), source.view(2, n).t()),
    }
    for name, (target, some) in left.items():
        move(target, some)
        assert torch.equal(target, some.to(target.dtype).expand_as(target)), name
    itself = source.clone()
    move(itself, itself)
    assert torch.equal(itself, source)
    assert streamed == [LEAST], "the rest is the library's"


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ((LEAST,), (LEAST + 1,)),
        ((LEAST,), (2 * LEAST,)),
        ((0,), (LEAST,)),
        ((3, LEAST), (2, LEAST)),
    ],
)
def test_sizes_that_disagree_are_refused_as_the_library_refuses_them(
    streamed: list[int], target: tuple[int, ...], source: tuple[int, ...]
) -> None:
    to, from_ = torch.zeros(target), torch.ones(source)
    with pytest.raises(RuntimeError, match="must match"):
        move(to, from_)
    assert not streamed and not to.any()


def test_without_a_compiler_the_library_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoKernels("no compiler")

    monkeypatch.setattr(page_copies, "kernels", none)
    source, target = torch.randn(LEAST), torch.zeros(LEAST)
    move(target, source)
    assert torch.equal(target, source)


def test_a_file_in_memory_takes_what_is_moved(tmp_path: Path, streamed: list[int]) -> None:
    file = tmp_path / "far"
    file.write_bytes(bytes(8 * LEAST))
    far = torch.from_file(str(file), shared=True, size=2 * LEAST, dtype=torch.float32)
    source = torch.randn(LEAST)
    move(far[5 : 5 + LEAST], source)
    back = torch.empty(LEAST)
    move(back, far[5 : 5 + LEAST])
    assert torch.equal(back, source) and streamed == [4 * LEAST] * 2
    assert file.read_bytes()[20 : 20 + 4 * LEAST] == source.numpy().tobytes()


def test_another_thread_sees_all_of_it_once_it_is_told() -> None:
    """Streamed lines may arrive late; whoever waits for the event must not."""
    far, near = torch.zeros(2**18), torch.zeros(2**18)
    go, done = threading.Semaphore(0), threading.Semaphore(0)

    def copier() -> None:
        for _ in range(50):
            go.acquire()
            move(near, far)
            done.release()

    thread = threading.Thread(target=copier)
    thread.start()
    for number in range(50):
        far.fill_(number)
        go.release()
        done.acquire()
        assert bool((near == number).all())
    thread.join()
