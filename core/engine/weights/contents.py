"""Which files and tensors is a model folder made of, each with its hash? Every byte is read once.

What was found is kept beside the model, file by file, so that an interrupted look goes on where it
was and only a changed file is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from core.engine.weights.headers import (
    INDEX_FILE,
    Count,
    FileName,
    TensorEntry,
    TensorName,
    locate,
    read_header,
)
from core.engine.weights.packed import Array, piece_values, value_root
from core.engine.weights.packed_formats import packing_in
from core.engine.weights.stored import STORED, TensorHasher, item_bytes
from core.protocol import hashing
from core.protocol.errors import ModelUnsupported
from core.protocol.foreign import read_json_file
from core.protocol.whole_file import write_whole

CONTENTS_FILE = "headrace-contents.json"
_VERSION = 2
_MAX_CONTENTS_BYTES = 64 * 2**20
_BLOCK_BYTES = 16 * 2**20
#: Beside the weights: what says how text becomes ids, and on which terms the model may be used.
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
)
MOST_SMALL_BYTES = 128 * 2**20
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
#: Called with how many of all bytes were read.
Progress = Callable[[int, int], None]
_log = logging.getLogger(__name__)


class FileFact(msgspec.Struct, frozen=True, rename="camel"):
    """A file of a model: its length and the SHA-256 of its bytes."""

    size_bytes: Count
    sha256: Sha256


class TensorFact(msgspec.Struct, frozen=True, rename="camel"):
    """A stored tensor of a model: where its bytes lie, and its root.

    The root is over float32 rows, of a piece of a packed weight over rows of bytes.
    """

    file: FileName
    start_byte: Count
    size_bytes: Count
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]
    root: Sha256


class Contents(msgspec.Struct, frozen=True):
    """A model's files by name, and its tensors by the name that they are stored under.

    `values` are the roots over the float32 rows that packed weights stand for, by the weight.
    """

    files: dict[FileName, FileFact]
    tensors: dict[TensorName, TensorFact]
    values: dict[TensorName, Sha256] = {}

    def root_of(self, name: str) -> str | None:
        """The root, hex, over the float32 rows of a tensor of the model, stored plainly or packed.

        None for what is stored as no numbers.
        """
        if name in self.values:
            return self.values[name]
        stored = self.tensors.get(name)
        return stored.root if stored and stored.dtype in STORED else None


class _KeptFile(msgspec.Struct, rename="camel"):
    """What a file held when it had this size and this time of modification."""

    size_bytes: int
    modified_ns: int
    fact: FileFact
    tensors: dict[TensorName, TensorFact]


class _Kept(msgspec.Struct):
    version: int
    files: dict[FileName, _KeptFile]
    values: dict[TensorName, Sha256] = {}


def contents_of(model_dir: Path, progress: Progress | None = None) -> Contents:
    """What a model folder is made of. Hashes what is new since the last look at it.

    Raises ModelMissing or ModelUnsupported.
    """
    model_dir = Path(model_dir)
    weights = sorted({file.name for file in locate(model_dir).values()})
    small = [name for name in (*SMALL_FILES, INDEX_FILE) if (model_dir / name).is_file()]
    names = [*small, *weights]
    before = _read_kept(model_dir)
    kept, values = before.files, before.values
    new = [n for n in names if n not in kept or _stamp(model_dir / n) != _stamp_of(kept[n])]
    if new:
        hashing.hash_in_c()
        total, done = sum((model_dir / n).stat().st_size for n in new), 0

        def note(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total)

        for name in new:
            kept[name] = _look(model_dir / name, name in weights, note)
            _keep(model_dir, {n: kept[n] for n in names if n in kept})
    tensors = {n: fact for name in weights for n, fact in kept[name].tensors.items()}
    packing = packing_in(model_dir, tensors)
    if new or values.keys() != packing.weights.keys():
        values = {
            name: value_root(weight, lambda piece: _read(model_dir, tensors[piece])).hex()
            for name, weight in packing.weights.items()
        }
        _keep(model_dir, {n: kept[n] for n in names}, values)
    return Contents({n: kept[n].fact for n in names}, tensors, values)


def _read(model_dir: Path, piece: TensorFact) -> Array:
    with (model_dir / piece.file).open("rb") as stream:
        stream.seek(piece.start_byte)
        data = stream.read(piece.size_bytes)
    return piece_values(memoryview(data), piece.dtype, piece.shape)


def _look(path: Path, has_tensors: bool, note: Callable[[int], None]) -> _KeptFile:
    size, modified = _stamp(path)
    if not has_tensors and size > MOST_SMALL_BYTES:
        raise ModelUnsupported(f"{path.name} is too large", why=f"it has {size} bytes")
    entries = read_header(path) if has_tensors else {}
    found = sorted(
        (e for e in entries.values() if item_bytes(e.dtype) and e.elements),
        key=lambda entry: entry.offset_bytes,
    )
    digest, roots = _hash_file(path, found, note)
    tensors = {
        e.name: TensorFact(
            file=path.name,
            start_byte=e.offset_bytes,
            size_bytes=e.size_bytes,
            dtype=e.dtype,
            shape=e.shape,
            root=roots[e.name],
        )
        for e in found
    }
    return _KeptFile(size, modified, FileFact(size, digest), tensors)


def _hash_file(
    path: Path, tensors: list[TensorEntry], note: Callable[[int], None]
) -> tuple[str, dict[str, str]]:
    """SHA-256 of a file, and the roots of its tensors, in order of place. One pass.

    One thread hashes the file while this one hashes rows.
    """
    whole, roots = sha256(), {}
    with path.open("rb", buffering=0) as stream, ThreadPoolExecutor(1) as beside:
        blocks = _Blocks(stream, lambda block: beside.submit(whole.update, block), note)
        at = 0
        for entry in tensors:
            for _ in blocks.read(entry.offset_bytes - at):
                pass
            hasher = TensorHasher(entry.dtype, entry.shape)
            for block in blocks.read(entry.size_bytes):
                hasher.update(block)
            roots[entry.name] = hasher.root().hex()
            at = entry.offset_bytes + entry.size_bytes
        for _ in blocks.read(path.stat().st_size - at):
            pass
        blocks.finish()
    return whole.hexdigest(), roots


class _Blocks:
    """A file read block by block into two buffers, each handed over before it is filled again."""

    def __init__(
        self,
        stream: object,
        hand_over: Callable[[memoryview], Future[None]],
        note: Callable[[int], None],
    ) -> None:
        self._stream, self._hand_over, self._note = stream, hand_over, note
        self._buffers = [memoryview(bytearray(_BLOCK_BYTES)) for _ in range(2)]
        self._pending: list[Future[None] | None] = [None, None]
        self._turn = 0

    def read(self, count: int) -> Iterator[memoryview]:
        """The next `count` bytes in blocks. Raises ModelUnsupported where the file ends before."""
        while count:
            self._turn ^= 1
            if pending := self._pending[self._turn]:
                pending.result()
            block = self._buffers[self._turn][: min(count, _BLOCK_BYTES)]
            got = self._stream.readinto(block)  # type: ignore[attr-defined]
            if not got:
                raise ModelUnsupported("cannot read a file of weights", why="it became shorter")
            block = block[:got]
            self._pending[self._turn] = self._hand_over(block)
            yield block
            self._note(got)
            count -= got

    def finish(self) -> None:
        """Wait for what was handed over."""
        for pending in self._pending:
            if pending:
                pending.result()


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _stamp_of(kept: _KeptFile) -> tuple[int, int]:
    return kept.size_bytes, kept.modified_ns


def _read_kept(model_dir: Path) -> _Kept:
    path, nothing = model_dir / CONTENTS_FILE, _Kept(_VERSION, {})
    try:
        kept = msgspec.convert(read_json_file(path, most_bytes=_MAX_CONTENTS_BYTES), _Kept)
        return kept if kept.version == _VERSION else nothing
    except FileNotFoundError:
        return nothing
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _log.warning("ignoring %s, it is unreadable: %s", path, error)
        return nothing


def _keep(
    model_dir: Path, files: dict[str, _KeptFile], values: dict[str, str] | None = None
) -> None:
    content = msgspec.json.encode(_Kept(_VERSION, files, values or {}), order="sorted")
    try:
        write_whole(model_dir / CONTENTS_FILE, content)
    except OSError as error:
        _log.warning("cannot keep the hashes beside the model: %s", error)
