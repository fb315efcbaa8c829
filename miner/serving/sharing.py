"""Which bytes of its model's files does this miner send to whom, and how many in a second?

A published model is no secret, so anybody may ask. What it costs is the line that tokens leave by.
Who has stake, or a part in a job here, has most of a small rate; all strangers together have the
rest. Of each key, and of strangers each address, one ask at a time waits in line, so neither many
asks nor many throwaway keys take what is another's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from core.engine.weights.headers import INDEX_FILE
from core.engine.weights.manifest import MANIFEST_FILE, read_manifest
from core.engine.weights.pulled import PULLED_FILE, PulledFolder
from core.engine.weights.weights import known_contents
from core.models.peers import BUSY, NOT_HERE
from core.models.pull import missing_small_files
from core.protocol import wire
from core.protocol.errors import CheckFailed, ModelError
from core.runtime.clock import Clock
from core.runtime.logs import get_logger
from core.runtime.network.channel import Channel
from miner.serving.job_table import Refused

OFF = "E-SHARE-OFF"
#: Of the rate, what all strangers together have.
STRANGERS_SHARE = 8
#: Sent at once at most. An answer that its asker does not read stays in memory, one a stream.
KNOWN_BYTES, STRANGER_BYTES = 2**18, 2**16
LEAST_BYTES = 2**12
#: Who would wait longer in line is refused.
MOST_WAIT_S = 5.0
READS_AT_ONCE = 2
LOOK_EVERY_S = 1.0
_Spans = list[tuple[int, int]]
T = TypeVar("T")
log = get_logger(__name__)


class SharedFiles:
    """What of a published model is in a folder, each byte of it proven to be what was published.

    Of a folder that was pulled: the tensors that are here, now and later, and the small files.
    """

    def __init__(self, folder: Path, manifest_hash: str, clock: Clock) -> None:
        """`manifest_hash` is what the chain has. Nothing is read yet."""
        self._folder, self._hash, self._clock = folder, manifest_hash, clock
        self._sizes: dict[str, int] = {}
        self._small: dict[str, _Spans] = {}
        self._spans: dict[str, _Spans] = {}
        self._seen, self._looked_s = (-1, -1), float("-inf")
        self._looking = threading.Lock()

    def find(self, file: str, start: int, end: int) -> tuple[int, int] | None:
        """The size of a file, and up to where before `end` its bytes from `start` on are here.

        None where the byte at `start` is not. Raises ModelError or OSError where the folder is none
        of this model as it was published.
        """
        with self._looking:
            self._look()
        spans = self._spans.get(file, [])
        number = bisect_right(spans, (start, 2**63)) - 1
        if number < 0 or start >= spans[number][1]:
            return None
        return self._sizes[file], min(end, spans[number][1])

    def read(self, file: str, start: int, end: int) -> bytes:
        """Bytes that were found. Raises OSError where they are gone."""
        with (self._folder / file).open("rb", buffering=0) as stream:
            data = os.pread(stream.fileno(), end - start, start)
        if len(data) < end - start:
            raise OSError(f"{file} ends early")
        return data

    def _look(self) -> None:
        """Know what has been fetched since the last look."""
        now = self._clock.monotonic()
        if now - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s, seen = now, self._stamp()
        if seen != self._seen:
            self._take_in()
            self._seen = seen

    def _stamp(self) -> tuple[int, int]:
        try:
            found = (self._folder / PULLED_FILE).stat()
        except FileNotFoundError:  # the whole model is here
            return (0, 0)
        return found.st_mtime_ns, found.st_size

    def _take_in(self) -> None:
        pulled, spans = PulledFolder.find(self._folder), dict[str, _Spans]()
        if not self._sizes:
            self._take_in_small(pulled)
        if pulled is not None:
            for name in pulled.here:
                fact = pulled.manifest.tensors[name]
                span = fact.start_byte, fact.start_byte + fact.size_bytes
                spans.setdefault(fact.file, []).append(span)
        self._spans = self._small | {file: _joined(found) for file, found in spans.items()}

    def _take_in_small(self, pulled: PulledFolder | None) -> None:
        """The files that are here as a whole."""
        data = (self._folder / MANIFEST_FILE).read_bytes()
        manifest = read_manifest(data, self._hash)
        if pulled is None:
            there = known_contents(self._folder).files
            whole = [name for name, fact in manifest.files.items() if there.get(name) == fact]
        else:
            weights = {tensor.file for tensor in manifest.tensors.values()} | {INDEX_FILE}
            missing = missing_small_files(manifest, self._folder)
            whole = list(manifest.files.keys() - weights - set(missing))
        sizes = {name: fact.size_bytes for name, fact in manifest.files.items()}
        self._sizes = sizes | {MANIFEST_FILE: len(data)}
        self._small = {name: [(0, self._sizes[name])] for name in (*whole, MANIFEST_FILE)}


class Sharing:
    """Answers those who ask for files, at a rate that serving does not notice."""

    def __init__(self, model_id: str, files: SharedFiles, rate_bytes_s: int, clock: Clock) -> None:
        """With a rate of 0 nobody is sent anything."""
        self._model_id, self._files, self._is_on = model_id.lower(), files, rate_bytes_s > 0
        strangers = rate_bytes_s // STRANGERS_SHARE
        self._strangers = _Line(strangers, STRANGER_BYTES, clock)
        self._known = _Line(rate_bytes_s - strangers, KNOWN_BYTES, clock)
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting = Counter[str]()
        self._reading = asyncio.Semaphore(READS_AT_ONCE)

    async def answer(self, channel: Channel, ask: wire.FetchFile) -> tuple[wire.FileBytes, bytes]:
        """Some of the bytes that a peer asks for, when it is its turn.

        Raises Refused for what is not here, for who has not taken what it asked for before, and
        where too many wait.
        """
        if not self._is_on:
            raise Refused(OFF, "this miner sends no files (its miner.share_rate is 0)")
        if ask.model_id.lower() != self._model_id:
            raise Refused(NOT_HERE, "this miner serves another model")
        if not ask.start < ask.end:
            raise Refused(NOT_HERE, f"bytes {ask.start} to {ask.end} are none")
        is_stranger = channel.is_stranger
        line = self._strangers if is_stranger else self._known
        end = min(ask.end, ask.start + line.most_bytes)
        found = await self._disk(self._files.find, ask.file, ask.start, end)
        if found is None:
            raise Refused(NOT_HERE, f"byte {ask.start} of {ask.file} is not here")
        size, end = found
        async with self._turn(f"at {channel.address}" if is_stranger else channel.peer):
            if channel.is_sending:
                raise Refused(BUSY, "this stream has not taken what was sent before")
            await line.turn(end - ask.start)
            data = await self._disk(self._files.read, ask.file, ask.start, end)
        return wire.FileBytes(size), data

    async def _disk(self, work: Callable[..., T], *args: object) -> T:
        """Look at the folder in a thread, with few others at once. Raises Refused."""
        try:
            async with self._reading:
                return await asyncio.to_thread(work, *args)
        except (ModelError, CheckFailed, OSError) as error:
            log.warning("files are not shared", why=str(error))
            raise Refused(NOT_HERE, "its folder is not as it was published") from None

    @asynccontextmanager
    async def _turn(self, who: str) -> AsyncIterator[None]:
        """The one ask of a key or an address that is looked at now."""
        turn = self._turns.setdefault(who, asyncio.Lock())
        self._waiting[who] += 1
        try:
            async with turn:
                yield
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who], self._turns[who]


class _Line:
    """So many bytes a second, in the order in which they are asked for."""

    def __init__(self, bytes_s: int, most_bytes: int, clock: Clock) -> None:
        self._bytes_s, self._clock = max(1, bytes_s), clock
        self.most_bytes = min(most_bytes, max(LEAST_BYTES, bytes_s))
        self._turn, self._free_s, self._waiting_bytes = asyncio.Lock(), 0.0, 0

    async def turn(self, size: int) -> None:
        """Wait until so many bytes may leave. Raises Refused where too many wait already.

        Who leaves the line has used nothing up.
        """
        if self._waiting_bytes > MOST_WAIT_S * self._bytes_s:
            raise Refused(BUSY, f"{self._waiting_bytes} bytes wait for others already")
        self._waiting_bytes += size
        now = self._clock.monotonic
        try:
            async with self._turn:
                await self._clock.sleep(max(0.0, self._free_s - now()))
                self._free_s = max(self._free_s, now()) + size / self._bytes_s
        finally:
            self._waiting_bytes -= size


def _joined(spans: _Spans) -> _Spans:
    """Spans in order, those that touch made one."""
    found: _Spans = []
    for start, end in sorted(spans):
        if found and found[-1][1] >= start:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
