"""Which tensors does a model folder hold, and how are exactly their bytes read?

The safetensors container is read here directly: manifests and layer planning need names, shapes and
raw bytes without importing torch, and a shard must own its memory (64-byte aligned, not a view of a
mapped file) so that the same shapes give the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

from core.protocol.errors import ModelMissing, ModelUnsupported

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000
#: Container dtype → numpy dtype of the stored bytes; bfloat16 is stored as its 16 high bits.
STORED: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


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
        header = json.loads(raw)
        described = {k: v for k, v in header.items() if k != "__metadata__"}
        entries = {
            name: TensorEntry(
                name=name,
                file=file,
                dtype=str(item["dtype"]),
                shape=tuple(int(side) for side in item["shape"]),
                offset_bytes=8 + header_bytes + int(item["data_offsets"][0]),
                size_bytes=int(item["data_offsets"][1]) - int(item["data_offsets"][0]),
            )
            for name, item in described.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise refuse(f"its header is not one of safetensors ({error!r})") from error
    for entry in entries.values():
        inside = 8 + header_bytes <= entry.offset_bytes <= file_bytes - entry.size_bytes
        if entry.size_bytes < 0 or not inside or any(side < 0 for side in entry.shape):
            raise refuse(f"{entry.name} lies outside the file")
        if entry.dtype in STORED and entry.elements * STORED[entry.dtype].itemsize != (
            entry.size_bytes
        ):
            raise refuse(f"{entry.name} has {entry.size_bytes} bytes for shape {entry.shape}")
    return entries


def _locate(model_dir: Path) -> dict[str, Path]:
    index = model_dir / INDEX_FILE
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            where = {str(name): model_dir / str(file) for name, file in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelUnsupported(
                f"cannot read {INDEX_FILE}", why=f"it has no weight map ({error!r})"
            ) from error
        for file in set(where.values()):
            if file.parent != model_dir:
                raise ModelUnsupported(
                    f"cannot read {INDEX_FILE}", why=f"it points outside the folder, at {file}"
                )
        return where
    single = model_dir / SINGLE_FILE
    if single.is_file():
        return dict.fromkeys(read_header(single), single)
    raise ModelMissing(
        f"{model_dir} holds no weights", why=f"there is neither {SINGLE_FILE} nor {INDEX_FILE}"
    )
