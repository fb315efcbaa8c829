"""How does a stranger act beside honest clients? In a process of its own, from a word to a word.

`python -m benchmarks.siege.actor PART ACT` reads its target from a line of its input, says that it
is ready, begins this function of that part at the next line and ends with its input. Then it says
what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

import msgspec

from core.protocol.signing import Domain
from devnet.processes import members_of_session
from tests.core.runtime.network.test_transport import descendants, stat_of

READY_WITHIN_S, ENDS_WITHIN_S = 180.0, 60.0
FAREWELL_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")

Begin = Callable[[], Awaitable[None]]
"""What an act waits for once it is prepared."""


class Target(msgspec.Struct, frozen=True):
    """Where everything is, and what an actor was given to act with."""

    gateway_url: str
    key: str
    matcher_url: str
    model_id: str
    bootstrap: list[str]
    domain: Domain
    miners: list[tuple[str, str]]
    """Operator and endpoint of each."""
    homes: dict[str, str]
    """HEADRACE_HOME of the parties that it may act as."""
    share: float = 0.0
    """Of a processor, for one that only computes."""


class Actor:
    """One that was started; `done` is what it says that it did, once it has ended."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log
        self._cpu_before_s = 0.0
        self.done: Counter[str] = Counter()

    @property
    def cpu_s(self) -> float:
        """Processor seconds of it and of all that it started, since it began to act."""
        return cpu_s(self._process.pid) - self._cpu_before_s

    async def begin(self) -> None:
        """Let it act."""
        self._cpu_before_s = cpu_s(self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        await self._process.stdin.drain()

    async def end(self) -> None:
        """Have it stop, and say what it did."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self.finished()

    async def finished(self) -> None:
        """Wait until it says what it did. Raises RuntimeError when it broke down, TimeoutError."""
        async with asyncio.timeout(ENDS_WITHIN_S):
            self.done.update(json.loads(await self._line()))

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"an actor ended too early: {self._log.read_text()[-2000:]}")
        return line

    async def ready(self) -> None:
        """Wait until it is prepared."""
        async with asyncio.timeout(READY_WITHIN_S):
            await self._line()

    async def kill(self) -> None:
        """End whatever is left of it."""
        for pid in {*members_of_session(self._process.pid), *descendants(self._process.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def actor(part: str, target: Target, logs: Path, act: str = "act") -> AsyncIterator[Actor]:
    """A prepared actor; nothing of it runs afterwards."""
    log = logs / f"actor-{part}-{act}.log"
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.siege.actor", part, act),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    started = Actor(process, log)
    try:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(target) + b"\n")
        await started.ready()
        yield started
    finally:
        await started.kill()


def cpu_s(leader: int) -> float:
    """Processor seconds of a process's session and of all below it, the ended ones included."""
    total = 0
    for pid in {*members_of_session(leader), *descendants(leader)}:
        with contextlib.suppress(OSError):
            fields = stat_of(pid)
            total += sum(map(int, fields[11:15] if pid == leader else fields[11:13]))
    return total / _TICKS


async def _play(part: str, act: str) -> None:
    given = asyncio.StreamReader(limit=2**20)
    protocol = asyncio.StreamReaderProtocol(given)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    target = msgspec.json.decode(await given.readline(), type=Target)
    done: Counter[str] = Counter()

    async def begin() -> None:
        print("ready", flush=True)
        await given.readline()

    play = getattr(import_module(f"benchmarks.siege.{part}"), act)
    acting = asyncio.create_task(play(target, done, begin))
    told = asyncio.create_task(_ended(given, acting))
    await asyncio.wait({acting, told}, return_when=asyncio.FIRST_COMPLETED)
    if acting.done():
        acting.result()
    await told
    acting.cancel()
    await asyncio.wait([acting], timeout=FAREWELL_S)
    print(json.dumps(done), flush=True)
    os._exit(0)  # hundreds of streams need no farewell


async def _ended(given: asyncio.StreamReader, acting: asyncio.Task[None]) -> None:
    """Wait for the end of the input, which `begin` reads first."""
    while not given.at_eof() and not acting.done():
        await asyncio.sleep(0.05)


def main() -> None:
    asyncio.run(_play(*sys.argv[1:]))


if __name__ == "__main__":
    main()
