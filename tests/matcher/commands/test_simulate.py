"""`matcher simulate` sets methods side by side, and says which have no plan and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.protocol.errors import NoCapacity
from core.protocol.ids import Kind, short
from matcher.cli import main
from matcher.commands.simulate import Asked, simulate_methods, world_of
from matcher.planning.simulated import METHODS
from tests.matcher.api.test_api import http  # noqa: F401
from tests.matcher.test_cli import FLEET, fleet_file, last_json, own_home  # noqa: F401
from tests.schemas import check_document
from tests.town.fleet import MODEL_ID

WINDOW = ["--warmup", "5s", "--duration", "20s"]


def run(folder: Path, *more: str, content: Any = FLEET) -> int:
    return main(["simulate", "--nodes", fleet_file(folder, content), *WINDOW, *more])


def test_methods_are_set_side_by_side_best_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--json") == 0
    document = last_json(capsys)
    check_document(document)
    result = document["result"]
    served = [one["decode_tokens_per_s"] for one in result["methods"]]
    found = {one["method"] for one in result["methods"]}
    assert found | {one["method"] for one in result["refused"]} == set(METHODS)
    assert {"auto", "regions", "helix"} <= found
    assert served == sorted(served, reverse=True) and served[-1] > 0
    assert run(tmp_path, "--method", "even", "--rate", "0.5") == 0
    shown = capsys.readouterr()
    assert "even" in shown.out and "0.5 a second" in shown.err


def test_a_file_says_which_requests_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schema": "trace/1", "requests": [[6, 20, 11]]}))
    given = ["--trace", str(trace), "--method", "auto"]
    assert run(tmp_path, "--json", *given) == 0
    result = last_json(capsys)["result"]
    assert result["requests"] == "1 requests of trace.json"
    assert result["methods"][0]["finished_requests"] == 1
    assert run(tmp_path, *given, "--rate", "1") == 2
    assert "--rate goes with the built-in" in capsys.readouterr().err


def test_pictures_are_drawn_of_each_method_and_of_all(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "pictures"
    assert run(tmp_path, "--method", "auto", "--method", "even", "--pictures", str(folder)) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["all.svg", "auto.svg", "even.svg"]
    taken = tmp_path / "taken"
    taken.write_text("")
    assert run(tmp_path, "--method", "auto", "--pictures", str(taken)) == 2


def test_a_method_without_a_plan_does_not_take_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"id": "d", "memory": "200MiB", "tflops": 0.1, "bandwidth_gb_s": 8, "region": "eu"}
    machines = [*FLEET["machines"], slow]  # type: ignore[misc]
    content = {**FLEET, "machines": machines}
    assert run(tmp_path, "--json", "--method", "auto", "--method", "even", content=content) == 0
    result = last_json(capsys)["result"]
    assert [one["method"] for one in result["methods"]] == ["auto"]
    assert [one["method"] for one in result["refused"]] == ["even"]
    assert run(tmp_path, "--method", "even", content=content) != 0
    assert "no method has a plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--method", "nonsense"], "no method ['nonsense']"),
        (["--duration", "0s"], "duration_s"),
        (["--rate", "-1"], "no such rate"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    assert run(tmp_path, *more) == 2
    assert words in capsys.readouterr().err


def test_without_a_file_a_model_of_the_running_matcher_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate"]) == 2
    assert "--model" in capsys.readouterr().err
    assert main(["simulate", "--model", short(Kind.MODEL, MODEL_ID)]) == 3, "no matcher runs"


async def test_the_live_fleet_is_simulated(http: httpx2.AsyncClient) -> None:  # noqa: F811
    answer = (await http.get("/v1/fleet", params={"model": MODEL_ID})).json()
    asked = Asked(world_of(answer, MODEL_ID), ("auto", "memory"), 5.0, 20.0, 5.0)
    found, _ = simulate_methods(asked, lambda: 0.0)
    assert {one.method for one in found.methods} == {"auto", "memory"}
    assert all(one.decode_tokens_per_s > 0 and one.machines == 3 for one in found.methods)
    with pytest.raises(NoCapacity):
        empty = {"document": {**answer["document"], "machines": []}}
        simulate_methods(Asked(world_of(empty, MODEL_ID), ("auto",), 5.0, 20.0, 5.0), lambda: 0.0)
