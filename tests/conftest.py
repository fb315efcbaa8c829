"""What all tests share: known keys, a network's domain, free ports and a real local chain."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from core.keys.signer import DEVNET_PHRASE, Signer
from core.protocol.signing import Domain
from devnet.anvil import old_states_in
from tests.accounts import devnet_accounts

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

ROOT = Path(__file__).resolve().parents[1]
ANVIL_PACKAGE = "@foundry-rs/anvil-linux-amd64/bin/anvil"
CHAIN_ID = 31337
START_TIMEOUT_S = 60.0
SWARM = "tests/swarm/"
#: What takes minutes, then what takes tens of seconds; what is not here follows.
LONGEST_FIRST = (
    SWARM,
    "tests/core/engine/",
    "tests/game/",
    "tests/twins/",
    "tests/api/",
    "tests/benchmarks/",
    "tests/docs/",
    "tests/browser/",
    "tests/failover/",
    "tests/miner/",
    "tests/client/",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all of a file, and one all of `tests/swarm`.

    So what a file's tests share is made once, and devnets run one at a time. The mark `xdist_group`
    cannot say so: pytest 9.2 keeps it from xdist 3.8, which then spreads the tests.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return SWARM if file.startswith(SWARM) else file

    config.option.loadscopereorder = False  # the order is that of `LONGEST_FIRST`
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers begin with what takes longest: all wait for a long file that comes last."""

    def rank(item: pytest.Item) -> int:
        ranks = (i for i, start in enumerate(LONGEST_FIRST) if item.nodeid.startswith(start))
        return next(ranks, len(LONGEST_FIRST))

    if hasattr(config, "workerinput"):
        items.sort(key=rank)


@pytest.fixture(autouse=True)
def follows_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every JSON document that a command prints in a test is what its published schema says."""
    from core.runtime.commands import cli, console

    print_json = console.print_json

    def checked(document: Any) -> None:
        from tests.schemas import check_document

        check_document(document)
        print_json(document)

    for module in (cli, console):
        monkeypatch.setattr(module, "print_json", checked)


@pytest.fixture(scope="session")
def signers() -> list[Signer]:
    """The ten accounts of Anvil's public phrase; each has 10 000 ETH on a fresh node."""
    return devnet_accounts(10, chain_id=CHAIN_ID)


@pytest.fixture(scope="session")
def domain() -> Domain:
    return Domain(CHAIN_ID, "0x5FbDB2315678afecb367f032d93F642f64180aa3")


def take_free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    return take_free_port


@dataclass(frozen=True)
class Anvil:
    """A running node: where it listens, and its process, which a test may kill."""

    rpc_url: str
    process: subprocess.Popen[bytes]
    states: Path

    def stop(self) -> None:
        """End the node and remove what it wrote. Safe to call twice."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.states, ignore_errors=True)


def start_anvil(*options: str, port: int | None = None) -> Anvil:
    """A fresh chain on a free port, mining each transaction at once unless `options` say otherwise.

    The binary itself and not npm's wrapper: a killed wrapper would leave the node running.
    """
    binary = ROOT / "node_modules" / ANVIL_PACKAGE
    if not binary.exists():
        pytest.fail(f"{binary} is missing: run `npm ci`")
    port = port or take_free_port()
    states = Path(tempfile.mkdtemp(prefix="headrace-anvil-"))
    kept = () if "--prune-history" in options else old_states_in(states)
    always = ("--silent", "--mnemonic", DEVNET_PHRASE, *kept)
    process = subprocess.Popen(
        [binary, "--port", str(port), *always, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    anvil = Anvil(f"http://127.0.0.1:{port}", process, states)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(anvil.rpc_url):
        if process.poll() is not None or time.monotonic() > deadline:
            anvil.stop()
            pytest.fail(f"anvil did not start (exit status {process.returncode})")
        time.sleep(0.05)
    return anvil


def _answers(rpc_url: str) -> bool:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}).encode()
    request = urllib.request.Request(rpc_url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=1.0) as answer:
            return b"result" in answer.read()
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="session")
def anvil() -> Iterator[Anvil]:
    """One node per test process. A test uses what it deploys, or snapshots and reverts."""
    node = start_anvil()
    yield node
    node.stop()


@pytest.fixture
def own_anvil() -> Iterator[Callable[..., Anvil]]:
    """`start_anvil` for a test that kills, reverts or configures its node; ended with the test."""
    nodes: list[Anvil] = []

    def start(*options: str, port: int | None = None) -> Anvil:
        nodes.append(start_anvil(*options, port=port))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()
