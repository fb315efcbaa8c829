"""The command line: planning from a file, talking to a running matcher, saying what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from matcher.cli import main

FLEET = {
    "model": {
        "layers": 30,
        "hidden": 576,
        "intermediate": 1536,
        "heads": 9,
        "kv_heads": 3,
        "vocab": 49152,
        "tied": False,
        "bytes_per_parameter": 4,
    },
    "machines": [
        {"id": "a", "memory": "450MiB", "tflops": 0.2, "bandwidth_gb_s": 10, "region": "eu"},
        {"id": "b", "memory": "350MiB", "tflops": 0.1, "bandwidth_gb_s": 10, "region": "eu"},
        {"id": "c", "memory": "450MiB", "tflops": 0.1, "bandwidth_gb_s": 8, "region": "eu"},
    ],
    "links": {"rho_ms": {"a": {"b": 12.5}}, "default_ms": 50},
}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))


def fleet_file(folder: Path, content: Any) -> str:
    path = folder / "fleet.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_plan_covers_the_model_once_and_explains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--nodes", fleet_file(tmp_path, FLEET), "--explain", "--json"]) == 0
    result = last_json(capsys)["result"]
    (pipeline,) = result["pipelines"]
    cuts = [stage[1:] for stage in pipeline["stages"]]
    assert [cuts[0][0], cuts[-1][1]] == [0, 30]
    assert [cut[1] for cut in cuts[:-1]] == [cut[0] for cut in cuts[1:]]
    assert result["gap"] <= 0.01
    assert result["tokens_per_s"]["disjoint"] <= result["tokens_per_s"]["at_most"]
    assert result["token_ms"]["best"] <= result["token_ms"]["mean"]
    assert any("a [" in line for line in result["explanation"])


def test_explain_shows_bottleneck_gap_and_the_price_of_each_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--nodes", fleet_file(tmp_path, FLEET), "--explain"]) == 0
    shown = capsys.readouterr()
    assert "price" in shown.out
    for machine in FLEET["machines"]:  # type: ignore[attr-defined]
        assert any(line.startswith(machine["id"]) for line in shown.out.splitlines())
    assert "bottleneck: layers" in shown.err
    assert "gap: " in shown.err


def test_plan_is_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--nodes", fleet_file(tmp_path, FLEET)]) == 0
    shown = capsys.readouterr()
    assert "ms/token" in shown.out
    assert "at most" in shown.err


def test_a_fleet_that_is_too_small_says_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {**FLEET, "machines": FLEET["machines"][:1]}  # type: ignore[index]
    assert main(["plan", "--nodes", fleet_file(tmp_path, small), "--json"]) == 7
    assert "short by" in capsys.readouterr().err
    tiny = {**FLEET, "machines": [{**FLEET["machines"][0], "memory": "18MiB"}]}
    assert main(["plan", "--nodes", fleet_file(tmp_path, tiny)]) == 7
    assert "the largest has" in capsys.readouterr().err


def test_machines_that_reach_nobody_are_said_to_be_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = {**FLEET, "links": {"default_ms": None}}
    assert main(["plan", "--nodes", fleet_file(tmp_path, cut)]) == 7
    assert "no chain of them is connected" in capsys.readouterr().err


def test_a_machine_that_holds_no_layer_is_ignored_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phone = {"id": "phone", "memory": "15MiB", "tflops": 0.01, "bandwidth_gb_s": 1}
    nodes = fleet_file(tmp_path, {**FLEET, "machines": [*FLEET["machines"], phone]})
    assert main(["plan", "--nodes", nodes]) == 0
    assert "phone is ignored: " in capsys.readouterr().err
    assert main(["plan", "--nodes", nodes, "--json"]) == 0
    (ignored,) = last_json(capsys)["result"]["ignored"]
    assert ignored["machine"] == "phone" and "one layer takes" in ignored["why"]


@pytest.mark.parametrize("method", ["petals", "even", "memory", "stages", "utility"])
def test_whatever_the_method_a_fleet_that_is_short_is_said_to_be_short(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = json.loads((CLUSTERS / "single24.json").read_text())
    nodes = fleet_file(tmp_path, {**few, "nodes": few["nodes"][:6]})
    profiles = str(CLUSTERS.parent / "gpu_profiles.json")
    assert main(["plan", "--nodes", nodes, "--profiles", profiles, "--method", method]) == 7
    assert "33 of 80 layers: short by 47 layers" in capsys.readouterr().err


def test_paths_of_a_flow_have_no_score_and_the_narrow_ones_share_a_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["plan", "--nodes", str(CLUSTERS / "het42.json"), "--method", "petals"]
    assert main([*command, "--json"]) == 0
    result = last_json(capsys)["result"]
    assert result["score"] is None and 1 < result["stages_per_request"] < 42
    assert result["tokens_per_s"]["paths"] == pytest.approx(
        sum(chain["tokens_per_s"] for chain in result["pipelines"]), abs=0.1
    )
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "narrower paths" in shown
    assert shown.count("→") < sum(len(chain["stages"]) for chain in result["pipelines"])


def test_names_that_graphviz_would_trip_over_are_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {**FLEET["machines"][0], "id": 'my "fast"\\one', "memory": "1GiB"}  # type: ignore[index]
    nodes = fleet_file(tmp_path, {**FLEET, "machines": [odd]})
    assert main(["plan", "--nodes", nodes, "--format", "dot"]) == 0
    assert r'"my \"fast\"\\one" [shape=box' in capsys.readouterr().out


CLUSTERS = Path(__file__).parents[2] / "benchmarks" / "data" / "clusters"


@pytest.mark.parametrize("method", ["swarm", "petals", "stages", "separate+", "score"])
def test_a_cluster_file_is_planned_by_any_method(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = str(CLUSTERS / "single24.json")
    assert main(["plan", "--nodes", nodes, "--method", method, "--json"]) == 0
    result = last_json(capsys)["result"]
    assert 0 < result["tokens_per_s"]["flow"] <= result["tokens_per_s"]["at_most"]
    assert len(result["layers"]) + len(result["standby"]) == 24


def test_a_plan_is_drawn_for_graphviz(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = str(CLUSTERS / "single24.json")
    assert main(["plan", "--nodes", nodes, "--method", "swarm", "--format", "dot"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith('digraph "single24 by swarm" {')
    assert '"n17" [shape=box, label="n17\\n0-3"]' in drawn


def test_route_takes_a_plan_and_does_without_a_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = str(CLUSTERS / "het42.json")
    assert main(["plan", "--nodes", nodes, "--method", "swarm", "--json"]) == 0
    held = tmp_path / "plan.json"
    held.write_text(capsys.readouterr().out)
    command = ["route", "--nodes", nodes, "--placement", str(held), "--json"]
    assert main(command) == 0
    best = last_json(capsys)["result"]["best"]
    layers = json.loads(held.read_text())["result"]["layers"]
    avoided = next(m for m, _, _ in best["stages"] if list(layers.values()).count(layers[m]) > 1)
    assert main([*command, "--without", avoided]) == 0
    second = last_json(capsys)["result"]["best"]
    assert avoided not in [stage[0] for stage in second["stages"]]
    assert second["latency_ms"] >= best["latency_ms"]


def test_route_takes_a_placement_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    nodes, placements = CLUSTERS / "geo24.json", CLUSTERS.parent / "placements.json"
    command = ["route", "--nodes", str(nodes), "--placement", str(placements)]
    assert main(command) == 2
    assert "choose with --name" in capsys.readouterr().err
    assert main([*command, "--name", "helix"]) == 0
    assert "best" in capsys.readouterr().out


def test_route_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    nodes, placements = CLUSTERS / "single24.json", CLUSTERS.parent / "placements.json"
    command = ["route", "--nodes", str(nodes), "--placement", str(placements), "--name", "swarm"]
    assert main([*command, "--without", "n17", "--json"]) == 7
    assert "0-3" in capsys.readouterr().err
    assert main([*command, "--without", "n99"]) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ({"model": FLEET["model"]}, "'machines' is missing"),
        ({**FLEET, "machines": [{"id": "a"}]}, "missing"),
        ({**FLEET, "machines": [{"id": "a", "memory": "6", "tflops": 1}]}, "no unit"),
        ({**FLEET, "surprise": 1}, "unknown keys ['surprise']"),
        ({**FLEET, "machines": [FLEET["machines"][0]] * 2}, "listed twice"),  # type: ignore[index]
        ({**FLEET, "model": {**FLEET["model"], "layers": 0}}, "layers is 0"),
        ({**FLEET, "model": {**FLEET["model"], "heads": 1.5}}, "heads is 1.5"),
        ({**FLEET, "links": {"default_ms": 10**400}}, "too large"),
        ({**FLEET, "links": {"mbit_s": {"a": {"b": 9}}}}, "does not say how far"),
        ({**FLEET, "links": {"rho_ms": {"a": {"b": 1}}, "mbit_s": {"a": {"b": 0}}}}, "0.0 Mbit/s"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_wrong_fleet_file_is_said_to_be_wrong_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, words: str
) -> None:
    assert main(["plan", "--nodes", fleet_file(tmp_path, content)]) == 2
    assert words in capsys.readouterr().err


def test_no_matcher_running_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["registry", "ls"]) == 3
    assert "E-NET-02" in capsys.readouterr().err


def test_starting_without_a_network_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["start", "--wallet", "m"]) == 2
    assert "devnet up" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["7100", "host:", ":7100", "host:port"])
def test_a_malformed_listen_address_is_refused(listen: str) -> None:
    assert main(["start", "--listen", listen]) == 2


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, matcher.cli\n"
        "heavy = {'web3', 'torch', 'hivemind', 'sqlmodel', 'fastapi', 'highspy', 'eth_account'}\n"
        "import time; print(time.process_time(), sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    used_s, _, loaded = done.stdout.strip().partition(" ")
    assert (done.returncode, loaded) == (0, "[]"), done.stderr
    assert float(used_s) < 5
