"""Has a trace's tree the same nodes in C as in Python, whatever its segments' lengths?"""

from __future__ import annotations

import numpy as np
import pytest

from core.dispute.kernels import native
from core.dispute.play import tree
from core.dispute.trace import chunks


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 31, 200])
@pytest.mark.parametrize("count", [1, 2, 5, 33])
def test_chunks_have_the_same_hashes(
    monkeypatch: pytest.MonkeyPatch, length: int, count: int
) -> None:
    if native.hashing() is None:
        pytest.skip("no C compiles here, or no instruction hashes")
    lines = np.random.default_rng(length).normal(size=(count, length))
    monkeypatch.setattr(tree, "_CORE_CHUNKS", 64)
    ours = tree._leaves(lines)
    above = [tree._above(bytearray(ours), levels) for levels in range(6)]
    monkeypatch.setattr(tree, "hashing", lambda: None)
    assert tree._leaves(lines) == ours
    assert [tree._above(bytearray(ours), levels) for levels in range(6)] == above
    nodes = [bytes(ours[at : at + 32]) for at in range(0, len(ours), 32)]
    for found in above:
        assert found == b"".join(nodes)
        nodes = chunks.parents(nodes)
