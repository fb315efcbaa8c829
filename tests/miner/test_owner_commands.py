"""What an owner types around the work: set up, measure, look for faults, change terms, read the
books.

Against real contracts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.engine.weights.shape import describe_model
from core.protocol.network_file import Parameters
from miner import cli
from tests.conftest import Anvil
from tests.miner.programs import Town


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """`run("why")` → exit code and the last JSON document."""

    def run(*argv: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = cli.main([*argv, "--json"])
        lines = capsys.readouterr().out.splitlines()
        return code, json.loads(lines[-1])

    return run


@pytest.fixture
def bare_home(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a tiny model and nothing else."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_WALLET__KEYSTORE_DIR", str(tmp_path / "keys"))
    for name in ("HEADRACE_PASSWORD_FILE", "ETH_PASSWORD", "ETH_RPC_URL", "ETH_KEYSTORE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "models" / "tiny").symlink_to(model_dir)
    return tmp_path


def test_a_machine_is_set_up_measured_and_quoted_without_any_network(
    bare_home: Path, run: Any
) -> None:
    assert run("init", "--model", "tiny", "--yes")[1]["error"]["next"].startswith("add --wallet")
    prices = ("--price", "0.20usd/Mtok,0.50usd/Mtok", "--memory-limit", "300MiB")
    code, document = run("init", "--wallet", "alice", "--model", "tiny", *prices, "--yes")
    assert code == 0
    done = document["result"]
    assert (done["priceIn"], done["priceOut"], done["benchmarked"]) == (
        "0.20usd/Mtok",
        "0.50usd/Mtok",
        True,
    )
    assert done["next"] == "client wallet new alice"
    written = (bare_home / "config" / "config.toml").read_text()
    assert 'memory_limit = "300MiB"' in written

    kept = json.loads((bare_home / "state" / "miner" / "bench" / "tiny.json").read_text())
    assert (kept["layers"], kept["numerics"]) == ("0-3", "float32")
    assert set(kept["tauMsByRows"]) == {"1", "4", "16"}
    assert kept["machine"]["tflops"] == kept["tflops"] > 0
    assert kept["bandwidthGbS"] > 0
    whole = describe_model(bare_home / "cache" / "models" / "tiny").shard_bytes(0, 4)
    assert kept["weightsBytes"] == whole, "wherever kernels hold them now"
    assert kept["batchTokensPerS"] == pytest.approx(
        16e3 / (kept["tauMsByRows"]["16"] * 4), rel=0.01
    )

    code, document = run("quote", "--rent-per-hour", "0.10usd")
    assert code == 0
    assert document["result"]["measuredTokensPerS"] == kept["batchTokensPerS"]
    assert document["result"]["share"] == "4 of 4 layer units"


def test_layers_that_the_model_lacks_are_not_measured(bare_home: Path, run: Any) -> None:
    code, document = run("bench", "--model", "tiny", "--layers", "2:9")
    assert (code, document["error"]["code"]) == (2, "E-USAGE-01")
    code, document = run("bench", "--model", "absent")
    assert (code, document["error"]["code"]) == (2, "E-MODEL-03")


def test_a_part_of_the_middle_is_measured_as_well(bare_home: Path, run: Any) -> None:
    code, document = run("bench", "--model", "tiny", "--layers", "1:3", "--no-save")
    assert code == 0
    assert document["result"]["layers"] == "1-2"
    assert document["result"]["prefillTokensPerS"] > 0
    assert document["result"]["saved"] is None
    assert not (bare_home / "state" / "miner" / "bench").exists()


def test_a_measurement_is_a_machine_that_the_planner_takes(bare_home: Path, run: Any) -> None:
    from matcher import cli as matcher_cli

    _, document = run("bench", "--model", "tiny", "--no-save")
    model = {
        "layers": 4,
        "hidden": 64,
        "intermediate": 128,
        "heads": 4,
        "kv_heads": 2,
        "vocab": 272,
        "tied": True,
    }
    fleet = {"id": "home", "model": model, "machines": [document["result"]["machine"]]}
    (bare_home / "fleet.json").write_text(json.dumps(fleet))
    assert matcher_cli.main(["plan", "--nodes", str(bare_home / "fleet.json"), "--json"]) == 0


@pytest.mark.chain
def test_a_model_is_measured_in_the_numerics_that_it_is_registered_with(
    own_anvil: Callable[..., Anvil],
    tmp_path: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Any,
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    town = Town(own_anvil().rpc_url, tmp_path / "home", Parameters())
    town.build(owner_usd=600, model=model_dir, numerics="bfloat16")
    code, document = run("bench", "--no-save")
    assert code == 0
    found = document["result"]
    assert found["numerics"] == "bfloat16"
    assert found["weightsBytes"] == describe_model(model_dir, "bfloat16").shard_bytes(0, 4)
    assert found["tauMsPerLayer"] > 0 and found["tflops"] > 0
    cli.main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out.splitlines()[0])["result"]
    checks = {check["check"]: check["found"] for check in said}
    assert "4 of 4 layers in bfloat16" in checks["memory"]
    monkeypatch.setenv("HEADRACE_ENGINE__DTYPE", "float32")
    code, document = run("bench", "--no-save")
    assert (code, document["error"]["next"].partition(",")[0]) == (
        2,
        "miner config set engine.dtype auto",
    )


@pytest.mark.chain
def test_an_owner_finds_out_what_is_missing_and_mends_it(
    own_anvil: Callable[..., Anvil],
    tmp_path: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Any,
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    for name in ("HEADRACE_PASSWORD_FILE", "ETH_PASSWORD", "ETH_RPC_URL", "ETH_KEYSTORE"):
        monkeypatch.delenv(name, raising=False)
    town = Town(own_anvil().rpc_url, home, Parameters())
    town.build(owner_usd=600, model=model_dir)

    def checks() -> tuple[int, dict[str, dict[str, str]]]:
        capsys.readouterr()
        code = cli.main(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out.splitlines()[0])["result"]
        return code, {check["check"]: check for check in found}

    code, found = checks()
    assert code == 9
    assert found["operator wallet"]["state"] == "broken"
    assert found["chain"]["state"] == found["model"]["state"] == found["clock"]["state"] == "ok"
    assert found["owner password"]["state"] == "ok"
    assert run("why")[1]["result"][0]["next"] == "miner register --stake AMOUNT"
    assert run("earnings")[0] == 2

    assert run("register", "--stake", "500usd", "--yes")[0] == 0
    code, found = checks()
    assert (found["stake"]["state"], found["stake"]["found"]) == (
        "ok",
        "500usd, the minimum is 100usd",
    )
    assert found["fees"]["state"] == "ok", "registering gives the operator its first gas"
    operator = run("stake", "status")[1]["result"]["operator"]
    town.with_chain(lambda chain: chain.rpc("anvil_setBalance", operator, "0x0"))
    fees = checks()[1]["fees"]
    assert (fees["state"], "send it" in fees["next"]) == ("warning", True)
    (home / "password").chmod(0o644)
    assert checks()[1]["operator password"]["next"].startswith("chmod 600")
    (home / "password").chmod(0o600)

    first = run("why")[1]["result"][0]
    assert (first["topic"], first["next"]) == ("daemon", "miner start")
    assert run("withdraw", "--yes")[0] == 0
    stake = next(r for r in run("why")[1]["result"] if r["topic"] == "stake")
    assert (stake["weight"], stake["next"]) == ("blocks", "miner withdraw --cancel")

    for by in ("job", "day", "model"):
        code, document = run("earnings", "--by", by, "--since", "7d")
        assert code == 0
        assert document["result"]["rows"] == []
        assert document["result"]["toClaim"] == "0usd"
    table = tmp_path / "earned.csv"
    assert run("earnings", "--csv", str(table))[0] == 0
    assert table.read_text().startswith("key,jobs,settled")
    assert run("disputes", "ls")[1]["result"] == []
    assert run("disputes", "respond", "--yes")[1]["result"] == []
    assert run("disputes", "show", "disp_1")[0] == 2
    assert run("claim", "--yes")[0] == 2

    code, document = run(
        "update", "--price", "0.3usd/Mtok,0.6usd/Mtok", "--endpoint", "me.example:7001", "--yes"
    )
    assert code == 0
    assert document["result"]["changed"]["miner.price_out"] == "0.6usd/Mtok"
    assert document["result"]["restartNeeded"] is False
    assert run("config", "show", "miner.announce_port")[1]["result"][0]["value"] == 7001
    assert run("update", "--price", "3", "--yes")[0] == 2
    assert run("update")[0] == 2
    assert run("update", "--pause")[0] == 3, "nothing runs that could pause"
