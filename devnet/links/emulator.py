"""Which links are there, what is each like now, and how are they changed while they carry?"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from core.protocol.errors import UsageError
from devnet.links.conditions import WAYS, Conditions, Way
from devnet.links.connection import Connection
from devnet.links.pipe import reset

#: Of one direction of one connection: at 256 ms this still lets 125 MB/s through.
BUFFER_BYTES = 32 * 2**20
MAX_CONNECTIONS = 256


class EmulatedLink:
    """A port of ours that leads to a program, as far away as the conditions say."""

    def __init__(self, name: str, target: tuple[str, int], buffer_bytes: int, seed: int) -> None:
        self.name, self.target = name, target
        self.ways = (Way(Conditions(), seed), Way(Conditions(), seed + 1))
        self.is_cut = False
        self.connections: set[Connection] = set()
        self.carried_bytes = [0, 0]
        self.endpoint = ""
        self._buffer_bytes = buffer_bytes
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)
        self.endpoint = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def change(self, way: str | None, **changes: Any) -> None:
        """Replace conditions of a way ("in", "out"), or of both. Raises UsageError."""
        if way is not None and way not in WAYS:
            raise UsageError(f"'{way}' is no direction", f"there are {' and '.join(WAYS)}")
        chosen = [w for name, w in zip(WAYS, self.ways, strict=True) if way in (None, name)]
        for one, conditions in [(one, one.conditions.changed(**changes)) for one in chosen]:
            one.conditions = conditions
        for connection in list(self.connections):
            connection.ways_changed()

    def reset(self) -> int:
        """Break every connection; returns how many there were."""
        broken = list(self.connections)
        for connection in broken:
            connection.reset()
        return len(broken)

    def cut(self, is_cut: bool) -> int:
        """Break every connection and refuse new ones, or take them again."""
        self.is_cut = is_cut
        return self.reset() if is_cut else 0

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        left = list(self.connections)
        self.reset()
        await asyncio.gather(*(connection.closed() for connection in left))

    def describe(self) -> dict[str, Any]:
        """What it is like, as people and JSON read it."""
        live = [0, 0]
        for connection in self.connections:
            for i, pipe in enumerate(connection.pipes):
                live[i] += pipe.carried_bytes
        row: dict[str, Any] = {"link": self.name, "endpoint": self.endpoint}
        row["to"] = f"{self.target[0]}:{self.target[1]}"
        for i, (name, way) in enumerate(zip(WAYS, self.ways, strict=True)):
            have = way.conditions
            row[name] = {
                "latencyMs": have.latency_ms,
                "jitterMs": have.jitter_ms,
                "bytesPerS": have.bytes_per_s,
                "state": have.state,
                "carriedBytes": self.carried_bytes[i] + live[i],
            }
        return row | {"cut": self.is_cut, "connections": len(self.connections)}

    def _accept(self) -> asyncio.Protocol:
        if self.is_cut or len(self.connections) >= MAX_CONNECTIONS:
            return _Refusal()
        connection = Connection(self.ways, self.target, self._buffer_bytes, self._forget)
        self.connections.add(connection)
        return connection.near

    def _forget(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            for i, pipe in enumerate(connection.pipes):
                self.carried_bytes[i] += pipe.carried_bytes


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        reset(transport)


class Emulator:
    """Links of one event loop, by name. Wants a loop with exact timers, such as `precise_loop`."""

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, seed: int = 0) -> None:
        """At most `buffer_bytes` wait per direction and connection; `seed` decides all jitter."""
        self._links: dict[str, EmulatedLink] = {}
        self._buffer_bytes = buffer_bytes
        self._seeds = itertools.count(seed * 1000, 2)

    async def add(self, name: str, target: str, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen for `host:port` `target`; returns the endpoint. Raises UsageError, OSError."""
        if name in self._links:
            raise UsageError(f"there is a link '{name}' already", self._links[name].endpoint)
        where, _, number = target.rpartition(":")
        link = EmulatedLink(name, (where, int(number)), self._buffer_bytes, next(self._seeds))
        await link.listen(host, port)
        self._links[name] = link
        return link.endpoint

    def chosen(self, name: str | None) -> Sequence[EmulatedLink]:
        """The link of that name, or all. Raises UsageError for an unknown one."""
        if name is None:
            return list(self._links.values())
        if name not in self._links:
            known = ", ".join(self._links) or "none"
            raise UsageError(f"there is no link '{name}'", f"links: {known}")
        return [self._links[name]]

    def change(self, name: str | None = None, way: str | None = None, **changes: Any) -> None:
        """Replace conditions: of one link or all, of one direction or both. Raises UsageError."""
        for link in self.chosen(name):
            link.change(way, **changes)

    def reset(self, name: str | None = None) -> int:
        """Break connections; new ones are taken. Returns how many broke."""
        return sum(link.reset() for link in self.chosen(name))

    def cut(self, name: str | None = None, *, is_cut: bool = True) -> int:
        """Break connections, refuse new ones until `is_cut` is False. Returns how many broke."""
        return sum(link.cut(is_cut) for link in self.chosen(name))

    def describe(self) -> list[dict[str, Any]]:
        return [link.describe() for link in self._links.values()]

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()
