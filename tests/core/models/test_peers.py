"""Files of a model come from machines that serve it, whatever some of them send instead."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from core.engine.weights.load_shard import load_shard
from core.engine.weights.manifest import MANIFEST_FILE, ModelManifest
from core.engine.weights.pulled import PulledFolder
from core.keys.signer import Signer
from core.models import peers as asking
from core.models import places
from core.models import pull as pulling
from core.models.peers import BUSY, NOT_HERE, PeerPlace, Sharer, chosen, peers_by_matcher
from core.models.places import FolderPlace, ModelPlace
from core.models.publication import publication_of, write_manifest
from core.models.pull import begin, layers_of, pull, pull_small_files
from core.protocol import signing, wire
from core.protocol.errors import (
    AuthenticationFailed,
    CheckFailed,
    ModelMissing,
    PeerUnreachable,
)
from core.protocol.types import LayerRange
from core.runtime.network.channel import Channel, Listener, StreamIdentity
from core.runtime.settings import load
from devnet.models.tiny_models import write_tiny_model

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
MODEL_ID = "0x" + "ab" * 32
LAYERS = 4
Said = tuple[wire.AnyMessage, bytes]


def key(number: int) -> Signer:
    return Signer(number.to_bytes(32, "big"), chain_id=DOMAIN.chain_id)


IDENTITY = StreamIdentity(key(9), DOMAIN)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("source"), "llama", layers=LAYERS, files=2)


@pytest.fixture(scope="module")
def manifest(source: Path) -> ModelManifest:
    publication = publication_of(source)
    write_manifest(publication)
    return publication.manifest


@dataclass
class Peer:
    """A machine that has the whole model, and says something else where it is told to."""

    folder: Path
    says: Callable[[wire.FetchFile, Said], Awaitable[Said] | Said] = lambda ask, good: good
    asked: list[wire.FetchFile] = field(default_factory=list)

    async def handle(self, channel: Channel, frame: wire.Frame) -> Said:
        ask = frame.message
        assert isinstance(ask, wire.FetchFile) and ask.model_id == MODEL_ID
        self.asked.append(ask)
        data = (self.folder / ask.file).read_bytes()
        said = self.says(ask, (wire.FileBytes(len(data)), data[ask.start : ask.end]))
        return said if isinstance(said, tuple) else await said


Start = Callable[..., Awaitable[PeerPlace]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`start(peer)` is the place that it is."""
    running: list[Listener] = []

    async def listen(peer: Peer, expected: Signer | None = None) -> PeerPlace:
        signer = key(100 + len(running))
        listener = Listener(StreamIdentity(signer, DOMAIN), peer.handle)
        await listener.start("127.0.0.1", 0)
        running.append(listener)
        sharer = Sharer((expected or signer).address, f"127.0.0.1:{listener.port}", None)
        return PeerPlace(MODEL_ID, sharer, IDENTITY)

    yield listen
    for listener in running:
        await listener.close()


async def read(place: PeerPlace, file: str, start: int, end: int, size: int) -> bytes:
    got = bytearray()

    def take(at: int, data: bytes) -> None:
        assert at == start + len(got)
        got.extend(data)

    await asyncio.to_thread(place.read, file, start, end, size, take)
    return bytes(got)


async def pulled_from(
    manifest: ModelManifest, folder: Path, *known: ModelPlace, layers: LayerRange
) -> PulledFolder:
    def work() -> PulledFolder:
        begin(manifest, folder)
        pull_small_files(manifest, folder, known)
        pulled = PulledFolder(folder)
        pull(pulled, layers_of(folder, manifest, layers), known, sleep=lambda s: None)
        return PulledFolder(folder)

    return await asyncio.to_thread(work)


def is_loaded(folder: Path, source: Path, layers: LayerRange) -> bool:
    mine, right = load_shard(folder, layers), load_shard(source, layers)
    x = torch.arange(5) if layers.start == 0 else torch.ones(5, right.hidden)
    return torch.equal(mine.forward(x, mine.new_cache()), right.forward(x, right.new_cache()))


