"""How long does a person wait for `--help`?"""

from __future__ import annotations

import resource
import subprocess
import sys

from benchmarks.table import Row

REACH_S, TRIES = 0.7, 5
COMMANDS = (
    ("client.cli", "serve"),
    ("client.cli", "keys"),
    ("client.cli",),
    ("client.auditor_cli",),
    ("miner.cli",),
    ("matcher.cli",),
    ("devnet.cli",),
)
QUICK = {"TRIES": 1, "COMMANDS": COMMANDS[-1:]}


def _cpu_s(command: tuple[str, ...]) -> float:
    """Processor seconds of the fastest of a few: the time on a machine that does nothing else."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        argv = [sys.executable, "-m", *command, "--help"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(TRIES))


def rows() -> list[Row]:
    found = []
    for command in COMMANDS:
        took_s = _cpu_s(command)
        found.append(
            Row(
                f"{' '.join(command)} --help",
                f"<= {REACH_S} s",
                f"{took_s:.2f} s",
                "",
                "",
                took_s <= REACH_S,
            )
        )
    return found
