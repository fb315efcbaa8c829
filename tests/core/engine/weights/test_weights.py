"""Do 32 bytes pin down every weight, and only the weights?"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from core.engine.weights import contents
from core.engine.weights.contents import CONTENTS_FILE, contents_of
from core.engine.weights.stored import TensorHasher
from core.engine.weights.weights import contents_hash, weight_roots
from core.protocol import commit
from tests.core.engine.families import ARCHITECTURES


def digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def u32(n: int) -> bytes:
    return n.to_bytes(4, "big")


def tree(leaves: list[bytes]) -> bytes:
    """`docs/protocol.md` §3 written down a second time, from its text."""
    level = [digest(b"\x00", leaf) for leaf in leaves]
    while len(level) > 1:
        paired = [digest(b"\x01", level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) // 2 * 2 :]
    return digest(b"\x02", u32(len(leaves)), level[0] if level else bytes(32))


def tensor_tree(t: torch.Tensor) -> bytes:
    matrix = t.to(torch.float32).numpy().astype("<f4")
    rows = [matrix] if matrix.ndim == 1 else list(matrix)
    return tree([u32(i) + row.tobytes() for i, row in enumerate(rows)])


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_roots_are_those_of_the_protocol_page(
    architecture: str, tied: bool, tiny: Callable
) -> None:
    folder = tiny(architecture, layers=5, tied=tied)
    tensors = load_file(folder / "model.safetensors")

    def part(names: list[str]) -> bytes:
        return tree([n.encode() + b"\0" + tensor_tree(tensors[n]) for n in sorted(names)])

    layer = "transformer.h." if architecture == "gpt2" else "model.layers."
    embeds = [n for n in tensors if "embed_tokens" in n or "wte" in n or "wpe" in n]
    matrix = next(n for n in embeds if "wpe" not in n)
    final = [n for n in tensors if n.startswith(("model.norm.", "transformer.ln_f."))]
    roots = [
        part(embeds),
        *(part([n for n in tensors if n.startswith(f"{layer}{i}.")]) for i in range(5)),
        part([*final, matrix if tied else "lm_head.weight"]),
    ]
    weights = weight_roots(folder)
    assert weights.parts == roots
    assert commit.unhex(weights.weights_root) == tree(roots)
    held = b"".join(roots[2:4])
    assert weights.shard_root(1, 3) == digest(b"\x03", b"\x00\x01", b"\x00\x03", held)
    assert weights.shard_root(0, 5) == digest(b"\x03", b"\x00\x00", b"\x00\x05", *roots)
    listed = {n for names in weights.tensors.values() for n in names}
    assert listed == set(tensors)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_how_a_model_is_stored_does_not_change_its_roots(architecture: str, tiny: Callable) -> None:
    one = weight_roots(tiny(architecture, layers=5))
    assert weight_roots(tiny(architecture, layers=5, files=3)) == one
    assert weight_roots(tiny(architecture, layers=5, seed=1)).weights_root != one.weights_root


def test_bfloat16_files_commit_to_their_float32_values(tiny: Callable, tmp_path: Path) -> None:
    source = tiny("llama", layers=5, dtype="bfloat16")
    wide = tmp_path / "wide"
    shutil.copytree(source, wide)
    tensors = load_file(source / "model.safetensors")
    save_file({n: t.float() for n, t in tensors.items()}, wide / "model.safetensors")
    assert weight_roots(wide).weights_root == weight_roots(source).weights_root


def test_one_changed_weight_changes_one_layer_and_the_model(tiny: Callable, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("llama", layers=5), folder)
    before = weight_roots(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.3.mlp.up_proj.weight"][17, 5] += 1e-6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    after = weight_roots(folder)
    changed = [i for i, (a, b) in enumerate(zip(before.parts, after.parts, strict=True)) if a != b]
    assert changed == [4]
    assert after.weights_root != before.weights_root
    assert after.shard_root(0, 3) == before.shard_root(0, 3)
    assert after.shard_root(3, 5) != before.shard_root(3, 5)


def test_a_file_is_hashed_once_until_it_changes(
    tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("qwen2", layers=5, files=3), folder)
    (folder / CONTENTS_FILE).unlink(missing_ok=True)
    looked: list[str] = []
    real = contents._look

    def counting(path: Path, *args: object) -> contents._KeptFile:
        looked.append(path.name)
        return real(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(contents, "_look", counting)
    first = contents_of(folder)
    assert contents_of(folder) == first
    assert sorted(looked) == sorted(first.files)
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []
    for name, fact in first.files.items():
        data = (folder / name).read_bytes()
        assert (fact.size_bytes, fact.sha256) == (len(data), hashlib.sha256(data).hexdigest())

    looked.clear()
    file = first.tensors["model.norm.weight"].file
    tensors = load_file(folder / file)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, folder / file, metadata={"format": "pt"})
    changed = contents_of(folder)
    differ = {n for n in first.tensors if first.tensors[n] != changed.tensors[n]}
    assert (looked, differ) == ([file], {"model.norm.weight"})

    for broken in ("", "[]", "{}", '{"version": 1, "files": {"a": {}}}', '{"version": 0}'):
        (folder / CONTENTS_FILE).write_text(broken)
        assert contents_of(folder) == changed
    kept = json.loads((folder / CONTENTS_FILE).read_text())
    del kept["files"][file]["fact"]
    (folder / CONTENTS_FILE).write_text(json.dumps(kept))
    assert contents_of(folder) == changed


def test_an_interrupted_look_goes_on_where_it_was(
    tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("llama", layers=5, files=3), folder)
    (folder / CONTENTS_FILE).unlink(missing_ok=True)
    looked: list[str] = []
    real = contents._look

    def ending(path: Path, *args: object) -> contents._KeptFile:
        if len(looked) == 4:
            raise InterruptedError
        looked.append(path.name)
        return real(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(contents, "_look", ending)
    with pytest.raises(InterruptedError):
        contents_of(folder)
    for _ in range(8):  # each time from where it was
        before, looked[:] = list(looked), []
        with suppress(InterruptedError):
            found = contents_of(folder)
            break
        assert not set(before) & set(looked)
    assert len(found.files) > 4


def test_a_changed_setting_changes_what_the_model_is_but_not_its_weights(
    tiny: Callable, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("llama", layers=5), folder)
    seen, roots = {contents_hash(folder)}, weight_roots(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    seen.add(contents_hash(folder))
    (folder / "tokenizer_config.json").write_text("{ }")
    seen.add(contents_hash(folder))
    assert len(seen) == 3
    assert weight_roots(folder) == roots


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_a_tensor_has_one_root_however_its_bytes_come(dtype: str) -> None:
    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16}
    values = torch.randn(7, 5, 3).to(names.get(dtype, torch.bfloat16))
    data = values.contiguous().view(torch.uint8).numpy().tobytes()
    for size in (1, 2, 13, 30, 31, 60, len(data)):
        hasher = TensorHasher(dtype, values.shape)
        for at in range(0, len(data), size):
            hasher.update(memoryview(data[at : at + size]))
        assert hasher.root() == tensor_tree(values)
    hasher = TensorHasher(dtype, values.shape)
    hasher.update(memoryview(data[:-1]))
    with pytest.raises(ValueError, match="middle of a row"):
        hasher.root()
    with pytest.raises(ValueError, match="no values"):
        TensorHasher(dtype, (3, 0))


def test_a_tensor_root_counts_rows_and_order() -> None:
    a = np.arange(12, dtype=np.float32).reshape(4, 3)

    def root(x: np.ndarray) -> bytes:
        hasher = TensorHasher("F32", x.shape)
        hasher.update(memoryview(np.ascontiguousarray(x)).cast("B"))
        return hasher.root()

    assert len({root(x) for x in (a, a[::-1], a.reshape(3, 4), a.reshape(-1), a[:3])}) == 5
