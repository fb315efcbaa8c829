"""A frame's body in one piece, as a peer receives it."""

from __future__ import annotations

from collections.abc import Sequence

from core.protocol import wire


def encode(
    message: wire.AnyMessage,
    payload: bytes | memoryview | Sequence[bytes | memoryview] = b"",
    *,
    id: int = 0,
    re: int = 0,
) -> bytes:
    """Prefix, header and payload. Raises FrameTooLarge if a peer would refuse it."""
    return b"".join(wire.encode_parts(message, payload, id=id, re=re))
