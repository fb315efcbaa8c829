"""How are other programs started, known to be ready, and none left behind?

Each program leads its own session, so that stopping it stops its children too (a swarm peer forks a
process and a libp2p daemon). The list is on disk: `devnet down` in another shell, or after a crash,
finds what `devnet up` started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.protocol.errors import HeadraceError, Unreachable
from devnet.warm import WarmStart

_POLL_S = 0.1


class ProcessFailed(HeadraceError):
    """A program of the devnet ended or did not become ready."""

    code = "E-DEVNET-01"
    exit_code = 3


@dataclass(frozen=True)
class RunningProgram:
    """One started program."""

    name: str
    pid: int
    log: Path
    command: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether its leader still runs (a zombie that we did not reap yet does not)."""
        return _leader_state(self.pid) not in (None, "Z")

    @property
    def is_frozen(self) -> bool:
        """Whether its clock was stopped (SIGSTOP)."""
        return _leader_state(self.pid) == "T"


class Processes:
    """The programs of one devnet."""

    def __init__(self, file: Path, logs: Path) -> None:
        self._file, self._logs = file, logs
        self._running: dict[str, RunningProgram] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._warm: WarmStart | None = None

    @classmethod
    def load(cls, file: Path, logs: Path) -> Processes:
        """What an earlier shell started and is still on the list."""
        processes = cls(file, logs)
        if file.is_file():
            for entry in json.loads(file.read_text()):
                running = RunningProgram(
                    entry["name"],
                    entry["pid"],
                    Path(entry["log"]),
                    tuple(entry.get("command", ())),  # an older version's list has neither
                    tuple(entry.get("environ", {}).items()),
                )
                processes._running[running.name] = running
        return processes

    @property
    def running(self) -> list[RunningProgram]:
        return list(self._running.values())

    def get(self, name: str) -> RunningProgram:
        """Raises Unreachable when no program of that name was started."""
        if name not in self._running:
            raise Unreachable(
                f"no program '{name}' runs here",
                f"there are: {', '.join(self._running) or 'none'}",
                next_step="devnet status",
            )
        return self._running[name]

    async def warm_up(self, environ: Mapping[str, str]) -> None:
        """From now on, start programs of ours from one warm interpreter (`devnet/warm.py`)."""
        self._warm = self._warm or await WarmStart.begin({**clean_environ(), **environ})

    async def start(
        self, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> RunningProgram:
        """Start a program with its output in `logs/NAME.log`."""
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            pid, end = await self.launch(argv, environ or {}, output.fileno(), output.fileno())
        running = RunningProgram(name, pid, log, tuple(argv), tuple((environ or {}).items()))
        self._ends[pid] = end
        self._running[name] = running
        self._save()
        return running

    async def start_again(self, name: str) -> RunningProgram:
        """Start a program with the command line that it had; it is ended first if it runs."""
        was = self.get(name)
        if was.is_alive:
            await self.stop(name)
        return await self.start(name, was.command, dict(was.environ))

    async def run(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> tuple[int, str, str]:
        """Run a program to its end: its exit code and what it wrote to no other file.

        Cancelled, it asks the program to end and waits until it has.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid, end = await self.launch(
                argv,
                environ,
                out.fileno() if stdout is None else stdout,
                err.fileno() if stderr is None else stderr,
            )
            try:
                code = await asyncio.shield(end)
            except asyncio.CancelledError:
                _signal_session(pid, signal.SIGTERM, leader_only=True)
                await end
                raise
            out.seek(0)
            err.seek(0)
            return code, out.read().decode(errors="replace"), err.read().decode(errors="replace")

    async def launch(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        *,
        folder: Path | None = None,
    ) -> tuple[int, asyncio.Future[int]]:
        """Start a program in a session of its own, on no list: its process id and its exit code."""
        full = {**clean_environ(), **environ}
        if self._warm is not None and list(argv[:2]) == [sys.executable, "-m"]:
            where = None if folder is None else str(folder)
            started = await self._warm.start(argv[2], argv[3:], full, stdout, stderr, where)
            return started.pid, started.ended
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=full,
            cwd=folder,
            start_new_session=True,
        )
        return process.pid, asyncio.ensure_future(process.wait())

    async def wait_ready(
        self, running: RunningProgram, is_ready: Callable[[], Awaitable[bool]], limit_s: float
    ) -> None:
        """Poll until ready; a peer out of reach is not ready yet.

        Raises ProcessFailed, with the end of its log, if it ends or takes longer than `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            with contextlib.suppress(Unreachable):
                if await is_ready():
                    return
            if not running.is_alive:
                raise ProcessFailed(f"{running.name} ended while starting", log_end(running.log))
            await asyncio.sleep(_POLL_S)
        late = f"{running.name} was not ready within {limit_s:g} s"
        raise ProcessFailed(late, log_end(running.log))

    async def stop(self, name: str, *, grace_s: float = 8.0) -> None:
        """End a program and everything it started: SIGTERM, then SIGKILL after `grace_s`."""
        running = self.get(name)
        _signal_session(running.pid, signal.SIGTERM, leader_only=True)
        await self._wait_gone(running, grace_s)
        await self.kill(name)
        del self._running[name]
        self._save()

    async def kill(self, name: str) -> None:
        """SIGKILL a program and everything it started, as a power cut would. It stays on the list,
        dead.
        """
        running = self.get(name)
        _signal_session(running.pid, signal.SIGKILL)
        await self._wait_gone(running, 5.0)

    async def stop_all(self, *, grace_s: float = 8.0) -> None:
        """End everything, in the reverse order of its start, without leaving a process behind."""
        for running in self.running:
            if running.name != "anvil":
                _signal_session(running.pid, signal.SIGTERM, leader_only=True)
        others = [r for r in self.running if r.name != "anvil"]
        await asyncio.gather(*(self._wait_gone(r, grace_s) for r in others))
        for running in others:
            await self.stop(running.name, grace_s=0.0)
        for running in self.running:
            await self.stop(running.name, grace_s=grace_s)
        if self._warm is not None:
            await self._warm.close()
            self._warm = None
        self._file.unlink(missing_ok=True)

    async def _wait_gone(self, running: RunningProgram, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while running.is_alive and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        end = self._ends.get(running.pid)
        if end is not None and not running.is_alive:
            await end

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        entries = [
            {
                "name": r.name,
                "pid": r.pid,
                "log": str(r.log),
                "command": list(r.command),
                "environ": dict(r.environ),
            }
            for r in self.running
        ]
        self._file.write_text(json.dumps(entries, indent=1))


def clean_environ() -> dict[str, str]:
    """Our environment without settings of ours or of Foundry's: each home has its own."""
    ours = ("HEADRACE_", "ETH_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def log_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log; none where there is no log."""
    return log.read_text(errors="replace").splitlines()[-count:] if log.is_file() else []


def log_end(log: Path) -> str:
    """The last lines of a log, for an error message."""
    if not log.is_file():
        return "it wrote no log"
    text = log_lines(log, 12)
    return f"{log}: " + " | ".join(text) if text else f"{log} is empty"


def members_of_session(session: int) -> list[int]:
    """Processes of a session that still run, zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and stat[1] == session and stat[0] != "Z":
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, session) of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[3])


def _leader_state(pid: int) -> str | None:
    stat = _stat(pid)
    return stat[0] if stat else None


def _signal_session(leader: int, number: signal.Signals, *, leader_only: bool = False) -> None:
    for pid in [leader] if leader_only else members_of_session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
