"""Which tensors do a folder's safetensors files say that they hold, and where?

The container is read here directly: manifests and layer planning need names, shapes and places
without importing torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from core.engine.weights.stored import item_bytes
from core.protocol.errors import ModelMissing, ModelUnsupported
from core.protocol.foreign import read_json_file, refuse_deep

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_MAX_HEADER_BYTES = 16 * 2**20
_MAX_INDEX_BYTES = 32 * 2**20
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
TensorName = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[^/\\\x00]{1,255}\Z")]


class _HeaderEntry(msgspec.Struct):
    """What a header says of a tensor."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[Count, Count]


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
        return math.prod(self.shape)


class _Index(msgspec.Struct):
    weight_map: dict[TensorName, FileName]


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
        header = msgspec.json.decode(raw, type=dict[TensorName, msgspec.Raw])
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
        item = item_bytes(entry.dtype)
        if item and entry.elements * item != entry.size_bytes:
            raise refuse(f"{entry.name} has {entry.size_bytes} bytes for shape {entry.shape}")
    placed = sorted(entries.values(), key=lambda entry: (entry.offset_bytes, entry.size_bytes))
    for one, following in pairwise(placed):
        if following.offset_bytes < one.offset_bytes + one.size_bytes:
            raise refuse(f"{one.name} and {following.name} overlap")
    return entries


def locate(model_dir: Path) -> dict[str, Path]:
    """File of every tensor of a folder, by its index or from its only file.

    Raises ModelMissing without safetensors, ModelUnsupported for damaged or foreign ones.
    """
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
