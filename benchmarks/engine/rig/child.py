"""How does a benchmark talk to a process of its own?

A JSON line asks, a JSON line answers, and the closed pipe ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

ENVIRON = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_LINE_BYTES = 1 << 26
_answers = 1
READY_S, ANSWER_S = 180.0, 600.0


class ChildFailed(RuntimeError):
    """A process of the benchmark ended or said that it cannot."""


class Child:
    """Our side. `ready` is the first thing it said."""

    def __init__(self, module: str, process: asyncio.subprocess.Process, errors: Any) -> None:
        self.ready: dict[str, Any] = {}
        self._module, self._process, self._errors = module, process, errors
        self._lock = asyncio.Lock()

    @classmethod
    async def start(
        cls, module: str, spec: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> Self:
        """Run `python -m module SPEC` until it is ready. Raises ChildFailed with its errors."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            json.dumps(spec),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=_LINE_BYTES,
            env={**os.environ, **ENVIRON, **(environ or {})},
        )
        child = cls(module, process, errors)
        try:
            child.ready = await child._hear(READY_S)
        except BaseException:
            await child.stop()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something; its answer."""
        async with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            await self._process.stdin.drain()
            return await self._hear(ANSWER_S)

    async def stop(self) -> None:
        """End it, by force if it takes longer than a few seconds."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._errors.close()

    async def _hear(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ChildFailed(f"{self._module} said nothing for {limit_s:g} s") from None
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-3000:]
            raise ChildFailed(f"{self._module} ended: {said}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ChildFailed(f"{self._module}: {answer['error']}")
        return answer


def keep_stdout() -> None:
    """The process's side, at first: what libraries print goes to stderr, stdout is for answers."""
    global _answers
    _answers = os.dup(1)
    os.dup2(2, 1)


def say(answer: Mapping[str, Any]) -> None:
    """The process's side: answer."""
    line = json.dumps(answer).encode() + b"\n"
    while line:
        line = line[os.write(_answers, line) :]


async def obey(
    perform: Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]], asked: Path | None = None
) -> None:
    """The process's side: do what is asked until the pipe closes: the input, or `asked`."""
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader),
        sys.stdin if asked is None else asked.open("rb"),
    )
    while line := await reader.readline():
        try:
            answer = await perform(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)
