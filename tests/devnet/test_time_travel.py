"""Can the chain of a devnet be moved on, remembered and put back, and its logs be followed?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from devnet import cli, lifecycle
from devnet.layout import DevnetFolders
from devnet.processes import Processes
from devnet.results import AddedLine
from tests.conftest import Anvil


@pytest.fixture
def layout(anvil: Anvil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DevnetFolders:
    """A devnet's folder, as far as its chain is concerned."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    layout = DevnetFolders.default()
    layout.root.mkdir(parents=True)
    network = {
        "name": "devnet",
        "chain_id": 31337,
        "rpc_url": anvil.rpc_url,
        "deploy_block": 0,
        "contracts": {"TaskRegistry": "0x" + "11" * 20},
        "models": {"tiny": "0x" + "12" * 32},
    }
    layout.network_file.write_text(json.dumps(network))
    return layout


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = cli.main([*argv, "--json"])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, document.get("result") or document["error"]


@pytest.mark.chain
def test_blocks_are_made_and_a_snapshot_is_good_for_one_way_back(
    layout: DevnetFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    _, first = run(capsys, "mine", "1")
    _, second = run(capsys, "mine", "5")
    assert second["block"] == first["block"] + 5
    _, kept = run(capsys, "snapshot")
    run(capsys, "mine", "3")
    assert run(capsys, "revert", kept["snapshot"]) == (0, kept)
    code, error = run(capsys, "revert", kept["snapshot"])
    assert (code, error["what"]) == (2, f"there is no snapshot {kept['snapshot']}")
    assert run(capsys, "revert", "yesterday")[0] == 2


async def test_a_log_is_followed_until_its_program_ends(
    layout: DevnetFolders, tmp_path: Path
) -> None:
    processes = Processes(layout.processes_file, layout.logs)
    go = tmp_path / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.05; done; echo after"
    running = await processes.start("talker", ["/bin/sh", "-c", script])
    said: list[AddedLine] = []
    async with asyncio.timeout(60):
        while lifecycle.read_logs("talker")[0].lines != ["before"]:
            await asyncio.sleep(0.05)
        following = asyncio.create_task(lifecycle.follow_log("talker", said.append))
        await asyncio.sleep(0)  # it stands at the log's end now
        go.touch()
        await following
    assert said == [AddedLine("talker", "after")]
    assert not running.is_alive
