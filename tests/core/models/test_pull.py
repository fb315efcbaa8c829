"""A machine fetches the bytes of its layers, each tensor is held to its root, and no more."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from core.engine.weights.load_shard import load_shard
from core.engine.weights.manifest import MANIFEST_FILE, ModelManifest
from core.engine.weights.pulled import PULLED_FILE, PulledFolder
from core.engine.weights.shape import describe_model
from core.engine.weights.weights import contents_hash, weight_roots
from core.models import pull as pulling
from core.models.places import FolderPlace, Sink
from core.models.publication import publication_of
from core.models.pull import begin, layers_of, plan_pull, pull, pull_small_files, unproven
from core.protocol.errors import CheckFailed, DiskFull, ModelMissing, Unreachable
from core.protocol.types import LayerRange
from devnet.models.tiny_models import write_tiny_model

LAYERS = 8


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three files."""
    return write_tiny_model(tmp_path_factory.mktemp("source"), "llama", layers=LAYERS, files=3)


@pytest.fixture(scope="module")
def manifest(source: Path) -> ModelManifest:
    return publication_of(source).manifest


@dataclass
class Wire:
    """A place that counts what it is asked for, and can be spoiled."""

    folder: Path
    uri: str = "test://one"
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    spoil: Callable[[str, int, bytes], bytes] = lambda file, at, data: data
    cuts: int = 0  # answers that stop in the middle
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, file: str, start: int, end: int, size: int, sink: Sink) -> None:
        with self.lock:
            self.asked.append((file, start, end))
            is_cut, self.cuts = self.cuts > 0, max(0, self.cuts - 1)
        data = (self.folder / file).read_bytes()
        assert size == len(data)
        upto = (start + end + 1) // 2 if is_cut else end
        for at in range(start, upto, 1000):
            sink(at, self.spoil(file, at, data[at : min(at + 1000, upto)]))
        if is_cut:
            raise Unreachable("the wire was cut")

    @property
    def bytes_asked(self) -> int:
        return sum(end - start for _, start, end in self.asked)


def begun(manifest: ModelManifest, folder: Path, source: Path) -> PulledFolder:
    begin(manifest, folder)
    pull_small_files(manifest, folder, [FolderPlace(source)])
    return PulledFolder(folder)


def run(pulled: PulledFolder, layers: LayerRange, *places: Wire) -> int:
    names = layers_of(pulled.model_dir, pulled.manifest, layers)
    return pull(pulled, names, places, sleep=lambda s: None)


def size_of(manifest: ModelManifest, folder: Path, layers: LayerRange) -> int:
    return sum(manifest.tensors[name].size_bytes for name in layers_of(folder, manifest, layers))


