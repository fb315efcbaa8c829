"""Can a hostile stage hand over rows that make the next one's trace take longer than its turn?

A value that C leaves open takes a thousand times as long, and an accused has one turn for millions
of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.dispute.kernels import native
from core.dispute.play import in_c, nearest
from core.dispute.play.held import boundaries_of, build_trace
from tests.core.dispute.play.models import FAMILIES, SHARDS, Tiny

SHARD = SHARDS[1]
_RNG = np.random.default_rng(0)
_MOST = 2e-4  # of a trace's values


def _rows(width: int) -> dict[str, Any]:
    """Rows [N, D] that float32 can hold."""
    shape = (SHARD[2], width)
    plain = _RNG.normal(size=shape)
    return {
        "of zeros": np.zeros(shape),
        "of one number": np.ones(shape),
        "of small whole numbers": _RNG.integers(-3, 4, shape),
        "of one number each": np.eye(*shape),
        "all the same": np.repeat(plain[:1], len(plain), axis=0),
        "as large as can be": np.copysign(3e38, plain),
        "so faint that norms leave them so": plain * 1e-36,
        "below normal numbers": plain * 1e-42,
        "of every size": plain * 2.0 ** _RNG.integers(-120, 120, shape),
        "under a giant": plain * np.where(np.arange(len(plain)) == 0, 1e30, 1.0)[:, None],
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_crafted_rows_leave_hardly_a_value_open(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.arithmetic() is None:
        pytest.skip("no C compiles here")
    asked = 0
    by_rows, referee = in_c._asked_by_rows, nearest._asked

    def count_rows(found: Any, count: int, ask: Any) -> Any:
        nonlocal asked
        asked += count
        return by_rows(found, count, ask)

    def count_referee(*leaf: Any) -> float:
        nonlocal asked
        asked += 1
        return referee(*leaf)

    monkeypatch.setattr(in_c, "_asked_by_rows", count_rows)
    monkeypatch.setattr(nearest, "_asked", count_referee)
    tiny = Tiny.make(tmp_path, family)
    layout, model = tiny.layout(SHARD), tiny.ours.trace_model(tiny.folder)
    for what, rows in _rows(tiny.hidden).items():
        asked = 0
        entering = rows.astype("<f4").tobytes()
        build_trace(layout, model, boundaries_of(layout, entering, tiny.rows(SHARD)[1]))
        assert asked <= _MOST * 8 * layout.chunks, f"rows {what}"
