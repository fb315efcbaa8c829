"""Bytes of a model come from a hub, through its own client, from any web server or a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from core.models.places import LEAST_BYTES_PER_S, RATE_OVER_S, paced, place_of
from core.protocol.errors import ModelGated, ModelMissing, Unreachable, UsageError
from devnet.models.tiny_models import write_tiny_model
from tests.core.models.hub_server import COMMIT, TOKEN, Hub, running_hub

#: A program of its own, as the hub's client reads its settings once: what a place gives, or raises.
READER = """
import json, sys
from core.models.places import LEAST_BYTES_PER_S, RATE_OVER_S, paced, place_of
from core.protocol.errors import HeadraceError
uri, file, start, end, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
got = bytearray()
try:
    place_of(uri, are_private_allowed=True).read(
        file, start, end, size, lambda at, data: got.extend(data)
    )
    print(json.dumps({"got": got.hex()}))
except HeadraceError as error:
    print(json.dumps({"code": error.code, "why": error.why, "next": error.next_step}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("hub"), "llama", layers=2)


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    with running_hub(maker__tiny=folder) as hub:
        yield hub


def read(
    hub: Hub, home: Path, uri: str, file: Path, start: int, end: int, **settings: str
) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    wanted = [uri, file.name, str(start), str(end), str(file.stat().st_size)]
    done = subprocess.run(
        [sys.executable, "-c", READER, *wanted],
        env=env | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


WEIGHTS = "model.safetensors"


def test_a_range_comes_through_the_hubs_redirect_and_its_token_stays_at_the_hub(
    hub: Hub, folder: Path, tmp_path: Path
) -> None:
    file = folder / WEIGHTS
    found = read(hub, tmp_path, "hf://maker/tiny@main", file, 1000, 5000, HF_TOKEN=TOKEN)
    assert found == {"got": file.read_bytes()[1000:5000].hex()}
    assert hub.sent_bytes == 4000
    assert TOKEN in hub.seen_tokens
    assert hub.cdn_tokens == {""}
    small = folder / "config.json"
    found = read(hub, tmp_path, f"hf://maker/tiny@{COMMIT}", small, 0, small.stat().st_size)
    assert found == {"got": small.read_bytes().hex()}


def test_a_gated_repository_says_what_to_do_and_opens_with_a_token(
    hub: Hub, folder: Path, tmp_path: Path
) -> None:
    hub.gated.add("maker/tiny")
    file = folder / WEIGHTS
    for settings in ({}, {"HF_TOKEN": "hf_of_another"}):
        found = read(hub, tmp_path, "hf://maker/tiny", file, 0, 10, **settings)
        assert found["code"] == ModelGated.code
        assert "accept the licence" in found["next"]
    found = read(hub, tmp_path, "hf://maker/tiny", file, 0, 10, HF_TOKEN=TOKEN)
    assert found == {"got": file.read_bytes()[:10].hex()}


@pytest.mark.parametrize("uri", ["hf://maker/other", "hf://maker/tiny@v9"])
def test_a_repository_or_revision_that_is_not_there_is_missing(
    uri: str, hub: Hub, folder: Path, tmp_path: Path
) -> None:
    found = read(hub, tmp_path, uri, folder / WEIGHTS, 0, 10)
    assert found["code"] == ModelMissing.code


def test_a_busy_hub_is_asked_again_and_an_offline_client_never_asks(
    hub: Hub, folder: Path, tmp_path: Path
) -> None:
    hub.fails = 2
    file = folder / WEIGHTS
    found = read(hub, tmp_path, "hf://maker/tiny", file, 0, 10)
    assert found == {"got": file.read_bytes()[:10].hex()}
    hub.asked.clear()
    found = read(hub, tmp_path, "hf://maker/tiny", file, 0, 10, HF_HUB_OFFLINE="1")
    assert found["code"] == Unreachable.code
    assert "HF_HUB_OFFLINE" in found["why"]
    assert hub.asked == []


def test_what_the_hubs_cache_holds_is_not_fetched(hub: Hub, folder: Path, tmp_path: Path) -> None:
    fetch = "import huggingface_hub; huggingface_hub.snapshot_download('maker/tiny')"
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    subprocess.run([sys.executable, "-c", fetch], env=env, check=True, timeout=120)
    hub.asked.clear()
    file = folder / WEIGHTS
    found = read(hub, tmp_path, "hf://maker/tiny", file, 7, 77, HF_HUB_OFFLINE="1")
    assert found == {"got": file.read_bytes()[7:77].hex()}
    assert hub.asked == []


def test_a_web_server_is_read_by_ranges(hub: Hub, folder: Path) -> None:
    place = place_of(f"{hub.url}/maker/tiny/resolve/main", are_private_allowed=True)
    file, got = folder / WEIGHTS, bytearray()
    data = file.read_bytes()
    place.read(WEIGHTS, 100, 300, len(data), lambda at, data: got.extend(data))
    assert bytes(got) == data[100:300]
    with pytest.raises(ModelMissing):
        place.read("other.safetensors", 0, 1, 1, lambda at, data: None)
    with pytest.raises(Unreachable, match="has another"):
        place.read(WEIGHTS, 0, 10, len(data) + 1, lambda at, data: None)
    hub.has_ranges = False
    with pytest.raises(Unreachable, match="cannot read") as caught:
        place.read(WEIGHTS, 1, 10, len(data), lambda at, data: None)
    assert "does not serve ranges" in caught.value.why
    hub.has_ranges, hub.cuts = True, 1
    with pytest.raises(Unreachable):
        place.read(WEIGHTS, 0, 100, len(data), lambda at, data: None)
    hub.gated.add("maker/tiny")
    with pytest.raises(ModelGated):
        place.read(WEIGHTS, 0, 100, len(data), lambda at, data: None)


def test_a_strangers_place_in_our_own_network_is_never_asked(hub: Hub) -> None:
    place = place_of(f"{hub.url}/maker/tiny/resolve/main")
    with pytest.raises(Unreachable, match="is not read from"):
        place.read(WEIGHTS, 0, 1, 1, lambda at, data: None)
    assert hub.asked == []


def test_a_folder_is_a_place(folder: Path) -> None:
    place, got = place_of(folder.as_uri()), bytearray()
    size = (folder / WEIGHTS).stat().st_size
    place.read(WEIGHTS, 5, 50, size, lambda at, data: got.extend(data))
    assert bytes(got) == (folder / WEIGHTS).read_bytes()[5:50]
    with pytest.raises(ModelMissing):
        place.read(WEIGHTS, size - 5, size + 5, size, lambda at, data: None)
    with pytest.raises(ModelMissing):
        place.read("other", 0, 1, 1, lambda at, data: None)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "maker/tiny",
        "hf://",
        "hf://a/b/c",
        "hf://a b/c",
        "ftp://host/path",
        "https://",
        "https://[",
        "file://host/path",
        "https://host/" + "a" * 500,
        "javascript:alert(1)",
    ],
)
def test_what_is_no_place_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="is no place of a model"):
        place_of(uri)


def test_a_place_that_trickles_is_left_for_another() -> None:
    now = [0.0]

    def parts(size: int, every_s: float, count: int) -> Iterator[bytes]:
        for _ in range(count):
            now[0] += every_s
            yield bytes(size)

    steady = paced(parts(LEAST_BYTES_PER_S, 1.0, 200), "https://a/", "f", lambda: now[0])
    assert sum(map(len, steady)) == 200 * LEAST_BYTES_PER_S
    slow = parts(1, RATE_OVER_S / 2 - 1, 10**6)
    with pytest.raises(Unreachable, match="too slowly") as refused:
        list(paced(slow, "https://a/", "f", lambda: now[0]))
    assert "3 bytes in 87 s" in refused.value.why
    # One that was fast before gets no credit for it.
    bursty = chain(parts(10**9, 1.0, 60), parts(1, RATE_OVER_S, 10))
    with pytest.raises(Unreachable, match="too slowly"):
        list(paced(bursty, "https://a/", "f", lambda: now[0]))
