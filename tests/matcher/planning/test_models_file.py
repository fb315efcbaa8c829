"""`matcher plan --models`: several models over GPU types that exist only in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from core.protocol.errors import NoCapacity, UsageError
from matcher.cli import main
from matcher.planning import models_file
from matcher.planning.models_file import place_models, read_models
from tests.matcher.test_cli import last_json, own_home  # noqa: F401

EXAMPLE = Path(__file__).parents[3] / "benchmarks" / "data" / "models" / "llmfabric.json"
SMALL = {
    "schema": "models/1",
    "models": [
        {
            "id": name,
            "layers": 8,
            "hidden": 2048,
            "intermediate": 5632,
            "heads": 16,
            "kv_heads": 4,
            "vocab": 32000,
            "tied": False,
            "requests_per_s": rate,
            "input_tokens": 500,
            "output_tokens": 100,
        }
        for name, rate in (("chat", 2.0), ("code", 1.0))
    ],
    "gpus": [
        {"id": "big", "count": 4, "memory": "24GiB", "tflops": 100, "bandwidth_gb_s": 1000},
        {"id": "old", "count": 2, "memory": "4GiB", "tflops": 10, "bandwidth_gb_s": 200},
    ],
}

#: Every key that a file may have.
FULL = {
    **SMALL,
    "id": "full",
    "models": [
        {
            **SMALL["models"][0],
            "slo_ms": 9000.0,
            "weight": 2.0,
            "head_dim": 128,
            "bytes_per_parameter": 2.0,
            "kv_bytes_per_value": 2,
            "activation_bytes_per_value": 2,
            "layer_bytes": 100_000_000,
            "experts": 4,
            "experts_per_token": 2,
            "expert_intermediate": 128,
        }
    ],
    "gpus": [{**SMALL["gpus"][0], "count": 2, "interconnect_gb_s": 25.0, "gpus_per_node": 2}],
    "objective": "weighted",
    "sharing": True,
    "efficiency": {
        "compute": 0.5,
        "bandwidth": 0.8,
        "interconnect": 0.7,
        "kernel_us": 4.0,
        "kernels_per_layer": 10,
        "all_reduce_us": 10.0,
        "step_ms": 1.0,
        "memory": 0.9,
        "kv_high_water": 0.9,
        "token_budget": 8192,
        "max_sequences": 256,
    },
    "serving": {"chat": [{"gpu": "big", "tensor": 1, "replicas": 1}]},
    "ms_per_gpu": 5.0,
}
WRONG = (-1, 0, math.inf, math.nan, "x", None, [], {}, True, 10**30)


def changed(part: str, **values: Any) -> dict[str, Any]:
    """The small file with something else in the first entry of a list."""
    first, *others = SMALL[part]
    return {**SMALL, part: [{**first, **values}, *others]}


def serving(model: str, gpu: str, **values: Any) -> dict[str, Any]:
    """The small file where one group serves."""
    return {**SMALL, "serving": {model: [{"gpu": gpu, **values}]}}


def placed(folder: Path, content: Any, *options: str) -> int:
    path = folder / "models.json"
    path.write_text(json.dumps(content))
    return main(["plan", "--models", str(path), *options])


def test_the_example_is_placed_with_a_proof(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--models", str(EXAMPLE), "--json"]) == 0
    result = last_json(capsys)["result"]
    assert [one["model"] for one in result["models"]] == ["13B", "34B", "70B"]
    assert result["gap"] == 0 and result["bound"] == pytest.approx(result["value"], rel=1e-6)
    used = dict.fromkeys(result["idle"], 0)
    for one in result["models"]:
        assert 0 < one["used"] < 1
        for group in one["groups"]:
            used[group["gpu"]] += group["tensor"] * group["replicas"]
    assert {gpu: used[gpu] + result["idle"][gpu] for gpu in used} == {"A100": 24, "GH200": 32}
    assert result["value"] == pytest.approx(sum(one["latency_ms"] for one in result["models"]))


def test_a_placement_is_a_table_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert placed(tmp_path, SMALL) == 0
    shown = capsys.readouterr()
    assert "chat" in shown.out and "× " in shown.out and "ms/request" in shown.out
    assert "gap 0.00%" in shown.err and "idle: " in shown.err


def test_the_file_says_what_is_best_and_whether_models_may_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = [{**model, "slo_ms": 60_000} for model in SMALL["models"]]
    assert placed(tmp_path, {**SMALL, "models": limits, "objective": "slo"}, "--json") == 0
    result = last_json(capsys)["result"]
    assert result["value"] == 0 and sum(result["idle"].values()) == 4
    one = {**SMALL, "gpus": [{**SMALL["gpus"][0], "count": 1}]}
    assert placed(tmp_path, one) == 7
    assert placed(tmp_path, {**one, "sharing": True}) == 0
    assert "chat and code take turns on the same GPUs" in capsys.readouterr().err


def test_what_serves_now_stays_where_loading_is_dear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serving = {
        "chat": [{"gpu": "big", "tensor": 1, "replicas": 1}],
        "code": [{"gpu": "old", "tensor": 1, "replicas": 1}],
    }
    assert placed(tmp_path, {**SMALL, "serving": serving, "ms_per_gpu": 1e6}, "--json") == 0
    result = last_json(capsys)["result"]
    assert {one["model"]: one["groups"] for one in result["models"]} == serving


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (changed("models", requests_per_s=1e6), "more than these GPUs serve"),
        (changed("models", layers=4000), "needs a chain over several nodes"),
        ({**SMALL, "gpus": [{**SMALL["gpus"][1], "count": 1}]}, "need at least 2 GPUs"),
    ],
)
def test_gpus_that_do_not_serve_the_models_say_what_is_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, words: str
) -> None:
    assert placed(tmp_path, content) == 7
    said = capsys.readouterr().err
    assert words in said and "E-MATCH-01" in said and "--sort price" not in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "the file is not a table"),
        ({**SMALL, "schema": "fleet/1"}, "not models/1"),
        ({**SMALL, "surprise": 1}, "unknown keys ['surprise']"),
        ({"schema": "models/1", "models": []}, "'gpus' is missing"),
        ({**SMALL, "models": []}, "no model to place"),
        (changed("models", requests_per_s=0), "models[0]: requests_per_s is 0"),
        (changed("models", rate=1), "models[0]: it has unknown keys ['rate']"),
        (changed("models", id="code"), "model code is listed twice"),
        (changed("gpus", memory="24"), "gpus[0]: memory: '24' has no unit"),
        (changed("gpus", count=1.0), "gpus[0]: GPU type big: count is 1.0"),
        (changed("gpus", gpus_per_node=True), "gpus[0]: GPU type big: gpus_per_node is True"),
        (changed("models", heads=0), "models[0]: heads is 0"),
        (changed("models", hidden=math.inf), "models[0]: hidden is inf"),
        (changed("models", slo_ms="x"), "models[0]: model chat: slo_ms is 'x'"),
        (changed("models", tied="no"), "models[0]: tied is 'no'"),
        ({**SMALL, "models": "x"}, "models is not a list"),
        ({**SMALL, "sharing": "no"}, "sharing is 'no'"),
        ({**SMALL, "ms_per_gpu": math.nan}, "ms_per_gpu is nan"),
        (changed("gpus", tflops=-1), "gpus[0]: GPU type big: tflops is -1"),
        ({**SMALL, "gpus": [{"id": "big"}]}, "gpus[0]: "),
        ({**SMALL, "gpus": [{"count": 1}]}, "gpus[0]: 'id' is missing"),
        ({**SMALL, "objective": "least"}, "no objective is called least"),
        ({**SMALL, "objective": "slo"}, "chat has no slo_ms"),
        ({**SMALL, "efficiency": {"memory": 2}}, "memory efficiency is 2"),
        ({**SMALL, "efficiency": {"disk": 1}}, "efficiency has unknown keys ['disk']"),
        ({**SMALL, "efficiency": {"token_budget": 1.5}}, "token_budget is 1.5"),
        (serving("chat", "big"), "tensor"),
        (serving("nobody", "big", tensor=1, replicas=1), "serving has unknown keys ['nobody']"),
        (serving("chat", "A100", tensor=1, replicas=1), "serving.chat[0]: gpu is 'A100'"),
        (serving("chat", "big", tensor=1, replicas=0), "serving.chat on big: replicas is 0"),
        (serving("chat", "big", tensor=1, replicas=1, x=1), "chat[0]: it has unknown keys ['x']"),
    ],
)
def test_a_wrong_file_is_said_to_be_wrong_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, words: str
) -> None:
    assert placed(tmp_path, content) == 2
    said = capsys.readouterr().err
    assert words in said and "E-USAGE-01" in said


def with_each_part_wrong(content: Any) -> Iterator[Any]:
    """The content with each table, list and value in it replaced by each wrong one, in turn."""
    yield from WRONG
    keys = content if isinstance(content, dict) else range(len(content))
    for key in keys:
        part = content[key]
        inner = with_each_part_wrong(part) if isinstance(part, dict | list) else WRONG
        for wrong in inner:
            broken = deepcopy(content)
            broken[key] = wrong
            yield broken


def test_whatever_is_wrong_in_a_file_is_a_typed_error_or_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text(json.dumps(FULL))
    assert place_models(read_models(path)).models[0]["model"] == "chat"
    refused = 0
    for content in with_each_part_wrong(FULL):
        path.write_text(json.dumps(content))
        try:
            place_models(read_models(path))
        except (UsageError, NoCapacity) as error:
            assert error.why
            refused += 1
    assert refused > 300


@pytest.mark.parametrize(
    ("broken", "words"), [("place", "too large or too small"), ("GpuType", "gpus[0]: too much")]
)
def test_numbers_that_cannot_be_counted_with_are_no_fault_of_the_program(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    words: str,
) -> None:
    def overflow(*_: object, **__: object) -> None:
        raise OverflowError("too much")

    monkeypatch.setattr(models_file, broken, overflow)
    assert placed(tmp_path, SMALL) == 2
    assert words in capsys.readouterr().err


def test_one_of_both_files_is_needed_and_no_other_option_goes_with_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan"]) == 2
    assert "neither --nodes nor --models" in capsys.readouterr().err
    for other in (["--nodes", "x"], ["--method", "helix"], ["--format", "dot"], ["--explain"]):
        assert main(["plan", "--models", str(EXAMPLE), *other]) == 2
        assert "goes with no other option" in capsys.readouterr().err
