"""Can a program of its own keep links, and another one change them?"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.protocol.errors import Unreachable, UsageError
from devnet.links.service import ask, read_plan, write_plan
from devnet.ports import free_ports
from tests.devnet.links.peers import Sink, dial, read, sink


@pytest.fixture
def far() -> Iterator[Sink]:
    with sink(reply=True) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path, far: Sink) -> Iterator[Path]:
    """A running service with one link, from its file."""
    file = tmp_path / "links.json"
    (port,) = free_ports(1)
    write_plan(
        file,
        {"miner-1": {"listen": f"127.0.0.1:{port}", "to": far.endpoint}},
        {"latency_ms": 10.0, "jitter_ms": 0.0, "bytes_per_s": 0.0, "state": "open"},
    )
    process = subprocess.Popen([sys.executable, "-m", "devnet.links.service", str(file)])
    try:
        deadline = time.monotonic() + 30
        while "control" not in file.read_text():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        yield file
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert "control" not in file.read_text()


def _listening(file: Path) -> str:
    return read_plan(file)[0]["miner-1"]["listen"]


def test_links_of_a_service_are_as_its_plan_says_and_change_while_they_carry(file: Path) -> None:
    with dial(_listening(file)) as connection:
        times = []
        for latency_ms in (10, 50, 0):
            ask(file, do="change", link="miner-1", changes={"latency_ms": latency_ms})
            started = time.monotonic()
            connection.sendall(b"x")
            assert read(connection, 1) == b"x"
            times.append(time.monotonic() - started)
    assert times[0] >= 0.02 and times[1] >= 0.1 and times[2] < times[1]


def test_a_service_shows_and_breaks_links(file: Path) -> None:
    with dial(_listening(file)) as connection:
        connection.sendall(b"x")
        read(connection, 1)
        (link,) = ask(file, do="describe")
        assert link["link"] == "miner-1" and link["connections"] == 1
        assert link["in"]["latencyMs"] == 10 and link["in"]["carriedBytes"] == 1
        assert ask(file, do="reset", link=None) == 1
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert ask(file, do="cut", link="miner-1") == 0
    assert ask(file, do="describe")[0]["cut"]
    ask(file, do="mend", link="miner-1")
    assert not ask(file, do="describe")[0]["cut"]


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "explode"},
        {"do": "reset", "link": "miner-9"},
        {"do": "change", "changes": {"latency_ms": -4}},
        {"do": "change", "changes": {"latency_ms": "slow"}},
        {"do": "change", "changes": {"colour": 1}},
        {"do": "change", "way": "up", "changes": {}},
        {"do": "change"},
    ],
    ids=lambda request: str(sorted(request.values(), key=str)),
)
def test_what_makes_no_sense_is_answered_with_why(file: Path, request_: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ask(file, **request_)
    assert ask(file, do="describe")[0]["in"]["latencyMs"] == 10


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\n", b"[1]\n", b"\n", b"x" * 100_000 + b"\n"])
def test_a_line_that_is_no_request_is_refused_and_the_service_lives(
    file: Path, line: bytes
) -> None:
    host, _, port = json.loads(file.read_text())["control"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as stream:
        stream.sendall(line)
        assert b"refused" in stream.makefile("rb").readline()
    assert ask(file, do="describe")


def test_without_a_service_there_is_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        ask(tmp_path / "none.json", do="describe")
    (port,) = free_ports(1)
    stale = tmp_path / "stale.json"
    stale.write_text(json.dumps({"links": {}, "conditions": {}, "control": f"127.0.0.1:{port}"}))
    with pytest.raises(Unreachable):
        ask(stale, do="describe")
