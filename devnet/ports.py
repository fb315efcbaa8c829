"""Free ports of this machine."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
