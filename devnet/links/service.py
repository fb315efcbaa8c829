"""How do links run as a program of their own, and how does another program change them?

`python -m devnet.links.service FILE` reads {"links": {name: {"listen": host:port, "to":
host:port}}, "conditions": {…}}, and writes where its control port is into FILE. One JSON document
per line asks, one answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from core.protocol.errors import HeadraceError, Unreachable, UsageError
from core.protocol.whole_file import write_whole
from devnet.links.emulator import Emulator
from devnet.links.precise import precise_loop

_MOST_BYTES = 1 << 16
_TIMEOUT_S = 5.0
_NICE = -5


def write_plan(
    file: Path, links: dict[str, dict[str, str]], conditions: dict[str, Any] | None = None
) -> None:
    """What a service that is about to start reads: links by name, and what all are like."""
    _write(file, {"links": links, "conditions": conditions or {}})


def read_plan(file: Path) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    """Links and conditions of a plan; empty ones when there is none."""
    if not file.is_file():
        return {}, {}
    plan = json.loads(file.read_text())
    return plan["links"], plan["conditions"]


def ask(file: Path, **request: Any) -> Any:
    """The answer of the service that was started with this file. Raises Unreachable, UsageError."""
    try:
        control = json.loads(file.read_text()).get("control")
    except OSError:
        control = None
    if control is None:
        fix = "devnet up --latency-ms 64"
        raise Unreachable("no links run here", f"{file} names none", next_step=fix)
    host, _, port = control.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as stream:
            stream.sendall(json.dumps(request).encode() + b"\n")
            line = stream.makefile("rb").readline()
        answer = json.loads(line)
    except (OSError, ValueError) as error:
        raise Unreachable("the links do not answer", f"{control}: {error}") from None
    if "refused" in answer:
        what, why = answer["refused"]
        raise UsageError(what, why)
    return answer["answer"]


def perform(emulator: Emulator, request: dict[str, Any]) -> Any:
    """Do what a request asks. Raises UsageError for one that makes no sense."""
    do, name = request.get("do"), request.get("link")
    if do == "describe":
        return emulator.describe()
    if do == "change":
        emulator.change(name, request.get("way"), **_changes(request.get("changes")))
        return emulator.describe()
    if do == "reset":
        return emulator.reset(name)
    if do in ("cut", "mend"):
        return emulator.cut(name, is_cut=do == "cut")
    raise UsageError(f"'{do}' cannot be asked of links", "describe, change, reset, cut or mend")


def _changes(given: Any) -> dict[str, Any]:
    known = {"latency_ms": float, "jitter_ms": float, "bytes_per_s": float, "state": str}
    if not isinstance(given, dict) or set(given) - set(known):
        raise UsageError(f"{given} is no change", f"it may hold {', '.join(known)}")
    try:
        return {name: known[name](value) for name, value in given.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{given} is no change", str(error)) from None


def _write(file: Path, plan: dict[str, Any]) -> None:
    write_whole(file, (json.dumps(plan, indent=1) + "\n").encode())  # others may be reading it


async def _serve(plan: dict[str, Any], file: Path) -> None:
    emulator = Emulator()
    for name, link in plan["links"].items():
        host, _, port = link["listen"].rpartition(":")
        await emulator.add(name, link["to"], host=host, port=int(port))
    emulator.change(**_changes(plan["conditions"]))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            if not isinstance(request, dict):
                raise UsageError("a request is an object", f"this is {request}")
            said = {"answer": perform(emulator, request)}
        except HeadraceError as error:
            said = {"refused": [error.what, error.why]}
        except ValueError as error:  # also a line that is too long
            said = {"refused": ["a request is one line of JSON", str(error)]}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(said).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=_MOST_BYTES)
    port = server.sockets[0].getsockname()[1]
    _write(file, plan | {"control": f"127.0.0.1:{port}"})
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()
    await emulator.close()
    _write(file, plan)


def main() -> None:
    """Serve until told to stop."""
    # A late wake-up is a longer link; only root may ask for more.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        file = Path(sys.argv[1])
        runner.run(_serve(json.loads(file.read_text()), file))


if __name__ == "__main__":
    main()
