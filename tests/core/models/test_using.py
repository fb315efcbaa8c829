"""What a program of this machine works with is not removed under it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.engine.weights.store import model_path
from core.models.having import ModelHere
from core.models.using import unused, use
from core.protocol.errors import ModelInUse
from miner import cli as miner

#: A daemon as far as models are concerned.
DAEMON = """
import sys, time
from pathlib import Path
from core.models.using import use
use(Path(sys.argv[1]))
print("has it", flush=True)
time.sleep(600)
"""


def rm_local(capsys: pytest.CaptureFixture) -> dict[str, Any]:
    miner.main(["models", "rm-local", "tiny", "--yes", "--json"])
    said = json.loads(capsys.readouterr().out)
    found: dict[str, Any] = said["result"] if said["ok"] else said["error"]
    return found


def test_rm_local_leaves_alone_what_a_running_program_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    folder = model_path("tiny", tmp_path / "cache")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    use(folder)  # ours does not count: it is we who are asked to remove it
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert daemon.stdout is not None and daemon.stdout.readline() == "has it\n"
        refused = rm_local(capsys)
        assert refused["code"] == ModelInUse.code
        assert refused["state"] == "nothing was deleted" and "miner stop" in refused["next"]
        assert (folder / "config.json").is_file()
    finally:
        daemon.kill()
        daemon.wait()
    assert rm_local(capsys)["freed_bytes"] > 0
    assert not folder.exists()
    assert rm_local(capsys)["code"] == "E-MODEL-03"


def test_a_folder_that_came_back_is_used_anew(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for _ in range(2):
        folder.mkdir()
        use(folder)
        use(folder)
        with unused(folder, "model"):
            folder.rmdir()


def test_whoever_has_a_model_uses_its_folder(tmp_path: Path) -> None:
    ModelHere(tmp_path, None, ())
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
