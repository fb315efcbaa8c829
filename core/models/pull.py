"""How do the layers that a machine needs come onto its disk, and nothing else?

Ranges of bytes are fetched several at once, from whichever place has them. A tensor is held to its
published root as soon as it is complete, and only then written down as here. What was fetched of an
incomplete one is found again after an interruption.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from core.engine.model.config_facts import read_config
from core.engine.model.families import family_of
from core.engine.model.naming import sort_parts
from core.engine.weights.contents import FileFact, TensorFact
from core.engine.weights.headers import INDEX_FILE
from core.engine.weights.manifest import MANIFEST_FILE, ModelManifest
from core.engine.weights.packed_formats import packing_of
from core.engine.weights.proof import check_root
from core.engine.weights.pulled import PULLED_FILE, PulledFolder
from core.engine.weights.shape import is_tied, layer_count
from core.engine.weights.stored import TensorHasher
from core.models.peers import PeerPlace
from core.models.places import ModelPlace
from core.protocol import hashing
from core.protocol.errors import (
    CheckFailed,
    DiskFull,
    HeadraceError,
    ModelMissing,
    PeerUnreachable,
    Unreachable,
)
from core.protocol.types import LayerRange
from core.protocol.whole_file import write_whole

#: Called with how many of all bytes were fetched or were here.
Progress = Callable[[int, int], None]
PIECES_FILE = "headrace-pieces.txt"
_PIECE_BYTES = 16 * 2**20
_AT_ONCE = 4
_ATTEMPTS = 4  # at one place, without a byte between them
_PAUSE_S = 0.5
#: What a disk must have left beside what is fetched.
_SPARE_BYTES = 64 * 2**20
_READ_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Piece:
    """Some bytes of one file that are fetched with one request, and whose tensors they are."""

    file: str
    start: int
    end: int
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class PullPlan:
    """What is missing of the layers that are wanted."""

    tensors: tuple[str, ...]
    pieces: tuple[Piece, ...]
    bytes_in_all: int  # of the tensors that are wanted, here or not

    @property
    def bytes_to_fetch(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)


def begin(manifest: ModelManifest, folder: Path) -> None:
    """Make a folder one that tensors of this model are pulled into, unless it is."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / MANIFEST_FILE).is_file() and (folder / PULLED_FILE).is_file():
        return
    write_whole(folder / MANIFEST_FILE, manifest.to_json())
    (folder / PULLED_FILE).touch()


def pull_small_files(
    manifest: ModelManifest,
    folder: Path,
    places: Sequence[ModelPlace],
    names: Iterable[str] | None = None,
) -> None:
    """Fetch the files that hold no weights, or the named ones of them, each held to its SHA-256.

    Raises CheckFailed where every place has others, or what the last place raised.
    """
    order = list(places)
    for name in missing_small_files(manifest, folder) if names is None else names:
        data = _small_file(name, manifest.files[name], order, manifest)
        write_whole(folder / name, data)


def missing_small_files(manifest: ModelManifest, folder: Path) -> list[str]:
    """Files without weights that a folder lacks, or has other bytes of."""
    weights = {tensor.file for tensor in manifest.tensors.values()} | {INDEX_FILE}
    found = []
    for name in sorted(manifest.files.keys() - weights):
        fact, path = manifest.files[name], folder / name
        is_long = path.is_file() and path.stat().st_size == fact.size_bytes
        if not is_long or file_sha256(path) != fact.sha256:
            found.append(name)
    return found


def _small_file(
    name: str, fact: FileFact, places: list[ModelPlace], manifest: ModelManifest
) -> bytes:
    """The published bytes of a file. Places that fail become the last ones."""
    last: HeadraceError = _no_place(manifest)
    for place in list(places):
        parts: list[bytes] = []

        def take(_: int, data: bytes, parts: list[bytes] = parts) -> None:
            parts.append(data)

        try:
            if fact.size_bytes:
                place.read(name, 0, fact.size_bytes, fact.size_bytes, take)
        except HeadraceError as error:
            last = error
            places.append(places.pop(places.index(place)))
            continue
        data = b"".join(parts)
        if sha256(data).hexdigest() == fact.sha256:
            return data
        places.append(places.pop(places.index(place)))
        last = CheckFailed(
            f"{place.uri} has another {name}",
            "its SHA-256 is not the one that was published",
            state="it was thrown away",
            next_step="fetch it from another place",
        )
    raise last


