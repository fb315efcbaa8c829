"""Are the rows that a stage keeps those that came, and their roots those of a tree over them,
however they came and went?
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol import commit
from miner.serving import committed_rows as module
from miner.serving.committed_rows import RootedRows

WIDTH = 3


def _run(first: int, count: int) -> bytes:
    return b"".join(i.to_bytes(WIDTH, "big") for i in range(first, first + count))


#: What a request does with its rows: more come, a root is signed, guesses are void, another order
#: goes on, rows are sent.
_moves = st.lists(
    st.tuples(
        st.sampled_from(["append", "root", "cut", "prefix", "data", "hash"]), st.integers(0, 9)
    ),
    max_size=30,
)


@given(_moves, st.integers(4, 60))
@settings(max_examples=300)
def test_rows_are_those_that_came_and_were_not_cut(
    moves: list[tuple[str, int]], most_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_WAITING_BYTES", most_bytes)
        rows, came, made = RootedRows(WIDTH), b"", 0
        for move, number in moves:
            count = len(came) // WIDTH
            at = max(0, count - number)
            match move:
                case "append":
                    rows.append(_run(made, number))
                    came += _run(made, number)
                    made += number
                case "root":
                    expected = commit.rows_root(came[: at * WIDTH], WIDTH)
                    assert rows.root(at) == expected
                case "cut":
                    rows.cut(at)
                    came = came[: at * WIDTH]
                case "prefix":
                    before, rows = rows, rows.prefix(at)
                    before.append(_run(0, 1))  # is not seen by the other
                    came = came[: at * WIDTH]
                case "data":
                    assert rows.data(at, count) == came[at * WIDTH :]
                    assert rows.data(0, at) == came[: at * WIDTH]
                    assert rows.data(at // 2, at + 1) == came[at // 2 * WIDTH : (at + 1) * WIDTH]
                case "hash":
                    rows.hash()
            assert len(rows) == len(came) // WIDTH
        assert rows.data(0, len(rows)) == came
        assert rows.root(len(rows)) == rows.root(99_999) == commit.rows_root(came, WIDTH)


def _noted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What trees are given."""
    taken: list[bytes] = []
    extend = commit.RowTree.extend

    def note(tree: commit.RowTree, rows: bytes, row_bytes: int) -> None:
        taken.append(rows)
        extend(tree, rows, row_bytes)

    monkeypatch.setattr(commit.RowTree, "extend", note)
    return taken


def test_many_rows_are_hashed_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the root of a long answer would keep its stage from reading messages."""
    taken, rows = _noted(monkeypatch), RootedRows(1000)
    for _ in range(200):
        rows.append(bytes(1000))
    assert taken == [bytes(66_000)] * 3


def test_guesses_that_are_void_before_a_root_is_asked_for_are_never_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, rows = _noted(monkeypatch), RootedRows(1)
    rows.append(b"abcd")
    rows.cut(1)
    rows.append(b"xy")
    assert rows.root(3) == commit.rows_root(b"axy", 1)
    assert taken[0] == b"axy"


def test_what_has_just_come_is_sent_on_without_a_copy() -> None:
    rows, row = RootedRows(1000), bytes(range(250)) * 4
    rows.append(bytes(70_000))
    rows.append(row)
    assert rows.data(70, 71) is row


def test_a_part_of_a_row_is_refused() -> None:
    rows = RootedRows(4)
    with pytest.raises(ValueError, match="not whole rows"):
        rows.append(bytes(6))
    assert len(rows) == 0
