"""Is a private file private, and does making it leave a database in use alone?"""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

from core.runtime.folders import make_private_file

VISITOR = """
import sqlite3, sys
visitor = sqlite3.connect(sys.argv[1])
visitor.execute("INSERT INTO t VALUES ('visitor')")
visitor.commit()
visitor.close()
"""


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
