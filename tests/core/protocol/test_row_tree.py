"""Is the tree over rows the same however rows come, whoever hashes them?"""

from __future__ import annotations

import random

import pytest

from core.protocol import commit, hashing

#: Around the sizes at which a message needs another block, and a row another part.
WIDTHS = [1, 4, 50, 51, 58, 59, 60, 114, 115, 1019, 1023, 1024, 1025, 2047, 2048, 2304, 2560, 5000]


@pytest.fixture(scope="module")
def compiled() -> object:
    """`rows.c` on this machine, None where it cannot be."""
    before, hashing.in_c = hashing.in_c, None
    try:
        return hashing.in_c if hashing.hash_in_c() else None
    finally:
        hashing.in_c = before


@pytest.fixture(params=["python", "c"])
def hasher(
    request: pytest.FixtureRequest, compiled: object, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Hashing in Python, and in C where this machine can."""
    if request.param == "c" and compiled is None:
        pytest.skip("no C for SHA-256 on this machine")
    monkeypatch.setattr(hashing, "in_c", compiled if request.param == "c" else None)
    return str(request.param)


def _expected(rows: list[bytes]) -> bytes:
    """By the definition, without a tree that grows."""
    leaves = [commit.row_hash(i, row) for i, row in enumerate(rows)]
    return commit.root_of_hashes(leaves)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_prefix_has_the_root_of_its_rows(hasher: str, width: int) -> None:
    made = random.Random(width)
    rows = [made.randbytes(width) for _ in range(21)]
    tree = commit.RowTree()
    tree.extend(b"".join(rows), width)
    for count in range(len(rows) + 1):
        assert tree.root(count) == tree.prefix(count).root() == _expected(rows[:count])


def test_how_rows_come_changes_nothing(hasher: str) -> None:
    """One by one, together, as a view, with roots in between, and going on from a prefix."""
    made = random.Random(1)
    rows = [made.randbytes(1300) for _ in range(300)]
    whole, mixed = commit.RowTree(), commit.RowTree()
    whole.extend(b"".join(rows), 1300)
    at = 0
    while at < len(rows):
        count = min(made.choice([1, 1, 2, 7, 60]), len(rows) - at)
        run = b"".join(rows[at : at + count])
        mixed.extend(made.choice([run, memoryview(run), memoryview(bytearray(run))]), 1300)
        at += count
        if made.random() < 0.3:
            assert mixed.root() == whole.root(at)
            mixed = mixed.prefix(max(0, at - made.randrange(4)))
            at = len(mixed)
    assert len(mixed) == len(whole) == 300
    assert mixed.root() == whole.root() == _expected(rows)


def test_a_prefix_is_a_tree_of_its_own(hasher: str) -> None:
    rows = [bytes([i]) * 9 for i in range(12)]
    tree = commit.RowTree()
    tree.extend(b"".join(rows), 9)
    cut = tree.prefix(5)
    cut.extend(b"other row", 9)
    assert cut.root() == _expected([*rows[:5], b"other row"])
    assert tree.root() == _expected(rows) and len(tree.prefix(99)) == 12


def test_rows_of_many_widths_keep_their_order(hasher: str) -> None:
    rows = [b"a", b"bc", b"de", b"x" * 3000, b"f"]
    tree = commit.RowTree()
    for row in rows:
        tree.extend(row, len(row))
    assert tree.root() == _expected(rows)


def test_rows_of_more_than_a_thousand_parts(hasher: str) -> None:
    row = random.Random(2).randbytes(2**20 + 1)
    tree = commit.RowTree()
    tree.extend(row + row, len(row))
    assert tree.root() == _expected([row, row])
