"""Plans on demand: the live fleet as a document, methods side by side, and limits that hold."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2
import pytest

from core.protocol.errors import DeadlinePassed, NoCapacity
from matcher.fleet.fleet_view import fleet_of
from matcher.fleet.shapes import shape_of
from matcher.planning import planning
from matcher.planning.plan_child import answer
from matcher.planning.plan_file import what_if_of
from matcher.planning.planning import (
    MAX_MACHINES,
    MAX_PLAN_BODY_BYTES,
    PlanBody,
    PlanDesk,
    fleet_document,
)
from tests.matcher.api.test_api import error, http  # noqa: F401
from tests.matcher.test_cli import FLEET
from tests.town.fleet import MODEL_ID, SPEC, machine_key, sighting


async def test_the_live_fleet_is_a_document_that_plans(http: httpx2.AsyncClient):  # noqa: F811
    document = (await http.get("/v1/fleet", params={"model": MODEL_ID})).json()["document"]
    assert document["shape"]["layers"] == 30
    assert len(document["machines"]) == 3
    asked = {"document": document, "methods": ["even", "nonsense"], "limitS": 5.0}
    response = await http.post("/v1/plan", json=asked)
    assert response.status_code == 200
    even, nonsense = response.json()["plans"]
    assert sorted(even["plan"]["layers"]) == sorted(m["id"] for m in document["machines"])
    assert "nonsense" in nonsense["error"]["why"]


def test_a_document_says_of_links_what_the_planner_knows() -> None:
    one, two, three = (machine_key(number).address for number in (1, 2, 3))
    here = (
        sighting(1, region="eu", rho_ms={two: 3.0}, link_mb_s={two: 9.0}),
        sighting(2, region="", rho_ms={one: 4.0}, link_mb_s={one: 5.0}),
        sighting(3),
    )
    document = fleet_document("live", shape_of(SPEC), here)
    read = what_if_of(document, "live").fleet
    known = fleet_of(here)
    assert read.links == known.links
    assert {m.id: m.region for m in read.machines} == {one: "eu", two: "eu", three: "here"}


def test_methods_answer_side_by_side_and_one_that_fails_does_not_take_the_others() -> None:
    question = {"document": FLEET, "methods": ["greedy", "nope", "stages"], "limit_s": 8.0}
    found = answer(question, time.monotonic)["plans"]
    assert [entry["method"] for entry in found] == ["greedy", "nope", "stages"]
    assert "error" in found[1]
    assert found[0]["plan"]["tokens_per_s"]["at_most"] == pytest.approx(
        found[2]["plan"]["tokens_per_s"]["at_most"]
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"document": {}, "methods": ["even"]}, 400),
        ({"document": {"machines": [{}] * (MAX_MACHINES + 1)}, "methods": ["even"]}, 400),
        ({"document": FLEET, "methods": []}, 400),
        ({"document": FLEET, "methods": ["even"], "limitS": 1e9}, 400),
        ({"document": {"pad": "x" * MAX_PLAN_BODY_BYTES}, "methods": ["even"]}, 413),
    ],
)
async def test_a_question_out_of_bounds_is_refused(
    http: httpx2.AsyncClient,  # noqa: F811
    body: dict[str, Any],
    status: int,
) -> None:
    response = await http.post("/v1/plan", content=json.dumps(body))
    assert response.status_code == status
    assert error(response)["why"]


async def test_a_second_question_is_turned_away_and_an_endless_one_is_ended() -> None:
    desk = PlanDesk(grace_s=0.0)
    body = PlanBody(document=dict(FLEET), methods=["auto"], limit_s=0.05)
    with pytest.raises(DeadlinePassed):
        await desk.plan(body)
    async with desk._busy:
        with pytest.raises(NoCapacity):
            await desk.plan(body)


async def test_a_process_that_dies_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.sys, "executable", "/bin/false")
    with pytest.raises(NoCapacity):
        await PlanDesk().plan(PlanBody(document=dict(FLEET), methods=["even"]))
