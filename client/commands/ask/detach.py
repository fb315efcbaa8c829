"""`client submit --detach`: how does a submission go on without the terminal that began it?

The same command runs once more, as a program of its own that no terminal can end. Its answers,
receipts and payments are in the same records as any submission's, and its lock is a keeper's, so
`client jobs` follows, fetches and ends it like every other one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.commands.ask.job_list import keeper_pid
from client.context import open_store
from core.protocol import ids
from core.protocol.errors import HeadraceError, error_from
from core.runtime.commands.cli import as_typed
from core.runtime.commands.results import Result
from core.runtime.folders import make_private

if TYPE_CHECKING:
    from core.runtime.commands.console import Run
    from core.runtime.settings import Settings

LOOK_AGAIN_S = 0.2
#: A pipe: neither a command line nor an environment that others could read.
PASSWORD_FROM = "/dev/stdin"


class Detached(Result, frozen=True):
    """`submit --detach`: who goes on with it, and how to follow."""

    jobs: list[str]
    job_ids: list[str]
    pid: int
    log: str
    next: str


async def go_on_alone(run: Run, password: str, most: str, orders: int) -> Detached:
    """Have another program submit; return once it has as many orders, or once it has ended.

    Each order is open on chain and on record. The program locks no more than `most`. Raises what it
    failed with. When this one is interrupted before that, the other is interrupted too.
    """
    folder = make_private(run.folders.state / "submissions")
    said = folder / f"{os.urandom(6).hex()}.jsonl"
    log = said.with_suffix(".log")
    child = _start(_argv(as_typed(), most), password, said, log)
    try:
        while child.poll() is None:
            jobs = _jobs_of(run.settings, child.pid)
            if len(jobs) >= orders:
                short = [ids.short(ids.Kind.JOB, job) for job in jobs]
                return _told(short, [ids.full(ids.Kind.JOB, job) for job in jobs], child.pid, log)
            await asyncio.sleep(LOOK_AGAIN_S)
    except asyncio.CancelledError:
        child.send_signal(signal.SIGINT)
        raise
    result = _ended(said, log)
    return _told(result["jobs"], result["job_ids"], child.pid, log)


def _argv(typed: Sequence[str], most: str) -> list[str]:
    """The typed command, to its end and asking nothing. Of repeated flags the last one counts."""
    ours = ["--wait", "--yes", "--json", "--password-file", PASSWORD_FROM, "--max-cost", most]
    arguments = list(typed[1:])
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return [sys.executable, "-P", "-m", "client.cli", *arguments[:at], *ours, *arguments[at:]]


def _start(argv: Sequence[str], password: str, said: Path, log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own; what it prints goes into files that are the owner's alone."""

    def private(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    out, err = private(said), private(log)
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
        )
    finally:
        os.close(out)
        os.close(err)
    assert child.stdin is not None
    with child.stdin as pipe:
        pipe.write(password.encode())
    return child


def _jobs_of(settings: Settings, pid: int) -> list[str]:
    """Jobs whose submission this program sees to."""
    with closing(open_store(settings)) as store:
        jobs = store.jobs()
        theirs = {
            name: keeper_pid(settings, store.submission(name))
            for name in {job.submission for job in jobs}
        }
    return [job.job_id for job in jobs if theirs[job.submission] == pid]


def _ended(said: Path, log: Path) -> dict[str, Any]:
    """The result of a submission that is over. Raises its error."""
    documents = [json.loads(line) for line in said.read_text().splitlines()]
    for document in documents:
        if not document["ok"]:
            raise error_from(document["error"], HeadraceError)
    if not documents:
        raise HeadraceError("the submission ended without a word", f"what it logged is in {log}")
    return dict(documents[0]["result"])


def _told(jobs: Sequence[str], job_ids: Sequence[str], pid: int, log: Path) -> Detached:
    first = jobs[0]
    return Detached(
        jobs=list(jobs),
        job_ids=list(job_ids),
        pid=pid,
        log=str(log),
        next=f"client jobs wait {first}; client jobs fetch {first}; client jobs cancel {first}",
    )
