"""How is one connection carried over a link, from its opening to its end?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from devnet.links.conditions import Way
from devnet.links.pipe import Pipe, reset


class _Side(asyncio.Protocol):
    """One socket of a carried connection: it reads into one pipe and writes from the other."""

    def __init__(self, source_of: Pipe, sink_of: Pipe, lost: Callable[[_Side], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self._source_of, self._sink_of, self._lost = source_of, sink_of, lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 18)
        self._source_of.connect(source=transport)
        self._sink_of.connect(sink=transport)

    def data_received(self, data: bytes) -> None:
        self._source_of.feed(data)

    def eof_received(self) -> bool:
        self._source_of.end("eof")
        return True  # the other direction may go on

    def pause_writing(self) -> None:
        self._sink_of.fill(True)

    def resume_writing(self) -> None:
        self._sink_of.fill(False)

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._source_of.end("reset")
        self._sink_of.stop()
        self._lost(self)


class Connection:
    """One connection: the dialler's socket, ours to the target, and a pipe each way."""

    def __init__(
        self,
        ways: tuple[Way, Way],
        target: tuple[str, int],
        most_bytes: int,
        is_over: Callable[[Connection], None],
    ) -> None:
        inward = Pipe(ways[0], most_bytes, self._ended)
        outward = Pipe(ways[1], most_bytes, self._ended)
        self.pipes = (inward, outward)
        self._target, self._is_over = target, is_over
        self.near = _Side(inward, outward, self._lost)
        self._far = _Side(outward, inward, self._lost)
        self._open_ways = asyncio.Event()
        self._task = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        """A handshake takes a way there, back and there again before the first byte."""
        inward, outward = (pipe.way for pipe in self.pipes)
        await asyncio.sleep(2 * inward.latency_s + outward.latency_s)
        while any(pipe.way.conditions.state != "open" for pipe in self.pipes):
            self._open_ways.clear()
            await self._open_ways.wait()
        try:
            await asyncio.get_running_loop().create_connection(lambda: self._far, *self._target)
        except OSError:
            self.reset()

    def ways_changed(self) -> None:
        """Conditions were changed: go on, or give up what lost bytes."""
        if any(pipe.has_lost and pipe.way.conditions.state == "open" for pipe in self.pipes):
            self.reset()
            return
        self._open_ways.set()
        for pipe in self.pipes:
            pipe.deliver()

    def reset(self) -> None:
        """Break it on both sides at once."""
        self._task.cancel()
        for side in (self.near, self._far):
            if side.transport is not None:
                reset(side.transport)
        if self.near.transport is None:
            self._is_over(self)

    async def closed(self) -> None:
        """Wait until nothing of it works on."""
        await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self) -> None:
        if all(pipe.is_done for pipe in self.pipes):
            for side in (self.near, self._far):
                if side.transport is not None:
                    side.transport.close()

    def _lost(self, side: _Side) -> None:
        side.transport = None
        if self.near.transport is None and self._far.transport is None:
            self._task.cancel()
            self._is_over(self)
        else:
            self._ended()
