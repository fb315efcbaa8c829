"""Are exactly a tensor's bytes read, and are damaged or hostile files refused?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from core.engine.weights.headers import read_header
from core.engine.weights.tensors import TensorFolder
from core.protocol.errors import ModelError, ModelMissing, ModelUnsupported


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_reads_as_torch_would_widen_it(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(7, 5).to(dtype), "b": torch.randn(3).to(dtype), "c": torch.zeros(0)}
    save_file(tensors, tmp_path / "model.safetensors")
    folder = TensorFolder(tmp_path)
    assert sorted(folder.names()) == ["a", "b", "c"]
    assert folder.bytes_read == 0
    for name, tensor in tensors.items():
        got = folder.read_float32(name)
        assert got.dtype == np.float32
        assert np.array_equal(got, tensor.to(torch.float32).numpy())
    assert folder.bytes_read == sum(t.nbytes for t in tensors.values())


def test_a_header_that_lies_about_places_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"

    def write(header: object, data: bytes = bytes(16)) -> Path:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        file.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
        return file

    good = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    assert read_header(write({"a": good}))["a"].shape == (2, 2)
    for bad in (
        b"not json",
        [1],
        {"a": 3},
        {"a": good | {"data_offsets": [0, 17]}},
        {"a": good | {"data_offsets": [8, 24]}},
        {"a": good | {"data_offsets": [16, 0]}},
        {"a": good | {"data_offsets": [-8, 8]}},
        {"a": good | {"shape": [2, 3]}},
        {"a": good | {"shape": [-2, -2]}},
        {"a": {"dtype": "F32"}},
    ):
        with pytest.raises(ModelUnsupported):
            read_header(write(bad))
    file.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelUnsupported, match="claims"):
        read_header(file)


@settings(max_examples=200)
@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_no_bytes_crash_the_reader(data: bytes, cut: int, tmp_path_factory) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    whole = len(data).to_bytes(8, "little") + b'{"a":' + data + b"}"
    file.write_bytes(whole[:cut] if cut else data)
    with pytest.raises(ModelError):
        read_header(file)


def test_an_index_cannot_point_outside_the_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    for file in ("../secret.safetensors", "/etc/passwd", "sub/a.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": file}}))
        with pytest.raises(ModelUnsupported, match="outside"):
            TensorFolder(tmp_path)
    for broken in ("{}", "[]", "{", '{"weight_map": 3}'):
        index.write_text(broken)
        with pytest.raises(ModelUnsupported):
            TensorFolder(tmp_path)


def test_an_index_that_names_the_wrong_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    folder = TensorFolder(tmp_path)
    assert folder.entry("a").shape == (2,)
    with pytest.raises(ModelUnsupported, match="does not"):
        folder.entry("b")


def test_a_folder_without_weights_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="no weights"):
        TensorFolder(tmp_path)
