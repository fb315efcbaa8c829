"""One daemon per key and memory, and commands find it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.protocol.errors import ConfigError, UsageError
from core.runtime.folders import Folders
from core.runtime.settings import load
from miner.records.home import Home, RunningDaemon, operator_wallet
from miner.records.machine import copy_bandwidth_mb_s, memory_limit_bytes

NOTE = RunningDaemon(
    pid=os.getpid(), url="http://127.0.0.1:1", token="t", operator="0x", endpoint="h:1"
)


def test_a_second_daemon_with_the_same_memory_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "miner")
    assert not home.is_in_use
    with home.locked():
        assert home.is_in_use
        with pytest.raises(ConfigError, match="running already"), home.locked():
            pass
    assert not home.is_in_use
    with home.locked():
        pass


def test_the_note_is_private_and_ends_with_its_process(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.read_running() is None
    home.write_running(NOTE)
    assert stat.S_IMODE(home.running_file.stat().st_mode) == 0o600
    assert home.read_running() == NOTE
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    home.write_running(RunningDaemon(gone.pid, "http://127.0.0.1:1", "t", "0x", "h:1"))
    assert home.read_running() is None
    home.running_file.write_text("{broken")
    assert home.read_running() is None
    home.forget_running()
    home.forget_running()


def test_the_operators_wallet_is_named_or_derived(tmp_path: Path) -> None:
    folders = Folders.at(tmp_path)

    def settings(**flags: str):  # type: ignore[no-untyped-def]
        dotted = {key.replace("__", "."): value for key, value in flags.items()}
        return load(flags=dotted, environ={}, folders=folders)

    assert operator_wallet(settings(wallet__name="alice")) == "alice-operator"
    assert operator_wallet(settings(wallet__name="alice", miner__operator="box")) == "box"
    with pytest.raises(UsageError, match="no operator wallet"):
        operator_wallet(settings())
    home = Home.of(settings(wallet__name="alice"))
    assert home.folder == folders.state / "miner" / "devnet-alice-operator"


def test_memory_is_what_the_owner_allows_or_half_of_the_machine(tmp_path: Path) -> None:
    folders = Folders.at(tmp_path)
    said = load(flags={"miner.memory_limit": "300MiB"}, environ={}, folders=folders)
    assert memory_limit_bytes(said) == 300 * 2**20
    assert memory_limit_bytes(load(environ={}, folders=folders)) > 2**26
    assert copy_bandwidth_mb_s() > 50


def test_help_comes_quickly_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, miner.cli as cli; cli.main(['--help']);"
        "heavy = {'torch', 'transformers', 'web3', 'hivemind', 'numpy', 'pydantic'} & "
        "set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "register" in done.stdout
    assert time.perf_counter() - started < 30
