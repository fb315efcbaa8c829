"""Is a private file private, and does making it leave a database in use alone?"""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from core.runtime.folders import SocketFolder, make_private_file

VISITOR = """
import sqlite3, sys
visitor = sqlite3.connect(sys.argv[1])
visitor.execute("INSERT INTO t VALUES ('visitor')")
visitor.commit()
visitor.close()
"""


@pytest.mark.parametrize("name", ["t", "a-folder-with-a-name-that-leaves-no-room-for-a-socket" * 2])
def test_sockets_have_a_private_folder_in_which_they_can_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        root = (Path(short) if name == "t" else tmp_path) / name
        root.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        made = SocketFolder("swarm")
        folder = made.path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder.parent == root) == (name == "t")
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(folder / ("p2pclient-" + "x" * 16 + ".sock")))
        made.remove()
        assert not folder.exists()
        made.remove()


HOLDER = """
import os, sys, tempfile
from core.runtime.folders import SocketFolder
tempfile.tempdir = sys.argv[1]
folder = SocketFolder("p2p")
(folder.path / "socket").touch()
if os.fork():
    print(folder.path, flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_that_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        monkeypatch.setattr(tempfile, "tempdir", root)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdin is not None and holder.stdout is not None
        held = Path(holder.stdout.readline().decode().strip())
        other, fresh = Path(root) / "headrace-swarm-x", Path(root) / "headrace-p2p-x"
        for folder in (other, fresh):
            folder.mkdir()
        for folder in (held, other):
            os.utime(folder, (0, 0))
        SocketFolder("p2p").remove()
        assert (held / "socket").exists() and other.exists() and fresh.exists()
        holder.kill()
        holder.wait()
        os.utime(held, (0, 0))
        SocketFolder("p2p").remove()
        assert (held / "socket").exists(), "its fork holds it"
        holder.stdin.close()  # the fork reads its end
        holder.stdout.read()  # until it is gone
        SocketFolder("p2p").remove()
        assert not held.exists() and other.exists() and fresh.exists()
        holder.stdout.close()


def test_a_new_file_and_an_opened_up_one_are_the_owner_s_alone(tmp_path: Path) -> None:
    path = make_private_file(tmp_path / "new" / "file")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("kept")
    path.chmod(0o644)
    assert make_private_file(path).read_text() == "kept"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_database_that_this_process_has_open_keeps_its_log_when_it_is_made_again(
    tmp_path: Path,
) -> None:
    path = make_private_file(tmp_path / "used.sqlite")
    ours = sqlite3.connect(path, isolation_level=None)
    ours.execute("PRAGMA journal_mode=WAL")
    ours.execute("CREATE TABLE t (who TEXT)")
    make_private_file(path)
    for _ in range(2):
        subprocess.run([sys.executable, "-c", VISITOR, str(path)], check=True, timeout=60)
        assert path.with_name("used.sqlite-wal").exists(), "a visitor took it for left behind"
        ours.execute("INSERT INTO t VALUES ('ours')")
    assert ours.execute("SELECT count(*) FROM t").fetchone() == (4,)
    ours.close()
