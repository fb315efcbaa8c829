"""Model folders that ask for a machine's memory: counts, indexes and headers of no model."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from core.engine.model.config_facts import read_config
from core.engine.model.dryrun import attention_shape
from core.engine.model.library import AutoModelForCausalLM
from core.engine.weights.headers import INDEX_FILE, read_header
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import describe_model
from core.engine.weights.tensors import TensorFolder
from core.engine.weights.weights import weight_roots
from core.protocol.errors import ModelError, ModelUnsupported
from core.protocol.types import LayerRange
from tests.siege.fuzz import CONFIG, _model, _packed

HUGE = 10**9


@contextmanager
def at_once() -> Iterator[None]:
    """A ModelError of few words, within a second and 32 MiB."""
    tracemalloc.start()
    before = time.process_time()
    try:
        with pytest.raises(ModelError) as caught:
            yield
        assert time.process_time() - before < 1
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
        assert len("".join(caught.value.lines())) < 8_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma3_text", "bloom", "gpt_neo"])
@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": HUGE},
        {"n_layer": HUGE},
        {"num_layers": -1},
        {"num_hidden_layers": "2"},
        {"hidden_size": 10**12},
        {"num_attention_heads": HUGE},
        {"num_labels": HUGE},
        {"num_experts": HUGE},
        {"vocab_size": HUGE},
        {"head_dim": 2**40},
        {"max_position_embeddings": 2**40},
        {"text_config": {"num_hidden_layers": HUGE}},
        {"rope_parameters": [{"a": [{"dim": HUGE}]}]},
        {"layer_types": 7},
        {"layer_types": [1, 2]},
        {"sliding_window": "wide"},
        {"sliding_window_pattern": -1},
        {"eos_token_id": 10**400},
    ],
)
def test_counts_of_no_model_are_refused_before_anything_is_built(
    tmp_path: Path, model_type: str, changes: dict[str, Any]
) -> None:
    _model(tmp_path)
    config = {**CONFIG, "model_type": model_type, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for read in (
        read_config,
        describe_model,
        weight_roots,
        lambda folder: load_shard(folder, LayerRange(0, 1)),
    ):
        with at_once():
            read(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 10**6, '{"a":' * 10**5, " " * 2**23, '{"num_hidden_layers": 1e999}', "\x00"],
)
@pytest.mark.parametrize("name", ["config.json", INDEX_FILE])
def test_documents_of_no_model_are_refused(tmp_path: Path, name: str, text: str) -> None:
    _model(tmp_path)
    (tmp_path / name).write_text(text)
    with at_once():
        describe_model(tmp_path)


@pytest.mark.parametrize(
    "weight_map",
    [
        {"a": 3},
        {"a": ".."},
        {"a": "."},
        {"a": ""},
        {"a": "x/../../y"},
        {"a": "x" * 5_000},
        {"a": "x\0y"},
        {"a" * 5_000: "model.safetensors"},
        {f"a{i}": f"b{i}" for i in range(20_000)},
        {f"model.layers.{'9' * 400}.a.weight": "model.safetensors"},
    ],
)
def test_indexes_that_name_no_files_of_the_folder_are_refused(
    tmp_path: Path, weight_map: dict[str, Any]
) -> None:
    _model(tmp_path)
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    with at_once():
        list(TensorFolder(tmp_path).entries())


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "opt", "num_hidden_layers": 0},
        {"model_type": "opt", "num_attention_heads": 0},
        {"model_type": "opt", "hidden_size": 3},
        {"model_type": "gpt_neo", "num_layers": 7},
        {"model_type": "mixtral", "use_cache": "yes"},
        {"model_type": "mixtral", "rope_parameters": 7},
        {"model_type": "bloom", "hidden_size": 10, "n_head": 7},
        {"model_type": "no-such-model" * 1_000},
        {"model_type": ["llama"]},
    ],
)
def test_what_the_library_refuses_in_its_own_words_is_a_model_error(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    _model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(changes))
    for read in (describe_model, lambda folder: load_shard(folder, LayerRange(0, 1))):
        with pytest.raises(ModelError):
            read(tmp_path)
    with pytest.raises(ModelError):
        attention_shape(json.dumps(changes))


def tensor(start: int, end: int, *shape: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": tensor(0, 16, 2, 2), "b": tensor(8, 24, 2, 2)},  # they overlap
        {"a": tensor(0, 32, 8), "b": tensor(8, 16, 2)},
        {"a": tensor(0, 16, 2, 2), "b": tensor(0, 16, 2, 2)},
        {"a": tensor(0, 2**60, 2**58)},
        {"a": tensor(2**60, 2**60 + 16, 4)},
        {"a": tensor(0, 16, *[2**52] * 100_000)},
        {"a": tensor(0, 16, 10**400)},
        {"a": tensor(0, 16, -4)},
        {"a": tensor(0, 16, 4.5)},
        {"a": tensor(0, 16, "4")},
        {"a": {**tensor(0, 16), "shape": "44"}},
        {"a": {**tensor(0, 16, 4), "data_offsets": [0, 16, 32]}},
        {"a": {**tensor(0, 16, 4), "dtype": ["F32"]}},
        {"a" * 5_000: tensor(0, 16, 4)},
        {"": tensor(0, 16, 4)},
        [tensor(0, 16, 4)],
    ],
)
def test_headers_that_describe_no_tensors_are_refused(tmp_path: Path, header: Any) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(_packed(json.dumps(header).encode(), 32))
    with at_once():
        read_header(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02",
        (2**63).to_bytes(8, "little") + b"{}",
        (2**24).to_bytes(8, "little") + b"{" * 2**24,
        _packed(b"[" * 10**6, 0),
        _packed(b'{"a":' * 10**5, 0),
        _packed(b'{"a": {"shape": ' + b"[" * 10**5 + b"]" * 10**5 + b"}}", 0),
        _packed(b'{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}', 4),
        _packed(b'{"\xff": 1}', 0),
    ],
)
def test_files_that_are_no_containers_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with at_once():
        read_header(file)


def test_a_table_of_positions_by_positions_is_not_built_for_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.engine.model.anatomy import build_tiny
    from core.engine.model.refusal import parse_config

    built: list[Any] = []
    make: Callable[..., Any] = AutoModelForCausalLM.from_config

    def noting(config: Any, **options: Any) -> Any:
        built.append(config.max_position_embeddings)
        return make(config, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", noting)
    config = {"model_type": "gpt_neo", "max_position_embeddings": 2**30}
    with suppress(ModelUnsupported):
        build_tiny(parse_config(json.dumps(config)))
    assert built and max(built) <= 4096