def layers_of(folder: Path, manifest: ModelManifest, layers: LayerRange | None) -> list[str]:
    """Stored names of the tensors that a machine with these layers needs; all for None.

    The folder has `config.json`. Raises ModelUnsupported or ModelMissing.
    """
    if layers is None:
        return list(manifest.tensors)
    config = read_config(folder)
    packing = packing_of(config, manifest.tensors)
    parts = sort_parts(
        packing.names(manifest.tensors),
        family_of(config),
        layers=layer_count(config),
        tied=is_tied(config),
    )
    if layers.end > len(parts.layers):
        raise ModelMissing(
            f"there are no layers {layers}", why=f"the model has 0-{len(parts.layers) - 1}"
        )
    return packing.stored(parts.of(layers.start, layers.end).values())


def plan_pull(pulled: PulledFolder, names: Iterable[str]) -> PullPlan:
    """What must be fetched for these tensors: neighbours together, in order of place."""
    facts, wanted = pulled.manifest.tensors, list(names)
    missing = sorted(
        (name for name in wanted if name not in pulled.here),
        key=lambda name: (facts[name].file, facts[name].start_byte),
    )
    done = _Pieces(pulled.model_dir)
    pieces: list[Piece] = []
    for name in missing:
        fact = facts[name]
        end_byte = fact.start_byte + fact.size_bytes
        for start in range(fact.start_byte, end_byte, _PIECE_BYTES):
            end = min(start + _PIECE_BYTES, end_byte)
            if (fact.file, start, end) in done:
                continue
            last = pieces[-1] if pieces else None
            joins = last and (last.file, last.end) == (fact.file, start)
            if last and joins and end - last.start <= _PIECE_BYTES:
                pieces[-1] = Piece(fact.file, last.start, end, (*last.tensors, name))
            else:
                pieces.append(Piece(fact.file, start, end, (name,)))
    return PullPlan(tuple(missing), tuple(pieces), sum(facts[n].size_bytes for n in wanted))


def pull(
    pulled: PulledFolder,
    names: Sequence[str],
    places: Sequence[ModelPlace],
    *,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Fetch these tensors unless they are here; returns how many bytes came over the wire.

    Raises DiskFull before anything is fetched, CheckFailed where every place has other bytes than
    were published, or what the last place raised. What is complete then is kept.
    """
    from filelock import FileLock

    with FileLock(pulled.model_dir / ".headrace-pull.lock"):
        pulled = PulledFolder(pulled.model_dir)  # as another process left it
        plan = plan_pull(pulled, names)
        if not plan.tensors:
            return 0
        refuse_full_disk(pulled.model_dir, plan.bytes_to_fetch)
        hashing.hash_in_c()
        work = _Pull(pulled, plan, list(places), progress, sleep)
        work.run()
        return work.fetched_bytes


def refuse_full_disk(folder: Path, needed_bytes: int) -> None:
    """Raise DiskFull where a folder's disk has no room for as many more bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise DiskFull(
            f"there is no room for {needed_bytes / 2**30:.2f} GiB more",
            why=f"{free / 2**30:.2f} GiB are free at {folder}",
            state="nothing was fetched; what was here is kept",
            next_step="free some room, hold fewer layers, or set HEADRACE_HOME to another disk",
        )


def unproven(pulled: PulledFolder, names: Iterable[str]) -> list[str]:
    """Of these tensors those whose bytes on the disk are not the published ones."""
    hashing.hash_in_c()
    found = []
    for name in names:
        try:
            _prove(pulled, name)
        except (CheckFailed, OSError):
            found.append(name)
    return found


