"""What a program leaves behind when it ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from core.chain import outbox
from core.chain.chain import PreparedTransaction
from core.chain.outbox import TransactionOutbox

ONE = "0x" + "1a" * 20
OTHER = "0x" + "2b" * 20


def prepared(nonce: int, sender: str = ONE, raw: str = "0x02") -> PreparedTransaction:
    return PreparedTransaction(f"call {nonce}", sender, nonce, f"0x{nonce:064x}{raw[2:]}", raw)


@pytest.fixture
def ended(tmp_path: Path) -> TransactionOutbox:
    """The outbox of a process that is no more."""
    box = TransactionOutbox(tmp_path / "state" / "outbox.sqlite")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    box._me = gone.pid, "12345"
    return box


def test_what_was_not_forgotten_is_left_in_the_order_of_nonces(
    ended: TransactionOutbox, tmp_path: Path
) -> None:
    for nonce in (3, 1, 2):
        ended.put(prepared(nonce))
    ended.put(prepared(2, raw="0x0203"))
    ended.put(prepared(9, OTHER))
    ended.forget(ONE, 1)
    ended.close()
    box = TransactionOutbox(tmp_path / "state" / "outbox.sqlite")
    assert [(p.nonce, p.raw) for p in box.left(ONE.upper().replace("0X", "0x"))] == [
        (2, "0x02"),
        (2, "0x0203"),
        (3, "0x02"),
    ]
    box.forget(ONE, 2)
    assert [p.nonce for p in box.left(ONE)] == [3]
    assert box.left(OTHER) == [prepared(9, OTHER)]


def test_what_a_program_that_runs_waits_for_is_its_own(
    ended: TransactionOutbox, tmp_path: Path
) -> None:
    running = TransactionOutbox(tmp_path / "state" / "outbox.sqlite")
    running.put(prepared(1))
    ended.put(prepared(2))
    assert [p.nonce for p in running.left(ONE)] == [2]


def test_a_number_that_another_process_has_now_is_not_that_of_the_one_that_ended(
    tmp_path: Path,
) -> None:
    box = TransactionOutbox(tmp_path / "outbox.sqlite")
    box._me = os.getpid(), "1"  # began when the machine did
    box.put(prepared(1))
    assert [p.nonce for p in box.left(ONE)] == [1]


def test_only_its_user_reads_it(tmp_path: Path) -> None:
    box = TransactionOutbox(tmp_path / "state" / "outbox.sqlite")
    assert box.left(ONE) == []
    box.close()
    assert not (tmp_path / "state").exists(), "nothing is made by looking"
    box.put(prepared(1))
    box.close()
    for path in (tmp_path / "state", tmp_path / "state" / "outbox.sqlite"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_where_a_system_tells_no_beginning_a_running_process_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "Path", lambda _: tmp_path / "nothing")
    assert outbox._began(os.getpid()) == "running"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert outbox._began(gone.pid) == ""
