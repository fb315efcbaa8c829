"""What parsers make of changed inputs; `python -m tests.siege.fuzz` tries more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.siege.fuzz import SUBJECTS, fuzz


@pytest.mark.parametrize("name", SUBJECTS)
def test_changed_inputs_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path, inputs=600, seed=20) == []
