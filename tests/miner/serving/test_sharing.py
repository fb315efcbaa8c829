"""A miner sends what is proven of its model, at a rate that nobody else's asks can take from those
who have stake, and that serving does not notice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.engine.weights.load_shard import load_shard
from core.engine.weights.manifest import MANIFEST_FILE, ModelManifest
from core.engine.weights.pulled import PulledFolder
from core.keys.signer import Signer
from core.models.peers import BUSY, NOT_HERE, PeerPlace, Sharer
from core.models.places import FolderPlace
from core.models.publication import publication_of, write_manifest
from core.models.pull import begin, layers_of, pull, pull_small_files
from core.protocol import signing, wire
from core.protocol.types import LayerRange
from core.runtime.clock import SystemClock
from core.runtime.network.channel import Channel, Listener, StreamIdentity, connect
from devnet.models.tiny_models import write_tiny_model
from miner.serving import sharing
from miner.serving.job_table import Refused
from miner.serving.sharing import OFF, STRANGER_BYTES, SharedFiles, Sharing
from tests.clocks import ManualClock
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import greedy, reference
from tests.town.requester import Requester

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
MODEL_ID = "0x" + "ab" * 32
LAYERS = 4
WEIGHTS = "model.safetensors"


def key(number: int) -> Signer:
    return Signer(number.to_bytes(32, "big"), chain_id=DOMAIN.chain_id)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("source"), "llama", layers=LAYERS, hidden=128)


@pytest.fixture(scope="module")
def manifest(source: Path) -> ModelManifest:
    publication = publication_of(source)
    write_manifest(publication)
    return publication.manifest


def begun(manifest: ModelManifest, folder: Path, source: Path, *spans: tuple[int, int]) -> Path:
    """A folder with these layers of the model."""
    begin(manifest, folder)
    pull_small_files(manifest, folder, [FolderPlace(source)])
    for span in spans:
        fetch(manifest, folder, source, span)
    return folder


def fetch(manifest: ModelManifest, folder: Path, source: Path, span: tuple[int, int]) -> None:
    names = layers_of(folder, manifest, LayerRange(*span))
    pull(PulledFolder(folder), names, [FolderPlace(source)])


# --- what is here ---


def shared(files: SharedFiles, manifest: ModelManifest, source: Path) -> set[int]:
    """The bytes of the weights that are shared, all of them right."""
    size, at, found = manifest.files[WEIGHTS].size_bytes, 0, set[int]()
    data = (source / WEIGHTS).read_bytes()
    while at < size:
        place = files.find(WEIGHTS, at, size)
        if place is None:
            at += 1
            continue
        assert place[0] == size
        assert files.read(WEIGHTS, at, place[1]) == data[at : place[1]]
        found |= set(range(at, place[1]))
        at = place[1]
    return found


def bytes_of(manifest: ModelManifest, folder: Path, *spans: tuple[int, int]) -> set[int]:
    names = {n for span in spans for n in layers_of(folder, manifest, LayerRange(*span))}
    facts = [manifest.tensors[name] for name in names]
    return {b for f in facts for b in range(f.start_byte, f.start_byte + f.size_bytes)}


def test_of_a_pulled_folder_the_tensors_that_are_here_are_shared_and_no_hole(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    folder, clock = begun(manifest, tmp_path / "m", source, (1, 2)), ManualClock()
    files = SharedFiles(folder, manifest.hash(), clock)
    assert shared(files, manifest, source) == bytes_of(manifest, folder, (1, 2))
    fetch(manifest, folder, source, (3, 4))
    clock._elapsed_s += 2 * sharing.LOOK_EVERY_S
    assert shared(files, manifest, source) == bytes_of(manifest, folder, (1, 2), (3, 4))
    PulledFolder(folder).forget(layers_of(folder, manifest, LayerRange(1, 2)))
    clock._elapsed_s += 2 * sharing.LOOK_EVERY_S
    assert shared(files, manifest, source) == bytes_of(manifest, folder, (3, 4))

    size = len((source / MANIFEST_FILE).read_bytes())
    assert files.find(MANIFEST_FILE, 0, 2**40) == (size, size)
    assert files.find("config.json", 3, 5) == (manifest.files["config.json"].size_bytes, 5)
    for nothing in ("headrace-pulled.txt", "headrace-pieces.txt", "..", "other"):
        assert files.find(nothing, 0, 1) is None


def test_a_whole_folder_shares_what_is_as_it_was_published(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    files = SharedFiles(source, manifest.hash(), ManualClock())
    size = manifest.files[WEIGHTS].size_bytes
    assert files.find(WEIGHTS, 0, size) == (size, size)
    assert all(files.find(n, 0, f.size_bytes) for n, f in manifest.files.items())

    own = tmp_path / "own"
    own.mkdir()
    for name in (*manifest.files, MANIFEST_FILE):
        (own / name).write_bytes((source / name).read_bytes())
    (own / "config.json").write_text((own / "config.json").read_text() + "\n")
    files = SharedFiles(own, manifest.hash(), ManualClock())
    assert files.find("config.json", 0, 1) is None
    assert files.find(WEIGHTS, 0, size) == (size, size)
    (own / WEIGHTS).unlink()
    with pytest.raises(OSError):
        files.read(WEIGHTS, 0, 1)


# --- who gets how much ---


@dataclass
class Asker:
    """What counts of a stream here."""

    peer: str
    address: str
    is_stranger: bool
    is_sending: bool = False


RATE = 8 * STRANGER_BYTES  # of which strangers have 64 KiB a second


class Line:
    """One miner's sharing on a clock that is moved by hand, and what askers got of it."""

    def __init__(self, source: Path, manifest: ModelManifest, rate: int = RATE) -> None:
        self.clock = ManualClock()
        files = SharedFiles(source, manifest.hash(), self.clock)
        self.sharing = Sharing(MODEL_ID, files, rate, self.clock)
        self.got, self.refused = Counter[str](), Counter[str]()
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, asker: Asker, start: int = 0) -> int:
        ask = wire.FetchFile(MODEL_ID, WEIGHTS, start, 2**40)
        message, data = await self.sharing.answer(asker, ask)  # type: ignore[arg-type]
        assert 0 < len(data) <= message.size
        self.got[asker.peer] += len(data)
        return len(data)

    def keeps_asking(self, asker: Asker) -> asyncio.Task[None]:
        """One ask after the other, and again at once where it is refused."""

        async def work() -> None:
            while True:
                try:
                    await self.ask(asker)
                except Refused as refusal:
                    self.refused[refusal.code] += 1
                    await self.clock.sleep(0.1)

        task = asyncio.create_task(work())
        self._tasks.append(task)
        return task

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            await self.clock.advance(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def line(
    source: Path, manifest: ModelManifest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Line]:
    """Its disk takes no time: the clock alone says who waits."""

    async def at_once(work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    found = Line(source, manifest)
    yield found
    await found.close()


def stranger(number: int, address: str = "") -> Asker:
    return Asker(f"stranger {number}", address or f"10.0.0.{number}", True)


def staked(number: int) -> Asker:
    return Asker(f"staked {number}", "10.1.0.1", False)


async def test_strangers_take_nothing_of_the_rate_of_those_with_stake(line: Line) -> None:
    """Five hundred keys of fifty addresses ask as fast as they can; two with stake pull."""
    for number in range(500):
        line.keeps_asking(stranger(number, f"10.0.0.{number % 50}"))
    pullers = [staked(1), staked(2)]
    for puller in pullers:
        line.keeps_asking(puller)
    await line.pass_s(10.0)
    to_strangers = sum(n for who, n in line.got.items() if who.startswith("stranger"))
    assert to_strangers <= 10 * RATE / 8 + 2 * STRANGER_BYTES
    each = [line.got[puller.peer] for puller in pullers]
    assert sum(each) >= 0.8 * 10 * RATE * 7 / 8
    assert sum(line.got.values()) <= 10 * RATE + 2 * sharing.KNOWN_BYTES + 2 * STRANGER_BYTES
    assert max(each) - min(each) <= 2 * sharing.KNOWN_BYTES
    assert line.refused[BUSY], "who would wait too long is told so"


async def test_throwaway_keys_of_one_address_have_one_share(line: Line) -> None:
    for number in range(200):
        line.keeps_asking(stranger(number, "10.0.0.9"))
    honest = stranger(1000, "10.0.0.1")
    line.keeps_asking(honest)
    await line.pass_s(10.0)
    others = sum(line.got.values()) - line.got[honest.peer]
    assert line.got[honest.peer] >= others - 2 * STRANGER_BYTES


async def test_who_asks_and_leaves_uses_nothing_up(line: Line) -> None:
    first = asyncio.create_task(line.ask(stranger(0, "10.0.0.1")))
    await line.pass_s(0.5)
    assert first.done()
    for number in range(100):
        asked = asyncio.create_task(line.ask(stranger(number, f"10.0.1.{number}")))
        await asyncio.sleep(0.002)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
    honest = asyncio.create_task(line.ask(stranger(1000, "10.0.0.2")))
    await line.pass_s(1.5)
    assert honest.done()


async def test_who_does_not_take_what_was_sent_is_sent_no_more(line: Line) -> None:
    asker = staked(1)
    await line.ask(asker)
    asker.is_sending = True
    with pytest.raises(Refused) as refused:
        await line.ask(asker)
    assert refused.value.code == BUSY


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda ask: wire.FetchFile("0x" + "cd" * 32, *ask), NOT_HERE),
        (lambda ask: wire.FetchFile(MODEL_ID, "other.json", 0, 1), NOT_HERE),
        (lambda ask: wire.FetchFile(MODEL_ID, WEIGHTS, 5, 5), NOT_HERE),
        (lambda ask: wire.FetchFile(MODEL_ID, WEIGHTS, 2**60, 2**61), NOT_HERE),
    ],
)
async def test_what_is_not_here_is_refused(
    line: Line, change: Callable[[tuple[Any, ...]], wire.FetchFile], code: str
) -> None:
    with pytest.raises(Refused) as refused:
        await line.sharing.answer(staked(1), change((WEIGHTS, 0, 1)))  # type: ignore[arg-type]
    assert refused.value.code == code


