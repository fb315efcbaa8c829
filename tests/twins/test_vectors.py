"""The vectors that the Solidity twin is tested with are what Python computes today."""

from __future__ import annotations

import json

from tests.twins import make_vectors


def test_the_vectors_on_disk_are_not_stale() -> None:
    assert json.loads(make_vectors.VECTORS.read_text()) == make_vectors.build(), (
        "run `python -m tests.twins.make_vectors`"
    )


def test_the_vectors_are_written_the_way_the_program_writes_them() -> None:
    assert make_vectors.VECTORS.read_text() == json.dumps(make_vectors.build(), indent=1) + "\n"
