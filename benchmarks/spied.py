"""What takes the time of a part whose rows are not reached? It runs once more under py-spy."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

LOOKS_PER_S = 20
PROCESSES, FUNCTIONS = 6, 8


def profile(package: str, part: str) -> list[str]:
    """The processes of a part that computed most and their functions, or why they are not known."""
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        return ["no profile: py-spy is not installed (`pip install py-spy`)"]
    with tempfile.TemporaryDirectory(prefix="headrace-spied-") as folder:
        found = Path(folder) / "stacks"
        ran = subprocess.run(
            [
                spy,
                "record",
                "--subprocesses",
                "--threads",
                "--nolineno",
                "--nonblocking",
                "--rate",
                str(LOOKS_PER_S),
                "--format",
                "raw",
                "--output",
                found,
                "--",
                sys.executable,
                "-m",
                package,
                "--only",
                part,
                "--no-profile",
            ],
            capture_output=True,
            text=True,
        )
        if not found.exists():
            last = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return [f"no profile: py-spy ended with {ran.returncode}: {last}"]
        return summary(found.read_text())


def summary(stacks: str) -> list[str]:
    """Of collapsed stacks, seconds by process and by innermost function.

    A line is `process;…;process;thread;function;…;function looks`, parents first; a command in it
    may have line breaks.
    """
    by_process: dict[str, Counter[str]] = defaultdict(Counter)
    for stack, looks in re.findall(r"^(process \d+:.*?) (\d+)$", stacks, re.MULTILINE | re.DOTALL):
        names = stack.split(";")
        process = next(name for name in reversed(names) if name.startswith("process "))
        by_process[_program(process)][names[-1]] += int(looks)
    total = sum(functions.total() for functions in by_process.values())
    busiest = sorted(by_process.items(), key=lambda found: -found[1].total())[:PROCESSES]
    lines = []
    for program, functions in busiest:
        seconds = functions.total() / LOOKS_PER_S
        lines.append(f"{program}: {seconds:.0f} s, {functions.total() / total:.0%} of all")
        lines += [
            f"  {looks / functions.total():5.1%}  {name}"
            for name, looks in functions.most_common(FUNCTIONS)
        ]
    return lines or ["no profile: py-spy saw no process at work"]


def _program(process: str) -> str:
    """`process 12 "python -m benchmarks.x"` without the way to the interpreter."""
    head, _, command = process.partition(":")
    words = command.strip('"').split()
    return f"{head} ({' '.join([Path(words[0]).name, *words[1:4]])})" if words else head
