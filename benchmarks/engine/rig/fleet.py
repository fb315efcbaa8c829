"""Which stages are there, in processes that come, die, freeze and thaw, and how are they told?

All are forked from one interpreter that has imported everything: a dead one is soon replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.engine.rig.chain import FIRST_STAGE_KEY, spec_of
from benchmarks.engine.rig.child import ENVIRON, ChildFailed
from core.engine.weights.shape import describe_model
from devnet.warm import WarmStart

_MODULE = "benchmarks.engine.rig.stage_process"
_MIB = 2**20
_LINE_BYTES = 1 << 24
READY_S, ANSWER_S = 120.0, 30.0


class Member:
    """One stage's process, as it can be told things and hurt."""

    def __init__(self, key: int, layers: tuple[int, int], folder: Path) -> None:
        self.key, self.layers, self.folder = key, layers, folder
        self.ready: dict[str, Any] = {}
        self.is_dead = self.is_frozen = False
        self._pid = self._asks = -1
        self._answers: asyncio.StreamReader | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._ended: asyncio.Future[int] | None = None
        self._lock = asyncio.Lock()

    @property
    def operator(self) -> str:
        return str(self.ready["operator"])

    @property
    def endpoint(self) -> str:
        return str(self.ready["endpoint"])

    async def start(self, warm: WarmStart, spec: dict[str, Any]) -> None:
        """Fork it and wait until it serves. Raises ChildFailed."""
        pipe = self.folder / f"asks-{self.key}"
        os.mkfifo(pipe)
        self._asks = os.open(pipe, os.O_RDWR)
        hears, says = os.pipe()
        log = (self.folder / f"stage-{self.key}.log").open("wb")
        try:
            line = json.dumps({**spec, "key": self.key, "control": str(pipe)})
            environ = {**os.environ, **ENVIRON}
            started = await warm.start(_MODULE, [line], environ, says, log.fileno())
        finally:
            os.close(says)
            log.close()
        self._pid, self._ended = started.pid, started.ended
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(hears, "rb")
        )
        self._answers = reader
        self.ready = await self._hear(READY_S)

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something; its answer. Raises ChildFailed for one that is gone or frozen."""
        async with self._lock:
            os.write(self._asks, json.dumps({"do": do, **arguments}).encode() + b"\n")
            return await self._hear(ANSWER_S)

    async def kill(self) -> None:
        """kill −9; returns when it is gone."""
        self.is_dead = True
        os.kill(self._pid, signal.SIGKILL)
        assert self._ended is not None, "it was started"
        await asyncio.wait([self._ended])
        self._close()

    def freeze(self) -> None:
        """SIGSTOP: its streams stay open, and nobody answers on them."""
        self.is_frozen = True
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it stood, and sends what it was about to send."""
        self.is_frozen = False
        os.kill(self._pid, signal.SIGCONT)

    async def stop(self) -> None:
        """End it, whatever state it is in."""
        if not self.is_dead and self._pid > 0:
            await self.kill()

    def _close(self) -> None:
        os.close(self._asks)
        if self._transport is not None:
            self._transport.close()

    async def _hear(self, limit_s: float) -> dict[str, Any]:
        assert self._answers is not None, "it was started"
        try:
            async with asyncio.timeout(limit_s):
                line = await self._answers.readline()
        except TimeoutError:
            raise ChildFailed(f"stage {self.key} said nothing for {limit_s:g} s") from None
        if not line:
            said = (self.folder / f"stage-{self.key}.log").read_text(errors="replace")
            raise ChildFailed(f"stage {self.key} ended: {said[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ChildFailed(f"stage {self.key}: {answer['error']}")
        return answer


class Fleet:
    """An async context manager: so many members for each range of layers."""

    def __init__(
        self, model: Path, cuts: Sequence[int], *, replicas: int = 2, max_requests: int = 64
    ) -> None:
        """`cuts` are the layers at which a new stage begins."""
        self.model = model
        self.ranges = list(itertools.pairwise([0, *cuts, spec_of(model).layers]))
        self.members: list[Member] = []
        self._replicas, self._max_requests = replicas, max_requests
        self._keys = itertools.count(FIRST_STAGE_KEY)
        self._stack = AsyncExitStack()
        self._warm: WarmStart | None = None
        self.folder = Path()

    async def __aenter__(self) -> Self:
        scratch = tempfile.TemporaryDirectory(prefix="headrace-fleet-", ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(scratch))
        try:
            self._warm = await WarmStart.begin({**os.environ, **ENVIRON})
            self._stack.push_async_callback(self._warm.close)
            self._stack.push_async_callback(self._stop)
            for layers in self.ranges * self._replicas:
                await self.add(layers)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def alive(self) -> list[Member]:
        """Those that were not killed; frozen ones too, because no peer can see that they are."""
        return [member for member in self.members if not member.is_dead]

    async def add(self, layers: tuple[int, int]) -> Member:
        """One more member, under a key of its own."""
        assert self._warm is not None, "entered"
        member = Member(next(self._keys), layers, self.folder)
        self.members.append(member)
        weights = describe_model(self.model).shard_bytes(*layers)
        await member.start(
            self._warm,
            {
                "model": str(self.model),
                "layers": layers,
                "folder": str(self.folder),
                "memory_bytes": weights + 256 * _MIB,
                "max_requests": self._max_requests,
            },
        )
        return member

    async def heal(self) -> None:
        """Thaw who is frozen, replace who is dead."""
        for member in self.alive:
            if member.is_frozen:
                member.thaw()
        dead = [member for member in self.members if member.is_dead]
        self.members = self.alive
        for member in dead:
            await self.add(member.layers)

    async def _stop(self) -> None:
        await asyncio.gather(*(member.stop() for member in self.members), return_exceptions=True)
