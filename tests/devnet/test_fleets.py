"""The machines of a devnet are named or in a file, and are known again when it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.protocol import units
from core.protocol.errors import UsageError
from core.runtime.commands.console import GlobalOptions, Run
from devnet import lifecycle
from devnet.fleets import MACHINES, DevnetFleet, fleet_of, need_bytes
from devnet.layout import DevnetFolders
from devnet.links.conditions import Conditions
from devnet.models.tiny_models import write_tiny_model
from devnet.network import HETEROGENEOUS, MinerProfile

TWO = """
[machines.miner-1]
memory = "450MiB"
layers = "0:5"
region = "near"

[machines.miner-4]
memory = "1GiB"
slow_ms_per_layer = 0.5
region = "far"

[regions.near]
latency_ms = 1

[regions.far]
latency_ms = 64
jitter_ms = 2
mbit_s = 8
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=4)


def written(tmp_path: Path, text: str, name: str = "fleet.toml") -> str:
    file = tmp_path / name
    file.write_text(text)
    return str(file)


def test_named_fleets_have_memory_in_proportion_to_the_model(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from devnet import fleets

    monkeypatch.setattr(fleets, "USUAL_BYTES", need_bytes(model_dir))
    assert fleet_of("hetero", model_dir).machines == HETEROGENEOUS
    monkeypatch.setattr(fleets, "USUAL_BYTES", need_bytes(model_dir) / 2)
    twice = fleet_of("hetero", model_dir).machines
    for name, machine in HETEROGENEOUS.items():
        assert units.parse_bytes(twice[name].memory) == 2 * units.parse_bytes(machine.memory)
        assert twice[name].slow_ms_per_layer == machine.slow_ms_per_layer
    (one,) = set(fleet_of("equal", model_dir).machines.values())
    assert units.parse_bytes(one.memory) == round(2 * (450 + 365 + 230) / 3) * 2**20


def test_a_file_says_machines_speeds_and_regions(model_dir: Path, tmp_path: Path) -> None:
    fleet = fleet_of(written(tmp_path, TWO), model_dir)
    assert fleet.machines == {
        "miner-1": MinerProfile("450MiB", layers=(0, 5)),
        "miner-4": MinerProfile("1GiB", 0.5),
    }
    assert fleet.links == {"miner-1": Conditions(1.0), "miner-4": Conditions(64.0, 2.0, 1e6)}
    fleet.save(tmp_path / "kept.json")
    assert DevnetFleet.load(tmp_path / "kept.json") == fleet
    first = fleet.first(1)
    assert (list(first.machines), list(first.links)) == (["miner-1"], ["miner-1"])
    with pytest.raises(UsageError, match="3 miners"):
        fleet.first(3)
    as_json = json.dumps({"machines": {"miner-2": {"memory": "1GiB"}}})
    assert list(fleet_of(written(tmp_path, as_json, "f.json"), model_dir).machines) == ["miner-2"]
    assert DevnetFleet.load(tmp_path / "none.json").machines == HETEROGENEOUS


@pytest.mark.parametrize(
    "text",
    [
        "machines = 3",
        "[machines]",
        '[machines.miner-9]\nmemory = "1GiB"',
        "[machines.miner-1]\nmemory = 5",
        '[machines.miner-1]\nmemory = "much"',
        '[machines.miner-1]\nmemory = "1GiB"\ncores = 4',
        '[machines.miner-1]\nmemory = "1GiB"\nlayers = "5:3"',
        '[machines.miner-1]\nmemory = "1GiB"\nlayers = "all"',
        '[machines.miner-1]\nmemory = "1GiB"\nregion = "moon"',
        '[machines.miner-1]\nmemory = "1GiB"\nslow_ms_per_layer = -1.0',
        '[machines.miner-1]\nmemory = "1GiB"\nregion = "x"\n[regions.x]\nlatency_ms = -1',
        "not toml",
    ],
)
def test_what_is_no_fleet_is_refused(model_dir: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        fleet_of(written(tmp_path, text), model_dir)


def test_a_name_that_is_none_names_those_that_are(model_dir: Path) -> None:
    with pytest.raises(UsageError, match="no fleet 'fast'") as caught:
        fleet_of("fast", model_dir)
    assert "hetero, equal" in caught.value.why
    assert MACHINES == ("miner-1", "miner-2", "miner-3", "miner-4")


async def test_a_devnet_goes_on_with_the_model_and_the_fleet_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    layout = DevnetFolders.default()
    layout.root.mkdir(parents=True)
    layout.chain_state_file.write_text("{}")
    network = {
        "name": "devnet",
        "chain_id": 31337,
        "rpc_url": "http://127.0.0.1:1",
        "deploy_block": 0,
        "contracts": {},
        "models": {"tiny": "0x" + "12" * 32},
    }
    layout.network_file.write_text(json.dumps(network))
    DevnetFleet({"miner-4": MinerProfile("1GiB", 0.5)}).save(layout.fleet_file)
    net, fleet, continued = lifecycle._new_or_kept(layout, lifecycle.WantedDevnet(), keep=True)
    assert (net.model, list(fleet.machines), continued) == ("tiny", ["miner-4"], True)
    assert "miner-4" in net.addresses
    await net.running_chain.close()
    run = Run("devnet", "up", GlobalOptions())
    for other in (
        lifecycle.WantedDevnet(model="gemma3-270m"),
        lifecycle.WantedDevnet(profile="equal"),
    ):
        with pytest.raises(UsageError, match="goes on as it was"):
            await lifecycle.bring_up(run, other, keep=True)
    assert layout.network_file.is_file(), "nothing of it was touched"