async def test_a_range_and_a_whole_file_come_in_pieces(
    source: Path, manifest: ModelManifest, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ASK_BYTES", 1000)
    peer = Peer(source)
    place = await start(peer)
    file, fact = next((n, f) for n, f in manifest.files.items() if n.endswith("safetensors"))
    data = (source / file).read_bytes()
    assert await read(place, file, 700, 4000, fact.size_bytes) == data[700:4000]
    assert [(ask.start, ask.end) for ask in peer.asked] == [
        (700, 1700),
        (1700, 2700),
        (2700, 3700),
        (3700, 4000),
    ]
    whole = (source / MANIFEST_FILE).read_bytes()
    assert await asyncio.to_thread(place.whole, MANIFEST_FILE, len(whole)) == whole
    with pytest.raises(PeerUnreachable, match="has another"):
        await asyncio.to_thread(place.whole, MANIFEST_FILE, len(whole) - 1)


async def test_a_peer_that_lacks_a_part_is_asked_again_for_what_follows(
    source: Path, manifest: ModelManifest, start: Start, tmp_path: Path
) -> None:
    """Each has every other kibibyte of every file of weights: no read ends where it should."""

    def only(odd: int) -> Callable[[wire.FetchFile, Said], Said]:
        def says(ask: wire.FetchFile, good: Said) -> Said:
            if not ask.file.endswith("safetensors"):
                return good
            number = ask.start // 1024
            if number % 2 != odd:
                return wire.Failed(NOT_HERE, "not here"), b""
            return good[0], good[1][: (number + 1) * 1024 - ask.start]

        return says

    both = [await start(Peer(source, only(0))), await start(Peer(source, only(1)))]
    layers, folder = LayerRange(1, 3), tmp_path / "m"
    await pulled_from(manifest, folder, *both, layers=layers)
    assert is_loaded(folder, source, layers)
    with pytest.raises(ModelMissing):
        await pulled_from(manifest, tmp_path / "n", both[0], layers=layers)


async def test_pieces_are_spread_over_machines_and_come_from_the_publisher_first(
    source: Path,
    manifest: ModelManifest,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slowly(ask: wire.FetchFile, good: Said) -> Said:
        await asyncio.sleep(0.05)
        return good

    monkeypatch.setattr(pulling, "_PIECE_BYTES", 5000)
    known = [Peer(source, slowly) for _ in range(3)]
    all_peers = [await start(peer) for peer in known]
    layers = LayerRange(0, LAYERS)
    await pulled_from(manifest, tmp_path / "m", *all_peers, layers=layers)
    each = [len(peer.asked) for peer in known]
    assert min(each) > max(each) / 3, each
    for peer in known:
        peer.asked.clear()
    await pulled_from(manifest, tmp_path / "n", FolderPlace(source), *all_peers, layers=layers)
    assert not any(peer.asked for peer in known)


async def never(ask: wire.FetchFile, good: Said) -> Said:
    await asyncio.sleep(3600)
    return good


async def lacks_it_late(ask: wire.FetchFile, good: Said) -> Said:
    await asyncio.sleep(0.2)
    return wire.Failed(NOT_HERE, "not here"), b""


async def test_a_place_that_drips_is_not_waited_for(
    source: Path, manifest: ModelManifest, start: Start, tmp_path: Path
) -> None:
    """A byte a stream, and then it lacks the rest."""
    turns = itertools.count()

    def drips(ask: wire.FetchFile, good: Said) -> Said:
        if not ask.file.endswith("safetensors"):
            return good
        is_over = next(turns) % 2
        return (wire.Failed(NOT_HERE, "not here"), b"") if is_over else (good[0], good[1][:1])

    dripping, honest = Peer(source, drips), Peer(source)
    both = [await start(dripping), await start(honest)]
    layers = LayerRange(0, 1)
    pulled = await pulled_from(manifest, tmp_path / "m", *both, layers=layers)
    assert pulled.here == set(layers_of(pulled.model_dir, manifest, layers))
    dripping.asked.clear()
    with pytest.raises(ModelMissing):
        await pulled_from(manifest, tmp_path / "n", both[0], layers=layers)
    assert len([ask for ask in dripping.asked if ask.file.endswith("safetensors")]) <= 8


def flipped(ask: wire.FetchFile, good: Said) -> Said:
    return good[0], bytes([good[1][0] ^ 1]) + good[1][1:]


LIES: dict[str, Callable[[wire.FetchFile, Said], Any]] = {
    "says nothing": never,
    "lacks everything, and says so late": lacks_it_late,
    "is busy for ever": lambda ask, good: (wire.Failed(BUSY, "later"), b""),
    "shares nothing": lambda ask, good: (wire.Failed("E-SHARE-OFF", "no"), b""),
    "has another file": lambda ask, good: (wire.FileBytes(good[0].size + 1), good[1]),
    "sends nothing": lambda ask, good: (good[0], b""),
    "sends too much": lambda ask, good: (good[0], bytes(2**22)),
    "answers something else": lambda ask, good: (wire.Pong(), good[1]),
    "sends a byte at a time": lambda ask, good: (good[0], good[1][:1]),
    "sends other bytes": flipped,
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_liar_is_left_and_spoils_nothing(
    lie: str,
    source: Path,
    manifest: ModelManifest,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 0.5)
    monkeypatch.setattr(asking, "LACKS_WITHIN_S", 0.1)
    monkeypatch.setattr(places, "RATE_OVER_S", 0.5)
    liar, honest = Peer(source, LIES[lie]), Peer(source)
    both = [await start(liar), await start(honest)]
    layers, folder = LayerRange(0, LAYERS), tmp_path / "m"
    pulled = await pulled_from(manifest, folder, *both, layers=layers)
    assert pulled.here == set(layers_of(folder, manifest, layers))
    assert is_loaded(folder, source, layers)
    if lie != "sends a byte at a time":
        asked = {(ask.file, ask.start) for ask in liar.asked}
        assert len(asked) < len({(ask.file, ask.start) for ask in honest.asked}), (
            "the liar became the last one"
        )
    with pytest.raises((PeerUnreachable, CheckFailed)):
        await pulled_from(manifest, tmp_path / "n", both[0], layers=layers)
    assert PulledFolder(tmp_path / "n").here == frozenset()


async def test_who_has_another_key_is_not_asked(
    source: Path, manifest: ModelManifest, start: Start
) -> None:
    peer = Peer(source)
    place = await start(peer, expected=key(7))
    with pytest.raises(AuthenticationFailed):
        await read(place, "config.json", 0, 1, manifest.files["config.json"].size_bytes)
    assert peer.asked == []


def test_each_layer_is_asked_of_two_machines_and_never_in_the_same_order() -> None:
    known = [
        Sharer(key(1 + n).address, f"10.0.0.{n}:1", LayerRange(n // 10, n // 10 + 1))
        for n in range(80)
    ]
    for layers in (None, LayerRange(2, 7)):
        found = chosen(known, layers)
        wanted = range(8) if layers is None else range(2, 7)
        first = found[: 2 * len(wanted)]
        held = sorted(one.layers.start for one in first if one.layers)
        assert held == sorted([*wanted, *wanted])
        assert len(found) == max(len(first), asking.MOST_PEERS)
        assert found != chosen(known, layers)
    unknown = [Sharer(key(200).address, "10.0.0.1:1", None)]
    assert chosen(unknown, LayerRange(0, 1)) == unknown


def test_a_matcher_tells_who_serves_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [
        {"operator": key(n).address, "endpoint": f"10.0.0.{n}:1", "modelId": of, "alive": alive}
        | {"layers": [0, n], "state": "SERVING"}
        for n, of, alive in ((1, MODEL_ID, True), (2, MODEL_ID, False), (3, "0x" + "0" * 64, True))
    ]

    class Matcher(BaseHTTPRequestHandler):
        answer: object = {"miners": told}

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(self.answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Matcher)
    Thread(target=server.serve_forever, daemon=True).start()
    network = {
        "name": "devnet",
        "chain_id": 31337,
        "rpc_url": "http://127.0.0.1:1",
        "contracts": {"TaskRegistry": "0x" + "11" * 20},
        "matcher_url": f"http://127.0.0.1:{server.server_port}",
    }
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "devnet.json").write_text(json.dumps(network))
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    try:
        found = peers_by_matcher(load(), MODEL_ID, None)
        assert [place.uri for place in found] == [f"miner {key(1).address}"]
        Matcher.answer = {"miners": [{"operator": "nobody"}]}
        assert peers_by_matcher(load(), MODEL_ID, None) == []
    finally:
        server.shutdown()
        server.server_close()
    assert peers_by_matcher(load(), MODEL_ID, None) == [], "a silent matcher knows nobody"
