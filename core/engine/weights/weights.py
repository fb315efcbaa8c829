"""Which weights does a model consist of, in 32 bytes? (`docs/protocol.md` §3)

Trees over float32 rows, whatever dtype the files hold: tensor → layer (or embedding, or head) →
model. A shard's root is over the parts it holds, so an auditor can prove which weights a machine
claimed to run.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from core.engine.model.naming import Parts
from core.engine.weights.shape import model_parts, read_config
from core.engine.weights.tensors import TensorFolder
from core.protocol import commit
from core.protocol.foreign import read_json_file

MANIFEST_FILE = "headrace-manifest.json"
MANIFEST_VERSION = 2
_MAX_MANIFEST_BYTES = 64 * 2**20
#: Fields of config.json that say how the file was made, not what the model is.
_VOLATILE_CONFIG = (
    "_name_or_path",
    "_model_name_or_path",
    "transformers_version",
    "architectures",
    "torch_dtype",
    "dtype",
    "use_cache",
)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_log = logging.getLogger(__name__)


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a model is made of: 0x-hex roots, and the canonical names under each in `tensors`."""

    version: int
    config_hash: str
    tokenizer_hash: str
    embed_root: str
    layer_roots: list[str]
    head_root: str
    weights_root: str
    tensors: dict[str, list[str]]

    @property
    def roots(self) -> list[bytes]:
        """The leaves under `weights_root`: embed, layer 0 … layer L−1, head."""
        return [commit.unhex(r) for r in (self.embed_root, *self.layer_roots, self.head_root)]

    def shard_root(self, start: int, end: int) -> bytes:
        """Commitment to the weights of layers [start, end). Raises ValueError for others."""
        return commit.shard_root(self.roots, start, end)

    def to_json(self) -> bytes:
        """Canonical bytes: the same manifest gives the same bytes on every machine."""
        return json.dumps(
            msgspec.to_builtins(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()

    def hash(self) -> bytes:
        """What a model's specification names as its manifest: SHA-256 of `to_json()`."""
        return sha256(self.to_json()).digest()


def tensor_root(rows: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Root of one tensor [...]: its rows by first index, a vector [n] being one row."""
    matrix = np.ascontiguousarray(rows, dtype="<f4")
    matrix = matrix.reshape(1, -1) if matrix.ndim < 2 else matrix.reshape(len(matrix), -1)
    data, width = matrix.data.cast("B"), matrix.shape[1] * 4
    return commit.root_of_hashes(
        [commit.row_hash(i, data[i * width : (i + 1) * width]) for i in range(len(matrix))]
    )


def part_root(tensor_roots: Mapping[str, bytes]) -> bytes:
    """Root of a layer, the embedding or the head: its tensors' roots in order of name."""
    return commit.merkle_root(
        name.encode() + b"\x00" + tensor_roots[name] for name in sorted(tensor_roots)
    )


def compute_manifest(model_dir: Path) -> Manifest:
    """Hash every weight of a model folder. Raises ModelMissing or ModelUnsupported."""
    folder = TensorFolder(model_dir)
    parts = model_parts(model_dir, folder)
    known: dict[str, bytes] = {}

    def root_of(part: Mapping[str, str]) -> bytes:
        for name, stored in part.items():
            if name not in known:
                known[name] = tensor_root(folder.read_float32(stored))
        return part_root({name: known[name] for name in part})

    roots = [root_of(part) for part in (parts.embed, *parts.layers, parts.head)]
    return Manifest(
        version=MANIFEST_VERSION,
        config_hash=commit.to_hex(config_hash(model_dir)),
        tokenizer_hash=commit.to_hex(tokenizer_hash(model_dir)),
        embed_root=commit.to_hex(roots[0]),
        layer_roots=[commit.to_hex(root) for root in roots[1:-1]],
        head_root=commit.to_hex(roots[-1]),
        weights_root=commit.to_hex(commit.merkle_root(roots)),
        tensors=_tensor_names(parts),
    )


def model_manifest(model_dir: Path) -> Manifest:
    """The manifest of a model folder, computed once and kept beside the model.

    The kept one is used only while every file of the model has the size and modification time it
    had. In a folder that cannot be written the manifest is computed each time.
    """
    model_dir = Path(model_dir)
    path, stamp = model_dir / MANIFEST_FILE, _stamp(model_dir)
    try:
        kept = read_json_file(path, most_bytes=_MAX_MANIFEST_BYTES)
        if kept["files"] == stamp:
            manifest = msgspec.convert(kept["manifest"], Manifest)
            if manifest.version == MANIFEST_VERSION:
                return manifest
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:  # msgspec's errors are ValueErrors
        _log.warning("ignoring %s, it is unreadable: %s", path, error)
    manifest = compute_manifest(model_dir)
    content = json.dumps({"files": stamp, "manifest": msgspec.to_builtins(manifest)}, indent=1)
    draft = model_dir / f".{MANIFEST_FILE}.{os.getpid()}.{threading.get_ident()}"
    try:
        draft.write_text(content, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        _log.warning("cannot keep the manifest beside the model: %s", error)
    return manifest


def config_hash(model_dir: Path) -> bytes:
    """SHA-256 of what `config.json` says about the model, however it is written down."""
    config = {k: v for k, v in read_config(model_dir).items() if k not in _VOLATILE_CONFIG}
    return sha256(_canonical(config)).digest()


def tokenizer_hash(model_dir: Path) -> bytes:
    """SHA-256 of the tokenizer's files: `name ‖ 0x00 ‖ u64be length ‖ bytes` of each present."""
    hasher = sha256()
    for name in _TOKENIZER_FILES:
        path = Path(model_dir) / name
        if path.is_file():
            data = path.read_bytes()
            hasher.update(name.encode() + b"\x00" + len(data).to_bytes(8, "big") + data)
    return hasher.digest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _tensor_names(parts: Parts) -> dict[str, list[str]]:
    named = {"embed": parts.embed, "head": parts.head}
    named |= {f"layer {i}": layer for i, layer in enumerate(parts.layers)}
    return {label: sorted(part) for label, part in named.items()}


def _stamp(model_dir: Path) -> dict[str, list[int]]:
    names = {"config.json", *_TOKENIZER_FILES, *(p.name for p in model_dir.glob("*.safetensors*"))}
    present = [model_dir / name for name in sorted(names) if (model_dir / name).is_file()]
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in present}
