"""Do 32 bytes pin down every weight, and only the weights?"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from core.engine.weights import weights
from core.engine.weights.weights import (
    MANIFEST_FILE,
    compute_manifest,
    model_manifest,
    tensor_root,
)
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
    manifest = compute_manifest(folder)
    assert manifest.roots == roots
    assert commit.unhex(manifest.weights_root) == tree(roots)
    held = b"".join(roots[2:4])
    assert manifest.shard_root(1, 3) == digest(b"\x03", b"\x00\x01", b"\x00\x03", held)
    assert manifest.shard_root(0, 5) == digest(b"\x03", b"\x00\x00", b"\x00\x05", *roots)
    listed = {n for names in manifest.tensors.values() for n in names}
    assert listed == set(tensors)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_how_a_model_is_stored_does_not_change_its_manifest(
    architecture: str, tiny: Callable
) -> None:
    one = compute_manifest(tiny(architecture, layers=5))
    assert compute_manifest(tiny(architecture, layers=5, files=3)) == one
    assert compute_manifest(tiny(architecture, layers=5, seed=1)).weights_root != one.weights_root


def test_bfloat16_files_commit_to_their_float32_values(tiny: Callable, tmp_path: Path) -> None:
    source = tiny("llama", layers=5, dtype="bfloat16")
    wide = tmp_path / "wide"
    shutil.copytree(source, wide)
    tensors = load_file(source / "model.safetensors")
    save_file({n: t.float() for n, t in tensors.items()}, wide / "model.safetensors")
    assert compute_manifest(wide).weights_root == compute_manifest(source).weights_root


def test_one_changed_weight_changes_one_layer_and_the_model(tiny: Callable, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("llama", layers=5), folder)
    before = compute_manifest(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.3.mlp.up_proj.weight"][17, 5] += 1e-6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    after = compute_manifest(folder)
    changed = [i for i, (a, b) in enumerate(zip(before.roots, after.roots, strict=True)) if a != b]
    assert changed == [4]
    assert after.weights_root != before.weights_root
    assert after.shard_root(0, 3) == before.shard_root(0, 3)
    assert after.shard_root(3, 5) != before.shard_root(3, 5)


def test_the_kept_manifest_is_used_until_a_file_changes(
    tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("qwen2", layers=5), folder)
    computed: list[Path] = []
    real = compute_manifest

    def counting(model_dir: Path) -> weights.Manifest:
        computed.append(model_dir)
        return real(model_dir)

    monkeypatch.setattr(weights, "compute_manifest", counting)
    first = model_manifest(folder)
    assert model_manifest(folder) == first == real(folder)
    assert len(computed) == 1
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []

    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    changed = model_manifest(folder)
    assert changed.head_root != first.head_root
    assert len(computed) == 2

    for broken in ("", "[]", "{}", '{"files": {}, "manifest": {}}'):
        (folder / MANIFEST_FILE).write_text(broken)
        assert model_manifest(folder) == changed
    kept = json.loads((folder / MANIFEST_FILE).read_text())
    del kept["manifest"]["headRoot"]
    (folder / MANIFEST_FILE).write_text(json.dumps(kept))
    assert model_manifest(folder) == changed


def test_config_hash_ignores_how_the_config_was_written(tiny: Callable, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("llama", layers=5), folder)
    before = compute_manifest(folder)
    config = json.loads((folder / "config.json").read_text())
    rewritten = dict(reversed(config.items())) | {
        "transformers_version": "9.9",
        "_name_or_path": "x",
    }
    (folder / "config.json").write_text(json.dumps(rewritten, indent=7))
    assert compute_manifest(folder).hash() == before.hash()
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert compute_manifest(folder).config_hash != before.config_hash
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    after = compute_manifest(folder)
    assert after.tokenizer_hash != before.tokenizer_hash
    assert after.hash() != before.hash()


def test_a_tensor_root_counts_rows_and_order() -> None:
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    roots = {tensor_root(x) for x in (a, a[::-1], a.reshape(3, 4), a.reshape(-1), a[:3])}
    assert len(roots) == 5
