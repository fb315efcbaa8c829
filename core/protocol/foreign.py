"""How is JSON that a stranger wrote read, and how much of it is repeated in an error?

A parser's own limit is the interpreter's stack, which a library may raise beyond what the stack
holds: the process then dies instead of raising. So depth is counted before anything is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_DEPTH = 64
MOST_NAMES, MOST_NAME_CHARACTERS = 20, 64
_PIECE_BYTES = 2**18

_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))


def refuse_deep(data: bytes) -> None:
    """Raises ValueError for UTF-8 JSON that is nested more than MAX_DEPTH deep, or at most twice
    that where it goes over pieces. It takes little more memory than a piece.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    left = b""
    for outside in _outside_strings(data):
        left = _without_pairs(left + outside)
        if len(left) > MAX_DEPTH:
            break
    if left:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep, or its brackets do not close")


def _without_pairs(brackets: bytes) -> bytes:
    """Without those that close each other, up to MAX_DEPTH deep."""
    for _ in range(MAX_DEPTH):  # each round takes the innermost away
        shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return brackets


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """The brackets outside strings, piece by piece, each in a few passes over the whole of it: no
    expression is matched for each string, for which all other threads would wait.
    """
    start, in_string = 0, False
    while start < len(data):
        piece = data[start : start + _PIECE_BYTES]
        escapes = len(piece) - len(piece.rstrip(b"\\"))
        piece = data[start : start + len(piece) + escapes % 2]  # with what the last one escapes
        start += len(piece)
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_STRUCTURE)
        parts = plain.replace(b'""', b"").split(b'"')
        yield b"".join(parts[in_string::2])
        in_string ^= len(parts) % 2 == 0


def read_json(data: bytes) -> Any:
    """What UTF-8 JSON says. Raises ValueError, and nothing else, for what cannot be read."""
    text = data.decode("utf-8")
    refuse_deep(data)
    return json.loads(text)


def read_file(path: Path, *, most_bytes: int) -> bytes:
    """A whole file. Raises OSError, or ValueError for one that is larger."""
    found = bytearray()
    with path.open("rb") as stream:  # in pieces: a buffer of the size asked for is made at once
        while piece := stream.read(_PIECE_BYTES):
            found += piece
            if len(found) > most_bytes:
                raise ValueError(f"it has more than {most_bytes} bytes")
    return bytes(found)


def read_json_file(path: Path, *, most_bytes: int) -> Any:
    """The JSON in a file. Raises OSError, or ValueError for one that is too large or no JSON."""
    return read_json(read_file(path, most_bytes=most_bytes))


def shown(names: Iterable[object]) -> str:
    """Names that a stranger chose, as an error tells them: at most twenty, and none at length."""
    listed = sorted(map(str, names))
    texts = [repr(name[:MOST_NAME_CHARACTERS]) for name in listed[:MOST_NAMES]]
    more = len(listed) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")
