"""How do thirty programs start on one machine without importing the same libraries thirty times?

One interpreter imports them and forks for every program that is to run. Such a program is a
process, a session, an environment and three streams of its own, as if it had been executed; only
its memory starts out shared. A miner is ready six seconds of computing sooner. `python -m
devnet.warm FD` is that interpreter; it ends when the other side of the socket FD closes.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import io
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

#: What the programs would import, in the order in which a devnet starts them.
PRELOADED = (
    "web3",
    "miner.cli",
    "matcher.cli",
    "rich.progress",
    "hivemind",
    "matcher.daemon.start",
    "scheduler.methods.explain",
    "uvicorn",
    "core.engine.model.library",  # before transformers, of which it leaves out some
    "transformers.models.llama.modeling_llama",
    "core.engine.weights.load_shard",
    "core.dispute.judging.numerics",
    "miner.serving.request_run",
    "client.cli",
    "client.jobs.wishes",
    "client.auditor_cli",
    "client.commands.judge.jury_service",
    "client.disputes.jury_dispute",
)
_LARGEST_BYTES = 1 << 17
_CODE_OF_A_BUG = 70


@dataclass(frozen=True)
class StartedProgram:
    """A program that runs; `ended` becomes its exit code, minus the signal that killed it."""

    pid: int
    ended: asyncio.Future[int]


class WarmStart:
    """Our side: asks the warm interpreter to start programs."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process, self._control = process, control
        self._asked: dict[int, asyncio.Future[StartedProgram]] = {}
        self._running: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count()
        asyncio.get_running_loop().add_reader(control, self._hear)

    @classmethod
    async def begin(cls, environ: Mapping[str, str]) -> WarmStart:
        """Start the interpreter and return at once: requests wait until it has imported all."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-m", "devnet.warm", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                env=dict(environ),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return cls(process, ours)

    async def start(
        self,
        module: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        folder: str | None = None,
    ) -> StartedProgram:
        """Run `module.main()` with this command line, no input, and output to these descriptors.

        In this folder, or ours. Raises ConnectionError when the interpreter has ended.
        """
        number = next(self._numbers)
        request = {"number": number, "module": module, "arguments": list(arguments)}
        request |= {"environ": dict(environ), "folder": folder}
        answer: asyncio.Future[StartedProgram] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [stdout, stderr])
        except OSError as error:
            del self._asked[number]
            raise ConnectionError(f"the warm interpreter has ended: {error}") from None
        return await answer

    async def close(self) -> None:
        """End the interpreter. Programs that it started run on, if they were reported."""
        asyncio.get_running_loop().remove_reader(self._control)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._control.setblocking(False)
        with contextlib.suppress(OSError):
            while self._hear_one():
                pass
        self._control.close()

    def _hear(self) -> None:
        try:
            if self._hear_one():
                return
        except OSError:
            pass
        asyncio.get_running_loop().remove_reader(self._control)
        for future in (*self._asked.values(), *self._running.values()):
            if not future.done():
                future.set_exception(ConnectionError("the warm interpreter has ended"))

    def _hear_one(self) -> bool:
        """Take in one message; False when there will be no more."""
        message = self._control.recv(_LARGEST_BYTES)
        if not message:
            return False
        told = json.loads(message)
        pid, answer = told["pid"], self._asked.pop(told["number"], None)
        if "code" in told:
            if answer is not None and not answer.done():
                why = f"it ended before it ran, with {told['code']}"
                answer.set_exception(ConnectionError(why))
            elif pid in self._running:
                self._running.pop(pid).set_result(told["code"])
        elif answer is None or answer.done():  # the caller has left
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            self._running[pid] = asyncio.get_running_loop().create_future()
            answer.set_result(StartedProgram(pid, self._running[pid]))
        return True


def serve(control: socket.socket) -> None:
    """The interpreter: import, then fork for every request and report every end.

    Requests are looked at between imports too: an early one imports the rest alone, while we go on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hears, wakes = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    numbers: dict[int, int] = {}
    to_import = list(PRELOADED)
    while True:
        ready, _, _ = select.select([control, hears], [], [], 0.0 if to_import else None)
        if not ready:
            importlib.import_module(to_import.pop(0))
            gc.freeze()  # the collector would write to every page that the children share
        if hears in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(hears, 4096)
            _report_ends(control, numbers)
        if control in ready:
            request, streams, _, _ = socket.recv_fds(control, _LARGEST_BYTES, 2)
            if not request:
                return
            wanted = json.loads(request)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (hears, wakes):
                    os.close(fd)
                _become(wanted, streams, control)
            numbers[pid] = wanted["number"]
            for fd in streams:
                os.close(fd)


def _report_ends(control: socket.socket, numbers: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        message = {"number": numbers.pop(pid), "pid": pid}
        message["code"] = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):  # the other side has left; the next read says so
            control.send(json.dumps(message).encode())


def _become(request: Mapping[str, Any], streams: Sequence[int], control: socket.socket) -> NoReturn:
    """Be the program, in the forked child, and end as it ends; unless it cannot be reported."""
    code = _CODE_OF_A_BUG
    try:
        os.setsid()
        control.send(json.dumps({"number": request["number"], "pid": os.getpid()}).encode())
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, fd in enumerate(streams, start=1):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdout, sys.stderr = _text(1), _text(2)
        os.environ.clear()
        os.environ.update(request["environ"])
        if request["folder"] is not None:
            os.chdir(request["folder"])
        module = request["module"]
        sys.argv = [module, *request["arguments"]]
        try:
            code = int(importlib.import_module(module).main())
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _text(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(open(fd, "wb", closefd=False), line_buffering=fd == 2 or os.isatty(fd))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
