"""A prompt is cut alike wherever it is fed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.batching.chunks import replay_chunks


@given(tokens=st.integers(1, 5000), chunk=st.integers(1, 600))
def test_chunks_of_a_prompt_cover_it_once_and_start_at_zero(tokens: int, chunk: int) -> None:
    chunks = replay_chunks(0, tokens, tokens, chunk)
    assert [start for start, _ in chunks] == list(range(0, tokens, chunk))
    assert sum(end - start for start, end in chunks) == tokens
    assert chunks[-1][1] == tokens
