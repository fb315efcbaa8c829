"""How do the bytes of one direction wait until they are due, in order and in bounded memory?"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from devnet.links.conditions import Way

End = Literal["eof", "reset"]


class Pipe:
    """Bytes on their way. The source is not read while `most_bytes` wait here."""

    def __init__(self, way: Way, most_bytes: int, ended: Callable[[], None]) -> None:
        """`ended` is called once its source's end has come out."""
        self.way = way
        self.carried_bytes = 0
        self.held_bytes = 0
        self.has_lost = False
        self.is_done = False  # the end has come out
        self._most_bytes, self._ended = most_bytes, ended
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes | memoryview | End]] = deque()
        self._last_due_s = 0.0
        self._source: asyncio.Transport | None = None
        self._sink: asyncio.Transport | None = None
        self._sink_is_full = False
        self._source_is_paused = False
        self._timer: asyncio.TimerHandle | None = None

    def connect(
        self, *, source: asyncio.Transport | None = None, sink: asyncio.Transport | None = None
    ) -> None:
        """Where bytes come from, and where they go; without a sink they wait."""
        self._source, self._sink = source or self._source, sink or self._sink
        if self._source_is_paused and source is not None:
            source.pause_reading()
        self.deliver()

    def feed(self, data: bytes) -> None:
        """Bytes that the source sent now."""
        if self.way.conditions.state == "lost":
            self.has_lost = True
            return
        now_s, cut = self._loop.time(), self.way.piece_bytes
        self.held_bytes += len(data)
        if cut and len(data) > cut:
            view = memoryview(data)
            for first in range(0, len(data), cut):
                piece = view[first : first + cut]
                self._wait(self.way.arrival_s(now_s, len(piece)), piece)
        else:
            self._wait(self.way.arrival_s(now_s, len(data)), data)
        self.deliver()
        if self.held_bytes >= self._most_bytes and not self._source_is_paused:
            self._source_is_paused = True
            if self._source is not None:
                self._source.pause_reading()

    def end(self, how: End) -> None:
        """The source closed its side, or broke the connection; takes its turn behind the bytes."""
        if self.way.conditions.state == "lost":
            self.has_lost = True
            return
        self._wait(self.way.arrival_s(self._loop.time(), 0), how)
        self.deliver()

    def fill(self, is_full: bool) -> None:
        """The sink takes no more at the moment, or takes again."""
        self._sink_is_full = is_full
        if not is_full:
            self.deliver()

    def deliver(self) -> None:
        """Hand over what is due, and come back when the next is, or when the way opens."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.way.conditions.state != "open" or self._sink is None:
            return
        now_s = self._loop.time()
        while self._waiting and not self._sink_is_full:
            due_s, item = self._waiting[0]
            if due_s > now_s:
                self._timer = self._loop.call_at(due_s, self.deliver)
                break
            self._waiting.popleft()
            if isinstance(item, str):
                self._finish(item)
                return
            self.held_bytes -= len(item)
            self.carried_bytes += len(item)
            self._sink.write(item)
        if self._source_is_paused and self.held_bytes < self._most_bytes // 2:
            self._source_is_paused = False
            if self._source is not None and not self._source.is_closing():
                self._source.resume_reading()

    def stop(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self.held_bytes = 0
        self.is_done = True

    def _wait(self, due_s: float, item: bytes | memoryview | End) -> None:
        self._last_due_s = max(self._last_due_s, due_s)
        self._waiting.append((self._last_due_s, item))

    def _finish(self, how: End) -> None:
        sink = self._sink
        assert sink is not None, "deliver() looked"
        self.stop()
        if how == "reset":
            reset(sink)
        elif not sink.is_closing():
            with suppress(OSError):  # the other side has reset it, and the loop has not heard yet
                sink.write_eof()
        self._ended()


def reset(transport: asyncio.Transport) -> None:
    """Break a connection so that the other side sees a reset, not an end."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
