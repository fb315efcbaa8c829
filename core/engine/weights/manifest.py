"""What does a published model consist of, and what is promised of it? One document, `model/1`.

Canonical JSON: keys in order, nothing between them, numbers whole. Its SHA-256 is on the chain.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Literal

import msgspec

from core.engine.weights.contents import (
    MOST_SMALL_BYTES,
    SMALL_FILES,
    Contents,
    FileFact,
    Sha256,
    TensorFact,
)
from core.engine.weights.headers import INDEX_FILE, FileName, TensorName
from core.engine.weights.stored import item_bytes
from core.protocol import commit
from core.protocol.errors import CheckFailed, ModelUnsupported
from core.protocol.foreign import refuse_deep

MANIFEST_FILE = "headrace-manifest.json"
MOST_MANIFEST_BYTES = 64 * 2**20
FORMAT = "model/1"
_WEIGHTS_FILE = re.compile(r"[A-Za-z0-9][\w.-]{0,200}\.safetensors", re.ASCII)
_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Hash32 = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]


class ToleranceBasis(msgspec.Struct, frozen=True, rename="camel"):
    """What a promised tolerance rests on: honest work of stages of up to `max_depth` layers."""

    max_depth: int
    min_rows: int
    windows: int
    largest_parts_per_trillion: int


class ModelManifest(msgspec.Struct, frozen=True, rename="camel", dict=True):
    """A published model. `program` is empty where a jury judges it, and `sigma` with it.

    `sigma` are the sizes of its channels as bfloat16 [layers + 1, hidden], little-endian. `values`
    are the roots over the float32 rows of its packed weights, whose pieces are in `tensors`.
    """

    format: Literal["model/1"]
    licence: _Text
    numerics: _Text
    numerics_profile: _Hash32
    program: bytes
    sigma: bytes
    calibration: list[ToleranceBasis]
    files: dict[FileName, FileFact]
    tensors: dict[TensorName, TensorFact]
    values: dict[TensorName, Sha256] = {}

    @cached_property
    def contents(self) -> Contents:
        """Its files and tensors."""
        return Contents(self.files, self.tensors, self.values)

    def to_json(self) -> bytes:
        """The same bytes for the same manifest on every machine."""
        return msgspec.json.encode(self, order="sorted")

    def hash(self) -> str:
        """What a model's specification names as its manifest, 0x-hex."""
        return commit.to_hex(sha256(self.to_json()).digest())


def read_manifest(data: bytes, registered_hash: str = "") -> ModelManifest:
    """A manifest from its bytes, held to the hash that the chain has, if one is given.

    Raises CheckFailed for another one's bytes, and ModelUnsupported for bytes of no manifest.
    """
    if registered_hash:
        found = commit.to_hex(sha256(data).digest())
        if found != registered_hash.lower():
            raise CheckFailed(
                "this is not the registered manifest",
                f"its SHA-256 is {found}, the chain has {registered_hash}",
                next_step="fetch it from another place that the model was published at",
            )
    try:
        if len(data) > MOST_MANIFEST_BYTES:
            raise ValueError(f"it has {len(data)} bytes, more than {MOST_MANIFEST_BYTES}")
        refuse_deep(data)
        manifest = msgspec.json.decode(data, type=ModelManifest)
        _check(manifest)
    except ValueError as error:  # msgspec's and Unicode's are ValueErrors
        raise ModelUnsupported(
            "cannot read the model's manifest", why=f"it is none of the format {FORMAT}: {error}"
        ) from None
    return manifest


def _check(manifest: ModelManifest) -> None:
    """Raises ValueError for files that no model has, and for tensors that do not lie in files.

    A publisher whom nobody knows wrote the names, and they become names on our disk.
    """
    weights = {tensor.file for tensor in manifest.tensors.values()}
    for name, file in manifest.files.items():
        if name in weights:
            if not _WEIGHTS_FILE.fullmatch(name):
                raise ValueError(f"{name[:80]!r} is no name of a file of weights")
        elif name not in (*SMALL_FILES, INDEX_FILE) or file.size_bytes > MOST_SMALL_BYTES:
            raise ValueError(f"{name[:80]!r} is no file of a model")
    for name in (*manifest.tensors, *manifest.values):
        if not name.isprintable():
            raise ValueError(f"{name[:80]!r} is no name of a tensor")
    for name, tensor in manifest.tensors.items():
        file = manifest.files.get(tensor.file)
        if file is None or tensor.start_byte + tensor.size_bytes > file.size_bytes:
            raise ValueError(f"{name[:80]} lies in no file of it")
        item = item_bytes(tensor.dtype)
        if not item:
            raise ValueError(f"{name[:80]} is stored as {tensor.dtype}")
        count = item * math.prod(tensor.shape)
        if not count or count != tensor.size_bytes:
            raise ValueError(f"{name[:80]} has {tensor.size_bytes} bytes for {tensor.shape}")
