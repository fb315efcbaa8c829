"""A publisher whom nobody knows writes a manifest: nothing of it may harm who reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from core.engine.weights.manifest import MOST_MANIFEST_BYTES, read_manifest
from core.models.publication import publication_of
from core.protocol.errors import CheckFailed, ModelUnsupported
from devnet.models.tiny_models import write_tiny_model

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), "llama", layers=2)
    found: dict[str, Any] = json.loads(publication_of(folder).manifest.to_json())
    return found


def weights_in(name: str) -> Change:
    def change(said: dict[str, Any]) -> None:
        said["files"][name] = said["files"].pop("model.safetensors")
        for tensor in said["tensors"].values():
            tensor["file"] = name

    return change


def small(name: str, size: int = 3) -> Change:
    return lambda said: said["files"].update({name: {"sha256": "00" * 32, "sizeBytes": size}})


def tensor(**changes: Any) -> Change:
    def change(said: dict[str, Any]) -> None:
        next(iter(said["tensors"].values())).update(changes)

    return change


def named(name: str) -> Change:
    def change(said: dict[str, Any]) -> None:
        said["tensors"][name] = said["tensors"].pop(next(iter(said["tensors"])))

    return change


@pytest.mark.parametrize(
    "change",
    [
        weights_in(".."),
        weights_in("../escaped.safetensors"),
        weights_in("/etc/passwd"),
        weights_in("a\nb.safetensors"),
        weights_in(".hidden.safetensors"),
        weights_in("model.py"),
        weights_in("headrace-pulled.txt"),
        small(".."),
        small("modeling_mine.py"),
        small("headrace-pulled.txt"),
        small("headrace-manifest.json"),
        small("README.md"),
        small("tokenizer.json", 2**40),
        named("a\nb"),
        named("a\x00b"),
        named(""),
        named("x" * 600),
        tensor(startByte=2**52),
        tensor(sizeBytes=0),
        tensor(shape=[2**40, 2**40]),
        tensor(shape=[1] * 9),
        tensor(dtype="I64"),
        tensor(file="other.safetensors"),
        tensor(root="zz" * 32),
        lambda said: said.update(format="model/2"),
        lambda said: said.update(licence="x" * 300),
        lambda said: said.update(numericsProfile="0x12"),
        lambda said: said.pop("sigma"),
    ],
)
def test_what_no_model_has_is_refused_in_few_words(change: Change, good: dict[str, Any]) -> None:
    said = json.loads(json.dumps(good))
    change(said)
    with pytest.raises(ModelUnsupported, match="manifest") as caught:
        read_manifest(json.dumps(said).encode())
    assert len("".join(caught.value.lines())) < 1000


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"a":' * 10**5, b"\xff" * 99])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(ModelUnsupported):
        read_manifest(data)


def test_a_document_without_end_is_refused_before_it_is_read() -> None:
    with pytest.raises(ModelUnsupported, match="manifest") as caught:
        read_manifest(b" " * (MOST_MANIFEST_BYTES + 1))
    assert "more than" in caught.value.why


def test_another_documents_bytes_are_not_even_parsed(good: dict[str, Any]) -> None:
    data = json.dumps(good).encode()
    hashed = "0x" + sha256(data).hexdigest()
    assert read_manifest(data, hashed).licence == good["licence"]
    with pytest.raises(CheckFailed, match="not the registered manifest"):
        read_manifest(data + b" ", hashed)


def test_the_same_manifest_is_the_same_bytes(good: dict[str, Any], tmp_path: Path) -> None:
    shuffled = dict(reversed(good.items()))
    shuffled["files"] = dict(reversed(good["files"].items()))
    one, other = (read_manifest(json.dumps(said).encode()) for said in (good, shuffled))
    assert one.to_json() == other.to_json()
    assert one.hash() == other.hash()
    assert json.loads(one.to_json()) == good
