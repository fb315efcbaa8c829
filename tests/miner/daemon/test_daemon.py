"""The real daemon in its own process: start, serve, outlive its chain, leave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from core.protocol.network_file import Parameters
from devnet.models.tiny_models import write_tiny_model
from devnet.processes import members_of_session
from tests.conftest import Anvil
from tests.miner.programs import Town

pytestmark = [pytest.mark.chain, pytest.mark.swarm]
LIMIT_S = 90.0


@pytest.fixture
def town(own_anvil: Callable[..., Anvil], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    """An owner with money, and a model of four layers."""
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    town = Town(own_anvil().rpc_url, home, Parameters())
    town.build(owner_usd=600, model=write_tiny_model(tmp_path / "model" / "tiny", layers=4))
    return town


@contextmanager
def daemon(town: Town, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`miner start` in a session of its own, of which nothing is left afterwards."""
    log = (town.home / "daemon.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "miner.cli", "start", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "HEADRACE_HOME": str(town.home)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in members_of_session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def until(
    town: Town,
    capsys: pytest.CaptureFixture[str],
    process: subprocess.Popen[bytes],
    done: Callable[[dict[str, Any]], bool],
) -> dict[str, Any]:
    """Poll `miner status` until it shows something. Fails with the daemon's log."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if town.miner("status", "--json") == 0:
            found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])["result"]
            if done(found):
                return found
        time.sleep(0.1)
    pytest.fail((town.home / "daemon.log").read_text()[-4000:])


def test_a_miner_serves_outlives_its_chain_and_leaves_cleanly(
    own_anvil: Callable[..., Anvil],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    anvil = own_anvil()
    town = Town(anvil.rpc_url, home, Parameters())
    town.build(owner_usd=600, model=write_tiny_model(tmp_path / "model" / "tiny", layers=4))

    assert town.miner("start", "--layers", "0:4", "--json") == 4, (
        "there is no operator's wallet yet"
    )
    assert town.miner("register", "--stake", "500usd", "--yes", "--json") == 0
    capsys.readouterr()
    with daemon(town, "--layers", "0:4") as process:
        status = until(town, capsys, process, lambda s: s["state"] == "SERVING")
        assert status["layers"] == "0-3"
        assert status["tauMsPerLayer"] > 0
        assert status["owner"] == town.owner.address
        assert status["endpoint"].startswith("127.0.0.1:")
        assert town.miner("start", "--layers", "0:4", "--json") == 2
        assert "running already" in capsys.readouterr().out
        anvil.stop()
        until(town, capsys, process, lambda s: not s["chainReachable"] and s["state"] == "SERVING")
        assert town.miner("stop", "--json") == 0
        assert process.wait(LIMIT_S) == 0
        assert members_of_session(process.pid) == []
    capsys.readouterr()
    assert town.miner("status", "--json") == 3
    assert town.miner("start", "--layers", "0:4", "--json") == 3, "the chain is still down"

    again = own_anvil(port=int(anvil.rpc_url.rpartition(":")[2]))
    assert again.rpc_url == anvil.rpc_url
    capsys.readouterr()
    assert town.miner("start", "--layers", "0:4", "--json") == 2
    assert "has no code there" in capsys.readouterr().out, "another chain behind the same address"


def test_a_signal_lets_accepted_work_finish_and_the_exit_is_clean(
    town: Town, capsys: pytest.CaptureFixture[str]
) -> None:
    assert town.miner("register", "--stake", "500usd", "--yes", "--json") == 0
    capsys.readouterr()
    ports = []
    # The chain says 200 MiB: a tenth more is nothing to warn of.
    for number, expected, limit in ((signal.SIGTERM, 0, "210MiB"), (signal.SIGINT, 130, "300MiB")):
        with daemon(town, "--layers", "1:3", "--memory-limit", limit) as process:
            status = until(town, capsys, process, lambda s: s["state"] == "SERVING")
            ports.append(status["endpoint"])
            process.send_signal(number)
            assert process.wait(LIMIT_S) == expected
            assert members_of_session(process.pid) == []
    assert ports[0] == ports[1], "jobs in progress name this endpoint, so a restart keeps it"
    log = (town.home / "daemon.log").read_text()
    assert "Traceback" not in log, log[-4000:]
    (warned,) = (line for line in log.splitlines() if "the chain says something else" in line)
    for words in ("cpu, 200 MiB", "cpu, 300 MiB", "miner update"):
        assert words in warned


def test_a_miner_that_hears_no_matcher_chooses_its_layers_itself(
    town: Town, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_MINER__ALONE_AFTER", "1s")
    assert town.miner("register", "--stake", "500usd", "--yes", "--json") == 0
    capsys.readouterr()
    with daemon(town) as process:
        status = until(town, capsys, process, lambda s: s["state"] == "SERVING")
        assert status["layers"] == "0-3", "it is the only one"
    assert "no matcher speaks" in (town.home / "daemon.log").read_text()
