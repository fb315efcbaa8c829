"""How long is it from `devnet up` to the first answer, once `make ready` is through?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import Row

REACH_S = 60.0
TRIES = 3
QUICK = {"TRIES": 1}
UP = ("devnet.cli", "up", "--jurors", "0", "--no-dashboard", "--json")
ASK = ("client.cli", "chat", "Say hello.", "--max-tokens", "8", "--json")


def rows() -> list[Row]:
    """A new network each time, in a folder of its own; the slowest counts."""
    waits = [_wait() for _ in range(TRIES)]
    up_s, answered_s = max(waits, key=lambda wait: wait[1])
    return [
        Row(
            f"`devnet up` to the first answer, the slowest of {TRIES}",
            f"<= {REACH_S:g} s",
            f"{answered_s:.0f} s, {up_s:.0f} of them until the network was up",
            "",
            "",
            answered_s <= REACH_S,
        )
    ]


def _wait() -> tuple[float, float]:
    """Seconds until `devnet up` returned, and until the first answer was there."""
    with tempfile.TemporaryDirectory(prefix="headrace-first-") as folder:
        began = time.monotonic()
        try:
            _run(UP, folder)
            up_s = time.monotonic() - began
            home = Path(folder) / "state/devnet/homes/requester-1"
            said = _run(ASK, str(home))
            answered_s = time.monotonic() - began
            assert json.loads(said.splitlines()[-1])["ok"]
            return up_s, answered_s
        finally:
            _run(("devnet.cli", "down", "--purge"), folder)


def _run(command: tuple[str, ...], home: str) -> str:
    environ = {**os.environ, "HEADRACE_HOME": home, "HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, "-m", *command]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-600:]}")
    return done.stdout
