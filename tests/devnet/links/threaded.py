"""An emulator in a thread of its own, so that a test can use links without a process beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from devnet.links.emulator import BUFFER_BYTES, Emulator
from devnet.links.precise import precise_loop

T = TypeVar("T")


class Links:
    """An emulator in a thread of its own, for links without a process beside the program.

    A context manager; the calls are `Emulator`'s and may come from any thread but its own.
    """

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, seed: int = 0) -> None:
        self._emulator = Emulator(buffer_bytes=buffer_bytes, seed=seed)
        self._loop = precise_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wait_for(self._emulator.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, target: str, *, host: str = "127.0.0.1", port: int = 0) -> str:
        return self._wait_for(self._emulator.add(name, target, host=host, port=port))

    def change(self, name: str | None = None, way: str | None = None, **changes: Any) -> None:
        self._call(lambda: self._emulator.change(name, way, **changes))

    def reset(self, name: str | None = None) -> int:
        return self._call(lambda: self._emulator.reset(name))

    def cut(self, name: str | None = None, *, is_cut: bool = True) -> int:
        return self._call(lambda: self._emulator.cut(name, is_cut=is_cut))

    def describe(self) -> list[dict[str, Any]]:
        return self._call(self._emulator.describe)

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _call(self, work: Callable[[], T]) -> T:
        async def in_loop() -> T:
            return work()

        return self._wait_for(in_loop())
