"""Which tensors does a model folder hold, and how are exactly their bytes read?

The safetensors container is read here directly: manifests and layer planning need names, shapes and
raw bytes without importing torch, and a shard must own its memory (64-byte aligned, not a view of a
mapped file) so that the same shapes give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from core.protocol.errors import ModelMissing, ModelUnsupported
from core.protocol.foreign import read_json_file, refuse_deep

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_MAX_HEADER_BYTES = 16 * 2**20
_MAX_INDEX_BYTES = 32 * 2**20
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[^/\\\x00]{1,255}\Z")]
#: Container dtype → numpy dtype of the stored bytes; bfloat16 is stored as its 16 high bits.
STORED: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


class _HeaderEntry(msgspec.Struct):
    """What a header says of a tensor."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Count, _Count]


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a folder: where its bytes are and what they mean."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int

    @property
    def elements(self) -> int:
        count = 1
        for side in self.shape:
            count *= side
        return count


class _Index(msgspec.Struct):
    weight_map: dict[_Name, _FileName]


class TensorFolder:
    """The tensors of a model folder, indexed by name; reads nothing but headers until asked.

    `bytes_read` counts the tensor bytes read since the folder was opened, `files_opened` the files
    they came from.
    """

    def __init__(self, model_dir: Path) -> None:
        """Raises ModelMissing without safetensors, ModelUnsupported for damaged or foreign ones."""
        self.model_dir = Path(model_dir)
        self._where = _locate(self.model_dir)
        self._headers: dict[Path, dict[str, TensorEntry]] = {}
        self.bytes_read = 0
        self.files_opened: set[Path] = set()

    def names(self) -> list[str]:
        return list(self._where)

    def entry(self, name: str) -> TensorEntry:
        """Place, dtype and shape of one tensor. Opens the header of the file that holds it only."""
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
        return (self.entry(name) for name in self._where)

    def read_into(self, name: str, target: memoryview) -> None:
        """Fill `target`, as long as the tensor is in its stored dtype, with the tensor's bytes."""
        entry = self.entry(name)
        if target.nbytes != entry.size_bytes:
            raise ValueError(f"{name} has {entry.size_bytes} bytes, the target {target.nbytes}")
        with entry.file.open("rb", buffering=0) as stream:
            stream.seek(entry.offset_bytes)
            self._fill(target.cast("B"), stream, entry)
        self._note(entry)

    def read_blocks(self, name: str, buffer: memoryview) -> Iterator[int]:
        """Fill `buffer` with the tensor's bytes, part by part; yields how many bytes each part has.

        Every part but the last fills the buffer, whose length is a multiple of the stored item's.
        """
        entry = self.entry(name)
        with entry.file.open("rb", buffering=0) as stream:
            stream.seek(entry.offset_bytes)
            left = entry.size_bytes
            while left:
                part = buffer[: min(left, len(buffer))]
                self._fill(part, stream, entry)
                left -= len(part)
                yield len(part)
        self._note(entry)

    def read_float32(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """One tensor as a fresh little-endian float32 array: rounded, or widened."""
        entry = self.entry(name)
        stored = np.empty(entry.shape, dtype=STORED[entry.dtype])
        if entry.size_bytes:
            self.read_into(name, stored.reshape(-1).data)
        if entry.dtype == "BF16":
            return (stored.astype("<u4") << 16).view("<f4")
        return stored.astype("<f4", copy=False)

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


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Entries of one safetensors file. Raises ModelUnsupported for one outside of it."""

    def refuse(why: str) -> ModelUnsupported:
        return ModelUnsupported(f"cannot read {file.name}", why=why)

    if not file.is_file():
        raise ModelMissing(f"{file.name} is missing", why=f"there is no {file}")
    file_bytes = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - 8):
            raise refuse(f"its header claims {header_bytes} bytes of a file of {file_bytes}")
        raw = stream.read(header_bytes)
    try:
        refuse_deep(raw)
        header = msgspec.json.decode(raw, type=dict[_Name, msgspec.Raw])
        header.pop("__metadata__", None)
        described = {n: msgspec.json.decode(item, type=_HeaderEntry) for n, item in header.items()}
    except ValueError as error:  # msgspec's and Unicode's are ValueErrors
        raise refuse(f"its header is not one of safetensors ({error})") from None
    entries = {
        name: TensorEntry(
            name=name,
            file=file,
            dtype=item.dtype,
            shape=item.shape,
            offset_bytes=8 + header_bytes + item.data_offsets[0],
            size_bytes=item.data_offsets[1] - item.data_offsets[0],
        )
        for name, item in described.items()
    }
    for entry in entries.values():
        if entry.size_bytes < 0 or entry.offset_bytes > file_bytes - entry.size_bytes:
            raise refuse(f"{entry.name} lies outside the file")
        if entry.dtype in STORED and entry.elements * STORED[entry.dtype].itemsize != (
            entry.size_bytes
        ):
            raise refuse(f"{entry.name} has {entry.size_bytes} bytes for shape {entry.shape}")
    placed = sorted(entries.values(), key=lambda entry: (entry.offset_bytes, entry.size_bytes))
    for one, following in pairwise(placed):
        if following.offset_bytes < one.offset_bytes + one.size_bytes:
            raise refuse(f"{one.name} and {following.name} overlap")
    return entries


def _locate(model_dir: Path) -> dict[str, Path]:
    index = model_dir / INDEX_FILE
    if index.is_file():
        try:
            document = read_json_file(index, most_bytes=_MAX_INDEX_BYTES)
            found = msgspec.convert(document, _Index).weight_map
        except ValueError as error:  # msgspec's and Unicode's are ValueErrors
            raise ModelUnsupported(
                f"cannot read {INDEX_FILE}",
                why=f"it has no weight map of files in this folder, none outside ({error})",
            ) from None
        files = {name: model_dir / name for name in set(found.values()) - {".", ".."}}
        if len(files) != len(set(found.values())):
            raise ModelUnsupported(f"cannot read {INDEX_FILE}", why="it points outside the folder")
        return {name: files[file] for name, file in found.items()}
    single = model_dir / SINGLE_FILE
    if single.is_file():
        return dict.fromkeys(read_header(single), single)
    raise ModelMissing(
        f"{model_dir} holds no weights", why=f"there is neither {SINGLE_FILE} nor {INDEX_FILE}"
    )
