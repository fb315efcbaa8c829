"""`devnet status` says who runs and which layers each machine holds; `devnet logs` shows and
follows them all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from core.chain.rpc import RpcChain
from core.protocol.errors import HeadraceError, Unreachable
from core.runtime.commands.console import GlobalOptions, Run
from core.runtime.folders import Folders
from devnet import lifecycle
from devnet.accounts import signer_of
from devnet.fleets import DevnetFleet
from devnet.layout import DevnetFolders
from devnet.network import HETEROGENEOUS, Devnet, MinerProfile
from devnet.processes import Processes
from devnet.results import AddedLine

MINER: dict[str, Any] = {
    "owner": signer_of("miner-1").address.lower(),
    "layers": [0, 14],
    "state": "SERVING",
    "alive": True,
    "endpoint": "127.0.0.1:4001",
}
SLEEP = ["/bin/sh", "-c", "sleep 600"]


@pytest.fixture
def matcher() -> Iterator[str]:
    """Somebody who has seen one machine."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"miners": [MINER]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def layout(
    matcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DevnetFolders]:
    """A devnet of sleepers."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    layout = DevnetFolders.default()
    layout.root.mkdir(parents=True)
    network = {
        "name": "devnet",
        "chain_id": 31337,
        "rpc_url": "http://127.0.0.1:1",
        "deploy_block": 0,
        "contracts": {"TaskRegistry": "0x" + "11" * 20},
        "models": {"tiny": "0x" + "12" * 32},
        "matcher_url": matcher,
    }
    layout.network_file.write_text(json.dumps(network))
    processes = Processes(layout.processes_file, layout.logs)
    for name in ("matcher-1", "miner-1", "miner-2"):
        await processes.start(name, SLEEP)
    await processes.start("miner-3", ["/bin/sh", "-c", "echo gone"])
    yield layout
    await processes.stop_all()


async def test_each_program_is_there_with_what_it_does(layout: DevnetFolders, matcher: str) -> None:
    processes = Processes.load(layout.processes_file, layout.logs)
    frozen = processes.get("miner-2")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            while not (frozen.is_frozen and not processes.get("miner-3").is_alive):
                await asyncio.sleep(0.05)
        rows = {row.program: row for row in await lifecycle.describe()}
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    shown = {name: (row.state, row.layers, row.at) for name, row in rows.items()}
    assert shown == {
        "matcher-1": ("running", "", matcher),
        "miner-1": ("serving", "0-13", "127.0.0.1:4001"),
        "miner-2": ("frozen", "", ""),
        "miner-3": ("dead", "", ""),
    }


async def test_what_was_killed_is_dead_until_it_is_started_again_as_it_was(
    layout: DevnetFolders,
) -> None:
    await lifecycle.kill_program("matcher-1")
    rows = {row.program: row for row in await lifecycle.describe()}
    assert rows["matcher-1"].state == "dead" and rows["miner-1"].state == "serving"
    assert (await lifecycle.start_again("matcher-1")).restarted == "matcher-1"
    rows = {row.program: row for row in await lifecycle.describe()}
    assert rows["matcher-1"].state == "running"
    again = Processes.load(layout.processes_file, layout.logs).get("matcher-1")
    assert list(again.command) == SLEEP
    with pytest.raises(Unreachable, match="no program 'nobody'"):
        await lifecycle.start_again("nobody")


async def test_a_slashed_machine_is_jailed_until_its_time_is_over(
    layout: DevnetFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def now(chain: RpcChain) -> int:
        return 1000

    async def read(chain: RpcChain, contract: str, function: str, owner: str) -> Any:
        assert (contract, function) == ("MinerRegistry", "minerOf")
        return {"jailUntil": 1001 if owner == signer_of("miner-1").address else 1000}

    monkeypatch.setattr(RpcChain, "now", now)
    monkeypatch.setattr(RpcChain, "read", read)
    rows = {row.program: row.state for row in await lifecycle.describe()}
    assert rows["miner-1"] == "jailed" and rows["miner-2"] == "not seen by the matcher"


async def test_a_machine_that_no_matcher_sees_is_said_to_be_unseen(layout: DevnetFolders) -> None:
    document = json.loads(layout.network_file.read_text()) | {"matcher_url": "http://127.0.0.1:1"}
    layout.network_file.write_text(json.dumps(document))
    rows = {row.program: row for row in await lifecycle.describe()}
    assert rows["miner-1"].state == "not seen by the matcher"
    assert rows["miner-1"].layers == "" and rows["matcher-1"].state == "running"


async def test_all_logs_are_shown_and_followed_with_the_programs_names(
    layout: DevnetFolders, tmp_path: Path
) -> None:
    processes = Processes.load(layout.processes_file, layout.logs)
    go = tmp_path / "go"
    script = f"echo 'a | b'; while [ ! -e {go} ]; do sleep 0.05; done; echo one; printf two"
    talker = await processes.start("talker", ["/bin/sh", "-c", script])
    for other in ("matcher-1", "miner-1", "miner-2"):
        await processes.kill(other)
    said: list[AddedLine] = []
    async with asyncio.timeout(60):
        while lifecycle.read_logs("talker")[0].lines != ["a | b"]:
            await asyncio.sleep(0.05)
        following = asyncio.create_task(lifecycle.follow_log(None, said.append))
        await asyncio.sleep(0)  # it stands at the ends of the logs now
        go.touch()
        await following
    assert not talker.is_alive
    assert said == [AddedLine("talker", "one"), AddedLine("talker", "two")]
    shown = {one.program: one for one in lifecycle.read_logs(None)}
    assert shown.keys() >= {"miner-3", "talker"} and "gone" in str(shown)


async def test_a_fault_may_wait_but_not_for_a_program_that_is_not_there(
    layout: DevnetFolders,
) -> None:
    run = Run("devnet", "chaos kill", GlobalOptions(quiet=True), folders=Folders.at(layout.root))
    await lifecycle.in_a_moment(run, "miner-1", None)
    await lifecycle.in_a_moment(run, "miner-1", "0s")
    with pytest.raises(Unreachable, match="no program 'miner-9'"):
        await lifecycle.in_a_moment(run, "miner-9", "1h")


@pytest.fixture
def restarted(layout: DevnetFolders, monkeypatch: pytest.MonkeyPatch) -> list[MinerProfile]:
    """How miners were started again, in a devnet of a usual fleet."""
    profiles: list[MinerProfile] = []

    async def start_miner(net: Devnet, party: str, profile: MinerProfile) -> None:
        profiles.append(profile)

    monkeypatch.setattr(Devnet, "start_miner", start_miner)
    DevnetFleet(machines=dict(HETEROGENEOUS)).save(layout.fleet_file)
    return profiles


@pytest.mark.parametrize(("named", "rounded"), [(None, 7), (0, 0), (13, 13)])
async def test_a_liar_lies_in_a_layer_that_it_holds_and_keeps_it(
    restarted: list[MinerProfile], named: int | None, rounded: int
) -> None:
    """The matcher may tell a machine that comes back other layers, and a lie would be in none of
    them.
    """
    told = await lifecycle.make_liar("miner-1", named, defend=True)
    (profile,) = restarted
    assert (profile.lie_layer, profile.layers, profile.defend) == (rounded, (0, 14), True)
    assert told.restarted == "miner-1"
    assert told.profile == (
        f"450MiB of memory, keeps layers 0-13, layer {rounded} rounded to int8, defends itself"
    )


@pytest.mark.parametrize(
    ("name", "layer", "says"),
    [
        ("miner-1", 14, "it holds layers 0-13"),
        ("miner-9", 1, "miners are"),
        ("miner-2", 1, "does not see it serve"),
    ],
)
async def test_a_lie_that_would_be_nowhere_is_refused_with_what_there_is(
    restarted: list[MinerProfile], name: str, layer: int, says: str
) -> None:
    with pytest.raises(HeadraceError) as caught:
        await lifecycle.make_liar(name, layer, defend=False)
    assert says in caught.value.why and restarted == []
