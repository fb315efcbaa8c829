"""Does C of ours hash to the same bytes as Python, and is Python there where C cannot be?"""

from __future__ import annotations

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from core.protocol import commit, hashing
from core.protocol.compiled import VARIABLE, NoKernels


@pytest.fixture(scope="module")
def in_c() -> hashing.InC:
    try:
        return hashing.InC()
    except NoKernels as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [0, 1, 31, 32, 134, 135, 136, 137, 271, 272, 273, 1000])
def test_keccak_around_the_sizes_at_which_it_needs_another_block(
    in_c: hashing.InC, size: int
) -> None:
    data = bytes(i * 7 % 256 for i in range(size))
    assert in_c.keccak(data) == keccak(data)


@given(data=st.binary(max_size=600))
def test_keccak_of_any_bytes(in_c: hashing.InC, data: bytes) -> None:
    assert in_c.keccak(data) == keccak(data)


def test_keccak_of_nothing_is_ethereum_s_and_not_sha3_s() -> None:
    known = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert hashing.keccak(b"").hex() == known


@given(
    width=st.integers(1, 40) | st.integers(1000, 3100),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    is_view=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_trees_have_the_same_root_at_every_row(  # type: ignore[no-untyped-def]
    in_c: hashing.InC, width: int, counts: list[int], is_view: bool, random
) -> None:
    """In runs of any lengths, from fixed or changing memory: lanes are filled or left over."""
    trees = {}
    data = bytearray(random.randbytes(width * sum(counts)))
    for hasher in (None, in_c):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hashing, "in_c", hasher)
            tree, at = commit.RowTree(), 0
            for count in counts:
                run = memoryview(data)[at * width : (at + count) * width]
                tree.extend(run if is_view else bytes(run), width)
                at += count
            trees[hasher] = [tree.root(rows) for rows in range(at + 2)]
    assert trees[None] == trees[in_c]


def test_without_a_compiler_python_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "in_c", None)
    monkeypatch.setenv(VARIABLE, "")
    assert not hashing.hash_in_c()
    assert hashing.keccak(b"row") == keccak(b"row")


def test_it_is_compiled_once(in_c: hashing.InC, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "in_c", in_c)
    assert hashing.hash_in_c() and hashing.in_c is in_c