@pytest.mark.parametrize("span", [(0, 3), (3, 5), (5, 8), (0, 8)])
def test_a_pulled_part_computes_what_the_whole_does_and_took_no_other_bytes(
    span: tuple[int, int], source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    layers, folder = LayerRange(*span), tmp_path / "m"
    pulled, wire = begun(manifest, folder, source), Wire(source)
    assert run(pulled, layers, wire) == wire.bytes_asked == size_of(manifest, folder, layers)
    assert run(PulledFolder(folder), layers, wire) == 0

    assert describe_model(folder) == describe_model(source)
    assert weight_roots(folder) == weight_roots(source)
    assert contents_hash(folder) == contents_hash(source)
    shard, whole = load_shard(folder, layers), load_shard(source, layers)
    x = torch.arange(5) if layers.start == 0 else torch.randn(5, shard.hidden)
    assert torch.equal(shard.forward(x, shard.new_cache()), whole.forward(x, whole.new_cache()))
    if layers != LayerRange(0, LAYERS):
        other = LayerRange(6, 8) if layers.start == 0 else LayerRange(0, 2)
        with pytest.raises(ModelMissing, match="is not on this machine"):
            load_shard(folder, other)


def test_a_changed_assignment_fetches_the_difference(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    pulled, wire = begun(manifest, tmp_path / "m", source), Wire(source)
    run(pulled, LayerRange(2, 5), wire)
    wire.asked.clear()
    fetched = run(pulled, LayerRange(3, 7), wire)
    assert fetched == wire.bytes_asked == size_of(manifest, pulled.model_dir, LayerRange(5, 7))


def test_files_with_holes_take_the_room_of_what_is_here(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "source", "llama", layers=LAYERS, hidden=256)
    manifest = publication_of(source).manifest
    pulled = begun(manifest, tmp_path / "m", source)
    run(pulled, LayerRange(4, 5), Wire(source))
    (file,) = {t.file for t in manifest.tensors.values()}
    seen = (pulled.model_dir / file).stat()
    assert seen.st_size == manifest.files[file].size_bytes
    assert seen.st_blocks * 512 < seen.st_size / 4


def test_a_cut_wire_goes_on_where_it_was(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    pulled, wire = begun(manifest, tmp_path / "m", source), Wire(source, cuts=5)
    layers = LayerRange(0, LAYERS)
    assert run(pulled, layers, wire) == size_of(manifest, pulled.model_dir, layers)
    assert len(wire.asked) > len({(file, start) for file, start, _ in wire.asked}) - 1
    load_shard(pulled.model_dir, layers)


def test_a_dead_place_is_left_for_the_next(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    pulled, dead = begun(manifest, tmp_path / "m", source), Wire(source, cuts=10**9)
    with pytest.raises(Unreachable, match="cut"):
        run(pulled, LayerRange(0, 1), Wire(source, uri="test://dead", cuts=0, spoil=_die))
    run(pulled, LayerRange(0, 2), dead, Wire(source, uri="test://two"))
    load_shard(pulled.model_dir, LayerRange(0, 2))


def test_a_dead_place_costs_its_waits_once_and_not_for_every_piece(
    source: Path, manifest: ModelManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "_PIECE_BYTES", 2000)
    pulled, honest = begun(manifest, tmp_path / "m", source), Wire(source, uri="test://two")
    dead = Wire(source, uri="test://dead", spoil=_die)
    run(pulled, LayerRange(0, LAYERS), dead, honest)
    assert len(dead.asked) <= pulling._ATTEMPTS * pulling._AT_ONCE < len(honest.asked)
    (tmp_path / "other").mkdir()
    dead.asked.clear()
    pull_small_files(manifest, tmp_path / "other", [dead, honest])
    assert len(dead.asked) == 1


def _die(file: str, at: int, data: bytes) -> bytes:
    raise Unreachable("the wire was cut")


def _lie(file: str, at: int, data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def test_wrong_bytes_are_never_loaded_and_come_from_elsewhere(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    pulled, liar = begun(manifest, tmp_path / "m", source), Wire(source, "test://liar", spoil=_lie)
    layers = LayerRange(2, 4)
    with pytest.raises(CheckFailed, match="no place has the published") as caught:
        run(pulled, layers, liar)
    assert "test://liar: other bytes" in caught.value.why
    assert PulledFolder(pulled.model_dir).here == frozenset()
    with pytest.raises(ModelMissing):
        load_shard(pulled.model_dir, layers)

    honest = Wire(source, "test://honest")
    run(pulled, layers, liar, honest)
    assert torch.equal(
        load_shard(pulled.model_dir, layers).decoder_layers[0].mlp.up_proj.weight,
        load_shard(source, layers).decoder_layers[0].mlp.up_proj.weight,
    )


def test_bytes_that_rot_on_the_disk_are_found_when_they_are_loaded(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    pulled, layers = begun(manifest, tmp_path / "m", source), LayerRange(0, LAYERS)
    run(pulled, layers, Wire(source))
    name = "model.layers.3.mlp.down_proj.weight"
    fact = manifest.tensors[name]
    file = pulled.model_dir / fact.file
    data = bytearray(file.read_bytes())
    data[fact.start_byte + 99] ^= 4
    file.write_bytes(data)
    assert unproven(pulled, sorted(pulled.here) or sorted(manifest.tensors)) == [name]
    for numerics in ("float32", "bfloat16", "float64", "int8-weight-only"):
        with pytest.raises(CheckFailed, match="is not the published tensor"):
            load_shard(pulled.model_dir, layers, numerics=numerics)
    load_shard(pulled.model_dir, LayerRange(0, 3))


def test_an_interrupted_pull_fetches_no_byte_of_a_complete_piece_twice(
    source: Path, manifest: ModelManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "_PIECE_BYTES", 2000)
    monkeypatch.setattr(pulling, "_AT_ONCE", 1)
    layers, folder = LayerRange(0, LAYERS), tmp_path / "m"
    begun(manifest, folder, source)
    wire = Wire(source)
    whole = size_of(manifest, folder, layers)
    for after in (7, 3, 40, 1):
        left = [after]

        def stop(file: str, at: int, data: bytes, left: list[int] = left) -> bytes:
            left[0] -= 1
            if left[0] < 0:
                raise InterruptedError
            return data

        wire.spoil = stop
        with pytest.raises(InterruptedError):
            run(PulledFolder(folder), layers, wire)
    before = plan_pull(PulledFolder(folder), layers_of(folder, manifest, layers)).bytes_to_fetch
    assert before < whole
    wire.spoil = lambda file, at, data: data
    assert run(PulledFolder(folder), layers, wire) == before
    load_shard(folder, layers)


def test_a_full_disk_is_said_before_a_byte_is_fetched(
    source: Path, manifest: ModelManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled, wire = begun(manifest, tmp_path / "m", source), Wire(source)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(DiskFull, match="no room"):
        run(pulled, LayerRange(0, LAYERS), wire)
    assert wire.asked == []


def test_small_files_are_held_to_their_hashes(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    def lie(file: str, at: int, data: bytes) -> bytes:
        return data.replace(b"llama", b"mixed")

    folder = tmp_path / "m"
    begin(manifest, folder)
    with pytest.raises(CheckFailed, match="has another config"):
        pull_small_files(manifest, folder, [Wire(source, spoil=lie)])
    assert not (folder / "config.json").exists()
    pull_small_files(manifest, folder, [Wire(source, spoil=lie), Wire(source)])
    assert (folder / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert not list(folder.glob("*.safetensors"))
    nothing = Wire(source)
    pull_small_files(manifest, folder, [nothing])
    assert nothing.asked == []


def test_a_torn_line_of_what_is_here_counts_as_nothing(
    source: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    pulled = begun(manifest, tmp_path / "m", source)
    run(pulled, LayerRange(1, 2), Wire(source))
    file = pulled.model_dir / PULLED_FILE
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]) + "\nnonsense\n" + lines[-1][:-3])
    assert PulledFolder(pulled.model_dir).here == set(lines[:-1])
    (pulled.model_dir / MANIFEST_FILE).unlink()
    with pytest.raises(ModelMissing, match="pulled in part"):
        describe_model(pulled.model_dir)