async def test_a_rate_of_nothing_shares_nothing(source: Path, manifest: ModelManifest) -> None:
    with pytest.raises(Refused) as refused:
        await Line(source, manifest, rate=0).ask(staked(1))
    assert refused.value.code == OFF


# --- over real streams ---


async def test_layers_come_from_two_miners_alone(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    """Neither has all of it; one of them knows the asker as one with stake."""
    listeners, places = [], []
    for number, spans in enumerate((((0, 2),), ((2, 3), (3, 4)))):
        folder = begun(manifest, tmp_path / f"of {number}", source, *spans)
        files = SharedFiles(folder, manifest.hash(), SystemClock())
        shares = Sharing(MODEL_ID, files, 2**26, SystemClock())

        async def handle(
            channel: Channel, frame: wire.Frame, shares: Sharing = shares
        ) -> tuple[wire.AnyMessage, bytes]:
            assert isinstance(frame.message, wire.FetchFile)
            try:
                return await shares.answer(channel, frame.message)
            except Refused as refusal:
                return wire.Failed(refusal.code, refusal.reason), b""

        known = frozenset({key(9).address.lower()}) if number else frozenset()
        listener = Listener(
            StreamIdentity(key(100 + number), DOMAIN), handle, standing=lambda known=known: known
        )
        await listener.start("127.0.0.1", 0)
        sharer = Sharer(key(100 + number).address, f"127.0.0.1:{listener.port}", None)
        listeners.append(listener)
        places.append(PeerPlace(MODEL_ID, sharer, StreamIdentity(key(9), DOMAIN)))

    def work() -> None:
        folder = tmp_path / "m"
        assert places[0].whole(MANIFEST_FILE, 2**20) == manifest.to_json()
        begin(manifest, folder)
        pull_small_files(manifest, folder, places)
        pull(PulledFolder(folder), layers_of(folder, manifest, LayerRange(1, 4)), places)
        load_shard(folder, LayerRange(1, 4))

    try:
        await asyncio.to_thread(work)
    finally:
        for listener in listeners:
            await listener.close()


async def test_answers_go_on_while_many_pull(start: Start, chain: FakeChain) -> None:
    """Forty keys that ask for files all the time change no token, and none fails."""
    machines = await start((0, 2), (2, 4))
    streams = [
        await connect(
            machine.endpoint,
            StreamIdentity(key(300 + number), machine.book.domain),
            expected=machine.signer.address,
        )
        for number in range(20)
        for machine in machines
    ]
    answers = Counter[str]()

    async def pulls(stream: Channel) -> None:
        model_id = machines[0].terms.model_id
        while True:
            frame = await stream.call(wire.FetchFile(model_id, WEIGHTS, 0, 2**30), timeout_s=60)
            answers[type(frame.message).__name__] += 1

    pulling = [asyncio.create_task(pulls(stream)) for stream in streams]
    requester = Requester(key(50), chain, machines)
    ids = (104, 101, 108)
    requester.order([(ids, greedy(24))])
    try:
        await requester.run_all(key(40))
    finally:
        for task in pulling:
            task.cancel()
        await asyncio.gather(*pulling, return_exceptions=True)
        await asyncio.gather(*(stream.close() for stream in streams), requester.close())
    assert requester.tokens[0] == reference(machines[0].model_dir, ids, greedy(24), 0)
    assert answers["FileBytes"] >= 2
    assert answers.keys() <= {"FileBytes", "Failed"}
