"""How is JSON that a stranger wrote read, and how much of it is repeated in an error?

A parser's own limit is the interpreter's stack, which a library may raise beyond what the stack
holds: the process then dies instead of raising. So depth is counted before anything is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_DEPTH = 64
MOST_NAMES, MOST_NAME_CHARACTERS = 20, 64
_PIECE_BYTES = 2**18

_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))


def refuse_deep(data: bytes) -> None:
    """Raises ValueError for UTF-8 JSON that is nested more than MAX_DEPTH deep."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    left = _brackets(data)
    for _ in range(MAX_DEPTH):  # each round takes the innermost pairs away
        shorter = left.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(left):
            break
        left = shorter
    if left.count(b"[") + left.count(b"{") > 0:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep, or its brackets do not close")


def _brackets(data: bytes) -> bytes:
    """The brackets outside strings, one without an end too. In a few passes over the whole: no
    expression is matched for each string, for which all other threads would wait.
    """
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_STRUCTURE)
    return b"".join(plain.replace(b'""', b"").split(b'"')[::2])


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