class _Pieces:
    """Which pieces of incomplete tensors are on the disk, by what was written down."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PIECES_FILE
        self._done: set[tuple[str, int, int]] = set()
        with suppress(FileNotFoundError):
            text = self._path.read_text("utf-8", errors="replace")
            for line in text.rpartition("\n")[0].split("\n"):
                start, _, rest = line.partition(" ")
                end, _, file = rest.partition(" ")
                if start.isdecimal() and end.isdecimal() and file:
                    self._done.add((file, int(start), int(end)))

    def __contains__(self, piece: tuple[str, int, int]) -> bool:
        return piece in self._done

    def add(self, file: str, start: int, end: int) -> None:
        self._done.add((file, start, end))
        with self._path.open("a", encoding="utf-8") as out:
            out.write(f"{start} {end} {file}\n")

    def drop(self, *facts: TensorFact) -> None:
        """Forget what there is of tensors: they are complete, or are fetched anew."""
        for fact in facts:
            end = fact.start_byte + fact.size_bytes
            self._done = {
                p for p in self._done if not _is_within(p, fact.file, fact.start_byte, end)
            }
        lines = "".join(f"{start} {end} {file}\n" for file, start, end in sorted(self._done))
        write_whole(self._path, lines.encode())


@dataclass
class _Pull:
    pulled: PulledFolder
    plan: PullPlan
    places: list[ModelPlace]
    progress: Progress | None
    sleep: Callable[[float], None]
    fetched_bytes: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _left: dict[str, int] = field(default_factory=dict)  # tensor → pieces
    _faults: Counter[str] = field(default_factory=Counter)  # of places: wrong bytes, or no more
    _asked: Counter[str] = field(default_factory=Counter)  # of machines: pieces that they send now
    _stopped: bool = False

    def __post_init__(self) -> None:
        self._pieces = _Pieces(self.pulled.model_dir)

    def run(self) -> None:
        """Fetch all pieces. Raises what a piece raises that no place has."""
        facts = self.pulled.manifest.tensors
        for file in {facts[name].file for name in self.plan.tensors}:
            self._make_room(file)
        for name in self.plan.tensors:
            self._left[name] = sum(name in piece.tensors for piece in self.plan.pieces)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull") as threads:
            for name in [n for n, left in self._left.items() if not left]:
                self._complete(name)  # its pieces were here, its proof was not
            futures = [threads.submit(self._piece, piece) for piece in self.plan.pieces]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._pieces.drop(*(facts[name] for name in self.plan.tensors))
            finally:
                self._stopped = True
                for future in futures:
                    future.cancel()

    def _make_room(self, file: str) -> None:
        path, size = self.pulled.model_dir / file, self.pulled.manifest.files[file].size_bytes
        with path.open("ab"):
            pass
        if path.stat().st_size != size:
            os.truncate(path, size)  # a hole, which takes no room

    def _piece(self, piece: Piece) -> None:
        self._fetch(piece, self._places())
        for name in piece.tensors:
            fact = self.pulled.manifest.tensors[name]
            with self._lock:
                start = max(piece.start, fact.start_byte)
                end = min(piece.end, fact.start_byte + fact.size_bytes)
                self._pieces.add(piece.file, start, end)
                self._left[name] -= 1
                is_complete = not self._left[name]
            if is_complete:
                self._complete(name)

    def _places(self) -> list[ModelPlace]:
        """All places, those last that had wrong bytes or broke off.

        Of machines that serve the model those first that send least now: each has a small rate.
        """
        with self._lock:
            return sorted(self.places, key=lambda p: (self._faults[p.uri], self._asked[p.uri]))

    @contextmanager
    def _asking(self, place: ModelPlace) -> Iterator[None]:
        count = isinstance(place, PeerPlace)
        with self._lock:
            self._asked[place.uri] += count
        try:
            yield
        finally:
            with self._lock:
                self._asked[place.uri] -= count

    def _blame(self, place: ModelPlace) -> None:
        with self._lock:
            self._faults[place.uri] += 1

    def _fetch(self, piece: Piece, places: Sequence[ModelPlace]) -> None:
        """Bring a piece onto the disk, each part of it from the first place that has it.

        A place that fails is not asked again for this piece. One that lacks some of it is, once
        another has sent that.
        """
        at, last, left = piece.start, None, list(places)
        size = self.pulled.manifest.files[piece.file].size_bytes
        with (self.pulled.model_dir / piece.file).open("r+b", buffering=0) as out:

            def write(offset: int, data: bytes) -> None:
                nonlocal at
                if self._stopped:
                    raise Unreachable("fetching was stopped")
                os.pwrite(out.fileno(), data, offset)
                at = offset + len(data)
                self._note(len(data))

            def rest_from(place: ModelPlace) -> HeadraceError | None:
                """Read on from one place; why it ended early, if it did."""
                failures = 0
                while True:
                    before = at
                    try:
                        place.read(piece.file, at, piece.end, size, write)
                        return None
                    except Unreachable as error:
                        if self._stopped:
                            raise
                        failures = 0 if at > before else failures + 1
                        if failures == _ATTEMPTS or isinstance(error, PeerUnreachable):
                            return error
                    except HeadraceError as error:
                        return error  # asking again changes nothing
                    self.sleep(_PAUSE_S * 2**failures)

            while left:
                began = at
                for place in list(left):
                    with self._asking(place):
                        error = rest_from(place)
                    if error is None:
                        return
                    if last is None or not isinstance(error, ModelMissing):
                        last = error
                    if not isinstance(error, ModelMissing):
                        left.remove(place)
                        self._blame(place)
                if at == began or len(left) == 1:
                    break  # nobody is left who may send what the last one lacks
        raise last or _no_place(self.pulled.manifest)

    def _complete(self, name: str) -> None:
        """Hold a tensor to its root; what is not the published one is fetched again."""
        if not self._is_published(name):
            self._from_one_place(name)
        with self._lock:
            self.pulled.note([name])

    def _is_published(self, name: str) -> bool:
        try:
            _prove(self.pulled, name)
        except CheckFailed:
            return False
        return True

    def _from_one_place(self, name: str) -> None:
        """Fetch a tensor from one place after the other until one has the published bytes.

        Raises CheckFailed where none has.
        """
        fact, tried = self.pulled.manifest.tensors[name], list[str]()
        with self._lock:
            self._pieces.drop(fact)
        for place in self._places():
            try:
                self._fetch(
                    Piece(fact.file, fact.start_byte, fact.start_byte + fact.size_bytes, (name,)),
                    [place],
                )
            except HeadraceError as error:
                if self._stopped:
                    raise
                tried.append(f"{place.uri}: {error.what}")
                continue
            if self._is_published(name):
                return
            self._blame(place)
            tried.append(f"{place.uri}: other bytes")
        raise CheckFailed(
            f"no place has the published {name}",
            "; ".join(tried),
            state="none of it is used; every other tensor that came is kept",
            next_step="ask the publisher, or fetch it from a machine that serves the model",
        )

    def _note(self, count: int) -> None:
        with self._lock:
            self.fetched_bytes += count
            here = self.plan.bytes_in_all - self.plan.bytes_to_fetch + self.fetched_bytes
            if self.progress is not None:
                self.progress(min(here, self.plan.bytes_in_all), self.plan.bytes_in_all)


def _prove(pulled: PulledFolder, name: str) -> None:
    """Raise CheckFailed where a tensor's bytes on the disk are not the published ones."""
    fact = pulled.fact(name)
    hasher, left = TensorHasher(fact.dtype, fact.shape), fact.size_bytes
    with (pulled.model_dir / fact.file).open("rb", buffering=0) as stream:
        stream.seek(fact.start_byte)
        while left:
            data = stream.read(min(left, _READ_BYTES))
            if not data:
                raise CheckFailed(f"{fact.file} ends in the middle of {name}")
            hasher.update(memoryview(data))
            left -= len(data)
    check_root(name, fact.root, hasher.root())


def _is_within(piece: tuple[str, int, int], file: str, start: int, end: int) -> bool:
    return piece[0] == file and start <= piece[1] and piece[2] <= end


def file_sha256(path: Path) -> str:
    """SHA-256 of a small file, hex."""
    return sha256(path.read_bytes()).hexdigest()


def _no_place(manifest: ModelManifest) -> ModelMissing:
    return ModelMissing(
        "no place is known that has the model's files",
        why=f"it has {len(manifest.files)} files",
        next_step="name one with --from",
    )
