"""A submission that goes on alone is the same command, is given its password through a pipe, and is
found by its lock.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.commands.ask import detach
from client.context import open_store
from client.records.keeper import keepers_of, living
from core.protocol import ids
from core.protocol.errors import HeadraceError, NoCapacity
from core.protocol.types import JobState
from core.runtime.commands.results import plain
from tests.client.commands.ask import test_job_follow
from tests.client.commands.ask.test_job_follow import desk as followed  # noqa: F401  - a fixture
from tests.client.commands.ask.test_job_follow import run_of
from tests.client.commands.ask.test_job_list import Desk
from tests.clocks import ManualClock
from tests.town.orders import NOW_S

#: Keeps what its name says until it is interrupted, and takes a moment to go. Who starts it in the
#: background of a script has it ignore interrupts; like every program of ours it does not.
KEEPER = """
import signal, sys, time
from pathlib import Path
from client.records.keeper import Keeper
signal.signal(signal.SIGINT, signal.default_int_handler)
keeper = Keeper(Path(sys.argv[1]))
print(keeper.name, flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    keeper.close()
"""


def test_the_same_command_runs_to_its_end_and_asks_nothing() -> None:
    typed = ("client", "--wallet", "alice", "submit", "a.jsonl", "--detach", "--max-cost", "9usd")
    argv = detach._argv(typed, "0.5usd")
    assert argv[:4] == [sys.executable, "-P", "-m", "client.cli"]
    assert argv[4:11] == list(typed[1:])
    assert argv[11:] == [
        "--wait",
        "--yes",
        "--json",
        "--password-file",
        "/dev/stdin",
        "--max-cost",
        "0.5usd",
    ]
    *_, last = detach._argv(("client", "submit", "--detach", "--", "-odd.jsonl"), "1usd")
    assert last == "-odd.jsonl"


def test_nobody_else_can_read_the_password_or_what_is_said(tmp_path: Path) -> None:
    code = "import sys; word = sys.stdin.read(); print(len(word)); print('log', file=sys.stderr)"
    said, log = tmp_path / "a.jsonl", tmp_path / "a.log"
    child = detach._start([sys.executable, "-c", code], "correct horse", said, log)
    assert child.wait(30) == 0
    assert (said.read_text(), log.read_text()) == ("13\n", "log\n")
    assert {stat.S_IMODE(file.stat().st_mode) for file in (said, log)} == {0o600}
    assert "correct horse" not in " ".join(map(str, child.args))  # type: ignore[arg-type]


def test_what_a_submission_failed_with_is_its_parents_error(tmp_path: Path) -> None:
    said, log = tmp_path / "a.jsonl", tmp_path / "a.log"
    error = NoCapacity("nobody is there", "at this price")
    said.write_text(json.dumps({"ok": False, "error": error.to_dict()}) + "\n")
    with pytest.raises(NoCapacity, match="nobody is there"):
        detach._ended(said, log)
    said.write_text("")
    with pytest.raises(HeadraceError, match="without a word"):
        detach._ended(said, log)


@pytest.fixture
def kept(followed: Desk) -> Iterator[tuple[Desk, subprocess.Popen[str]]]:  # noqa: F811
    """A job of a submission called `nightly` that another program sees to."""
    folder = keepers_of(followed.settings)
    argv = [sys.executable, "-c", KEEPER, str(folder)]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    keeper = program.stdout.readline().strip()
    store = open_store(followed.settings)
    store.add_submission("sub", "nightly", keeper)
    store.add_job("sub", followed.job, followed.batch, NOW_S)
    store.close()
    yield followed, program
    program.kill()
    program.wait()
    program.stdout.close()


async def test_a_job_of_a_running_program_is_named_and_ended_through_it(
    kept: tuple[Desk, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, program = kept
    from client.commands.ask.job_list import list_jobs

    (line,) = plain(list_jobs(desk.settings))
    assert (line["name"], line["running"]) == ("nightly", True)
    assert detach._jobs_of(desk.settings, program.pid) == [desk.job.job_id]
    assert detach._jobs_of(desk.settings, program.pid + 1) == []
    monkeypatch.setattr(test_job_follow.job_follow, "POLL_S", 0.05)
    monkeypatch.setattr(test_job_follow.job_follow, "SETTLED_WITHIN_S", 0.1)
    order = desk.job.signed.order
    desk.chain.clock = ManualClock(order.deadline - 60)
    desk.on_chain.state = JobState.MATCHED
    began = time.monotonic()
    ended = plain(await test_job_follow.job_follow.cancel_job(run_of(desk), desk.typed))
    assert ended["on_chain"] == "matched"
    assert time.monotonic() - began > 0.25, "it is waited for, as it pays first"
    assert program.wait(10) == 0
    (line,) = plain(list_jobs(desk.settings))
    assert line["running"] is False
    assert living(keepers_of(desk.settings), "nobody") is None
    assert ids.short(ids.Kind.JOB, desk.job.job_id) == desk.typed
