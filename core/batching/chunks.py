"""Where is a prompt cut, so that every machine that feeds it cuts it alike?"""

from __future__ import annotations

from itertools import pairwise

CHUNK_TOKENS = 128


def replay_chunks(
    start: int, end: int, decoded_from: int, chunk_tokens: int = CHUNK_TOKENS
) -> list[tuple[int, int]]:
    """Cuts of rows [start, end) that are fed or sent again: at the canonical ones, where decoding
    began, before the last row.

    The same on every machine, because a prompt fed in other chunks gives slightly other bits.
    """
    at = {n for n in range(0, end, chunk_tokens) if start < n} | {start, end}
    if decoded_from < end:
        at |= {max(start, decoded_from), max(start, end - 1)}
    return list(pairwise(sorted(at)))


def carried_rows(prompt_tokens: int, decoded_from: int, chunk_tokens: int = CHUNK_TOKENS) -> int:
    """Of a continued prompt, how many rows may be taken over: all but the last, which gives the
    next token.

    While nothing was decoded yet only whole chunks, because the rest of one would be other bits.
    """
    last = prompt_tokens - 1
    return last if last >= decoded_from else last // chunk_tokens * chunk_tokens
