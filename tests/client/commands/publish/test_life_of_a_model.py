"""A stranger's folder becomes a name, and machines elsewhere hold parts of it, on a real chain."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks.models.packers import pack
from client import cli as client
from client.commands.publish.share import sharing
from core.engine.weights.load_shard import load_shard
from core.engine.weights.manifest import MANIFEST_FILE, read_manifest
from core.engine.weights.store import pulled_path
from core.models.pull import layers_of
from core.protocol.network_file import Parameters
from core.protocol.types import LayerRange
from core.runtime.http_server import HttpServer
from devnet.models.tiny_models import write_tiny_model
from miner import cli as miner
from tests.conftest import Anvil
from tests.core.models.hub_server import COMMIT, TOKEN, running_hub
from tests.miner.programs import Town

pytestmark = pytest.mark.chain


@pytest.fixture
def town(own_anvil: Callable[..., Anvil], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    town = Town(own_anvil().rpc_url, tmp_path / "home", Parameters())
    town.build(owner_usd=10)
    monkeypatch.setenv("HEADRACE_HOME", str(town.home))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *a, **k: str(tmp_path / "users"))
    return town


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_tiny_model(tmp_path / "Tuned Llama", "llama", layers=6, files=2)
    (made / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tuned\n")
    return made


def run(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture, *typed: str) -> Any:
    """The result of a command, or the error that it ended with."""
    capsys.readouterr()
    main([*typed, "--json", "--yes"])
    said = json.loads(capsys.readouterr().out)
    return said["result"] if said["ok"] else said["error"]


@contextmanager
def shared(folder: Path) -> Iterator[str]:
    """The folder as `client models share` serves it; yields its URI."""
    loop, application = asyncio.new_event_loop(), sharing(folder)[0]
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = HttpServer(application)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    try:
        yield server.url + "/"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_packed_model_is_published_by_its_numbers_and_judged_as_any(
    town: Town, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    packed = pack(folder, tmp_path / "Tuned GPTQ", "gptq")
    typed = ("models", "publish", str(packed), "--licence", "mit")
    made = run(client.main, capsys, *typed)
    assert (made["layers"], made["judged_by"]) == (6, "game")
    manifest = read_manifest((packed / MANIFEST_FILE).read_bytes())
    assert len(manifest.values) == 7 * 6
    with shared(packed) as uri:
        run(client.main, capsys, *typed, "--at", uri)
        pulled = run(miner.main, capsys, "models", "pull", made["model"], "--layers", "2:4")
        there, layers = Path(pulled["folder"]), LayerRange(2, 4)
        names = layers_of(there, manifest, layers)
        assert sum(name.endswith(".qweight") for name in names) == 7 * 2
        assert load_shard(there, layers).bytes < load_shard(folder, layers).bytes / 2


def test_published_by_one_pulled_by_parts_and_verified(
    town: Town, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    rehearsed = run(client.main, capsys, "models", "publish", str(folder), "--dry-run")
    assert rehearsed["dry_run"] and "apache-2.0" in rehearsed["summary"]["licence"]
    assert not (folder / MANIFEST_FILE).exists()
    assert run(client.main, capsys, "models", "ls") == []

    first = run(client.main, capsys, "models", "publish", str(folder))
    assert (first["layers"], first["judged_by"], first["licence"]) == (6, "game", "apache-2.0")
    name = first["model"]
    assert name == f"{town.owner.address}/tuned-llama"
    manifest = read_manifest((folder / MANIFEST_FILE).read_bytes())
    with shared(folder) as uri:
        again = run(client.main, capsys, "models", "publish", str(folder), "--at", uri)
        assert (again["id"], again["places"]) == (first["id"], [uri])
        (row,) = run(miner.main, capsys, "models", "ls")
        assert (row["model"], row["names"], row["here"]) == (name, [name], "-")
        shown = run(miner.main, capsys, "models", "show", name)
        assert (shown["licence"], shown["judged_by"], shown["here"]) == ("apache-2.0", "game", "-")
        assert shown["span_layers"] == 6 and shown["tolerances"][0]["t"] > 0

        pulled = run(miner.main, capsys, "models", "pull", name, "--layers", "2:4")
        there = pulled_path(first["id"], town.home / "cache")
        assert pulled["folder"] == str(there)
        names = layers_of(there, manifest, LayerRange(2, 4))
        wanted = sum(manifest.tensors[n].size_bytes for n in names)
        assert (pulled["fetched_bytes"], pulled["here"]) == (wanted, "2:4")
        more = run(miner.main, capsys, "models", "pull", name, "--layers", "3:5")
        assert (more["fetched_bytes"], more["here"]) == (wanted // 2, "2:5")
        shown = run(client.main, capsys, "models", "show", name)
        assert shown["manifest"] == "here, as the chain has it"
        assert shown["size_bytes"] == sum(f.size_bytes for f in manifest.files.values())
        verified = run(miner.main, capsys, "models", "verify", name)
        assert verified["tensors"] == len(layers_of(there, manifest, LayerRange(2, 5)))

        fact = manifest.tensors[names[0]]
        with (there / fact.file).open("r+b") as file:
            file.seek(fact.start_byte)
            file.write(b"\x00\x01\x02\x03")
        broken = run(miner.main, capsys, "models", "verify", name)
        assert broken["details"]["wrong"] == [names[0]]
        mended = run(miner.main, capsys, "models", "pull", name, "--layers", "2:5")
        assert mended["fetched_bytes"] == fact.size_bytes
        whole = run(miner.main, capsys, "models", "pull", name)
        assert whole["here"] == "all"
    assert run(miner.main, capsys, "models", "show", name)["licence"] == "apache-2.0", "kept"
    removed = run(miner.main, capsys, "models", "rm-local", name)
    assert removed["freed_bytes"] > 0 and not there.exists()
    assert run(miner.main, capsys, "models", "rm-local", name)["code"] == "E-MODEL-03"


def test_a_name_means_one_model_for_ever(
    town: Town, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    named = ("models", "publish", "--name", "mine")
    assert run(client.main, capsys, *named, str(folder))["model"].endswith("/mine")
    other = write_tiny_model(tmp_path / "other", "llama", layers=6, seed=3)
    refused = run(client.main, capsys, *named, str(other))
    assert refused["code"] == "E-MODEL-04"
    assert "mine-2" in refused["next"]


def test_a_place_with_other_files_is_never_believed(
    town: Town, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = write_tiny_model(tmp_path / "other", "llama", layers=6, seed=3, files=2)
    run(client.main, capsys, "models", "publish", str(other), "--name", "other")
    with shared(other) as uri:
        name = run(client.main, capsys, "models", "publish", str(folder), "--at", uri)["model"]
        refused = run(miner.main, capsys, "models", "pull", name)
        assert refused["code"] == "E-CHECK-01", refused
        assert "not the registered manifest" in refused["what"]
    gone = run(miner.main, capsys, "models", "pull", name)
    assert gone["code"] == "E-NET-00"
    nowhere = run(miner.main, capsys, "models", "pull", f"{town.owner.address}/other")
    assert nowhere["code"] == "E-MODEL-03" and "nobody says where" in nowhere["what"]


def test_a_hubs_repository_is_published_and_pulled_through_its_own_client(
    town: Town, folder: Path, tmp_path: Path
) -> None:
    def run(program: str, *typed: str, **settings: str) -> Any:
        env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")} | settings
        argv = [sys.executable, "-m", program, "models", *typed, "--json", "--yes"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=150)
        said = json.loads(done.stdout.splitlines()[-1])
        return said["result"] if said["ok"] else said["error"]

    with running_hub(maker__tiny=folder) as hub:
        hub.gated.add("maker/tiny")
        gated = run("client.cli", "publish", "maker/tiny")
        assert gated["code"] == "E-MODEL-05", gated
        made = run("client.cli", "publish", "maker/tiny", "--name", "from-hub", HF_TOKEN=TOKEN)
        assert made["places"] == [f"hf://maker/tiny@{COMMIT}"], made
        assert made["licence"] == "apache-2.0"
        shutil.copy(made["manifest"], folder / MANIFEST_FILE)  # its publisher uploads it
        hub.gated.clear()
        missing = run("client.cli", "publish", "maker/nothing", "--dry-run")
        assert missing["code"] == "E-MODEL-03", missing
        shutil.rmtree(tmp_path / "hub")
        pulled = run("miner.cli", "pull", made["model"], "--layers", "1:3")
        assert (pulled["here"], pulled["id"]) == ("1:3", made["id"])


CANNOT_BE = [
    (("models", "publish", "no/such/folder/here"), "E-MODEL-03"),
    (("models", "publish", "{folder}", "--name", "Bad Name"), "E-USAGE-01"),
    (("models", "publish", "{folder}", "--numerics", "float7"), "E-USAGE-01"),
    (("models", "publish", "{folder}", "--at", "gopher://x"), "E-USAGE-01"),
    (("models", "publish", "{empty}"), "E-MODEL-03"),
    (("models", "publish", "{own}"), "E-MODEL-02"),
    (("models", "pull", "0x" + "11" * 20 + "/nobodys"), "E-MODEL-01"),
    (("models", "show", "huge"), "E-MODEL-01"),
    (("models", "share", "{empty}"), "E-MODEL-03"),
]


def test_what_cannot_be_says_why(
    town: Town, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "empty").mkdir()
    own = write_tiny_model(tmp_path / "own", "llama", layers=2)
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "mine.M"}}))
    at = {"folder": folder, "empty": tmp_path / "empty", "own": own}
    for typed, code in CANNOT_BE:
        found = run(client.main, capsys, *(word.format(**at) for word in typed))
        assert found["code"] == code, (typed, found)
        assert found["next"]
