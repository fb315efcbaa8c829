"""How are exactly a tensor's bytes read from a model folder, and held to what was published?

A shard must own its memory (64-byte aligned, not a view of a mapped file) so that the same shapes
give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from io import RawIOBase
from pathlib import Path

import numpy as np

from core.engine.weights.contents import TensorFact
from core.engine.weights.headers import TensorEntry, locate, read_header
from core.engine.weights.packed import (
    Array,
    CodedRows,
    Floats,
    PackedWeight,
    piece_values,
    read_pieces,
)
from core.engine.weights.packed_formats import packing_in
from core.engine.weights.proof import RootProof, TensorProof
from core.engine.weights.pulled import PulledFolder
from core.engine.weights.stored import as_float32
from core.protocol.errors import ModelUnsupported


class TensorFolder:
    """The tensors of a model in a folder, indexed by name; reads nothing but headers until asked.

    A packed weight is one tensor of float32 here, whatever it is stored as. Of a folder that was
    `pulled`, all tensors of the model are known and some can be read. What is read of it is hashed
    meanwhile: use nothing before `prove`. `bytes_read` counts the tensor bytes read since the
    folder was opened, `files_opened` the files they came from.
    """

    def __init__(self, model_dir: Path) -> None:
        """Raises ModelMissing without safetensors, ModelUnsupported for damaged or foreign ones."""
        self.model_dir = Path(model_dir)
        self.pulled = PulledFolder.find(self.model_dir)
        self._where = {} if self.pulled else locate(self.model_dir)
        self._headers: dict[Path, dict[str, TensorEntry]] = {}
        self._proof: RootProof | None = None
        self.packing = packing_in(self.model_dir, _StoredByName(self._stored_names(), self._stored))
        self.bytes_read = 0
        self.files_opened: set[Path] = set()

    def names(self) -> list[str]:
        """Names of all tensors of the model."""
        return self.packing.names(self._stored_names())

    def entry(self, name: str) -> TensorEntry:
        """Place, dtype and shape of one tensor. Opens headers of the files that hold it only.

        Of a packed weight they are its values' dtype and shape, the place of its codes, and the
        bytes of all its pieces.
        """
        packed = self.packing.weights.get(name)
        if packed is None:
            return self._stored(name)
        pieces = {role: self._stored(stored) for role, stored in packed.pieces.items()}
        codes = pieces["codes"]
        size_bytes = sum(piece.size_bytes for piece in pieces.values())
        return TensorEntry(name, codes.file, "F32", packed.shape, codes.offset_bytes, size_bytes)

    def _stored_names(self) -> Collection[str]:
        return self.pulled.manifest.tensors if self.pulled else self._where

    def _stored(self, name: str) -> TensorEntry:
        if self.pulled:
            fact = self.pulled.fact(name)
            return TensorEntry(
                name=name,
                file=self.model_dir / fact.file,
                dtype=fact.dtype,
                shape=fact.shape,
                offset_bytes=fact.start_byte,
                size_bytes=fact.size_bytes,
            )
        file = self._where[name]
        if file not in self._headers:
            self._headers[file] = read_header(file)
        try:
            return self._headers[file][name]
        except KeyError:
            raise ModelUnsupported(
                f"cannot load {self.model_dir.name}",
                why=f"its index says that {file.name} holds {name}, and it does not",
            ) from None

    def entries(self) -> Iterator[TensorEntry]:
        """Every tensor that can be read and is not packed."""
        here = self.pulled.here if self.pulled else self._where
        plain = (name for name in self.packing.names(here) if name not in self.packing.weights)
        return (self._stored(name) for name in plain)

    def prove(self) -> None:
        """Raises CheckFailed if anything read from a pulled folder is not the published tensor."""
        if self._proof:
            self._proof.wait()

    def read_into(self, name: str, target: memoryview) -> None:
        """Fill `target`, as long as the tensor is in its stored dtype, with the tensor's bytes."""
        entry = self._readable(name)
        if target.nbytes != entry.size_bytes:
            raise ValueError(f"{name} has {entry.size_bytes} bytes, the target {target.nbytes}")
        with entry.file.open("rb", buffering=0) as stream:
            stream.seek(entry.offset_bytes)
            self._fill(target.cast("B"), stream, entry)
        if self.pulled:
            proof = self._prove(name, self.pulled.fact(name))
            proof.take(target.cast("B"))
            proof.end()
        self._note(entry)

    def read_blocks(self, name: str, buffer: memoryview) -> Iterator[int]:
        """Fill `buffer` with the tensor's bytes, part by part; yields how many bytes each part has.

        Every part but the last fills the buffer, whose length is a multiple of the stored item's.
        """
        entry = self._readable(name)
        proof = self._prove(name, self.pulled.fact(name)) if self.pulled else None
        with entry.file.open("rb", buffering=0) as stream:
            stream.seek(entry.offset_bytes)
            left = entry.size_bytes
            while left:
                part = buffer[: min(left, len(buffer))]
                self._fill(part, stream, entry)
                if proof:  # the buffer is filled again meanwhile
                    proof.take(memoryview(bytearray(part)))
                left -= len(part)
                yield len(part)
        if proof:
            proof.end()
        self._note(entry)

    def read_values(self, name: str) -> Iterator[Floats]:
        """The float32 values of a packed weight, some indices of its first dimension at a time."""
        weight = self.packing.weights[name]
        yield from self._proven(weight, read_pieces(weight, self._piece))

    def read_coded(self, name: str) -> CodedRows:
        """All rows of a packed matrix as they are stored, their values held to the root."""
        weight = self.packing.weights[name]
        pieces = read_pieces(weight, self._piece)
        if self.pulled:
            for _ in self._proven(weight, pieces):
                pass
        return weight.read(pieces, 0, weight.shape[0])

    def _proven(self, weight: PackedWeight, pieces: Mapping[str, Array]) -> Iterator[Floats]:
        name, proof = weight.name, None
        if self.pulled:
            root = self.pulled.manifest.values.get(name)
            if root is None:
                raise ModelUnsupported(
                    f"{name} has no root", why="the manifest does not say which numbers it is"
                )
            proof = self._proving().begin(name, "F32", weight.shape, root)
        for block in weight.blocks(pieces):
            if proof:
                proof.take(block.data.cast("B"))
            yield block
        if proof:
            proof.end()

    def _piece(self, stored: str) -> Array:
        """A piece of a packed weight; the values are held to their root, not the piece to its."""
        entry = self._readable(stored)
        data = bytearray(entry.size_bytes)
        with entry.file.open("rb", buffering=0) as stream:
            stream.seek(entry.offset_bytes)
            self._fill(memoryview(data), stream, entry)
        self._note(entry)
        return piece_values(memoryview(data), entry.dtype, entry.shape)

    def read_float32(self, name: str) -> Floats:
        """One tensor as a fresh little-endian float32 array: rounded, widened, or unpacked.

        Raises CheckFailed where a pulled folder's is not the published one.
        """
        entry = self.entry(name)
        if name in self.packing.weights:
            values = np.concatenate(list(self.read_values(name)))
            self.prove()
            return values
        stored = np.empty(entry.size_bytes, dtype=np.uint8)
        if entry.size_bytes:
            self.read_into(name, stored.data)
        self.prove()
        return as_float32(stored.data, entry.dtype).reshape(entry.shape)

    def _readable(self, name: str) -> TensorEntry:
        if self.pulled:
            self.pulled.require(name)
        return self._stored(name)

    def _prove(self, name: str, fact: TensorFact) -> TensorProof:
        return self._proving().begin(name, fact.dtype, fact.shape, fact.root)

    def _proving(self) -> RootProof:
        self._proof = self._proof or RootProof()
        return self._proof

    def _fill(self, view: memoryview, stream: RawIOBase, entry: TensorEntry) -> None:
        done = 0
        while done < len(view):
            count = stream.readinto(view[done:])
            if not count:
                raise ModelUnsupported(
                    f"cannot read {entry.name}", why=f"{entry.file.name} ends in the middle of it"
                )
            done += count

    def _note(self, entry: TensorEntry) -> None:
        self.bytes_read += entry.size_bytes
        self.files_opened.add(entry.file)


class _StoredByName(Mapping[str, TensorEntry]):
    """Stored tensors by name, each looked up when it is asked for."""

    def __init__(self, names: Collection[str], entry: Callable[[str], TensorEntry]) -> None:
        self._names, self._entry = names, entry

    def __getitem__(self, name: str) -> TensorEntry:
        if name not in self._names:
            raise KeyError(name)
        return self._entry(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
