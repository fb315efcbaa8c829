"""The toy gateway in a process of its own, which a test kills in the middle of its work."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.conftest import ROOT

START_WITHIN_S = 60.0


@dataclass
class Killable:
    """A gateway over the folder of a `World` that does not run meanwhile."""

    process: subprocess.Popen[bytes]
    url: str

    def kill(self) -> None:
        """SIGKILL: nothing is settled, written or told any more."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def killable(folder: Path, port: int, **speeds: float) -> Iterator[Killable]:
    """Start it and wait until it answers; it is gone afterwards."""
    command = [sys.executable, "-m", "tests.client.gateway.killable", str(folder), str(port)]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in speeds.items()]
    process = subprocess.Popen(command, cwd=ROOT)
    running = Killable(process, f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            try:
                httpx2.get(f"{running.url}/health", timeout=2.0)
                break
            except httpx2.HTTPError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield running
    finally:
        running.kill()


def main() -> None:
    from tests.client.gateway.world import World

    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("port", type=int)
    for speed in ("token-s", "first-s", "line-s"):
        asked.add_argument(f"--{speed}", type=float, default=0.0)
    given = asked.parse_args()
    world = World(given.folder, port=given.port)
    world.answerer.token_s, world.answerer.first_s = given.token_s, given.first_s
    world.offline.line_s = given.line_s
    world.start()
    signal.pause()


if __name__ == "__main__":
    main()
