"""One name follows a request, in logs and in spans, from where it comes in to the last stage."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
from fastapi import FastAPI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from client.orders.matcher_api import MatcherApi
from client.orders.orders import Prompt
from core.protocol import wire
from core.protocol.errors import ConfigError, MalformedMessage
from core.runtime import logs, origin, tracing
from core.runtime.http_server import HttpServer
from tests.client.gateway.world import World
from tests.client.sessions.conftest import model_dir, village  # noqa: F401 - fixtures
from tests.frames import encode
from tests.town.town import prompts
from tests.town.village import Village, ask, hear

PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@pytest.fixture
def lines() -> Iterator[Any]:
    """What is logged from here on, as the JSON lines of a daemon."""
    stream = io.StringIO()
    logs.set_up("tests", level="debug", form="json", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    import logging

    for handler in [h for h in logging.getLogger().handlers if getattr(h, "_headrace", False)]:
        logging.getLogger().removeHandler(handler)
    structlog.reset_defaults()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.set_up("tests", exporter=exporter)
    yield exporter
    tracing.shut_down()


async def _two_asked(village: Village) -> tuple[Prompt, Prompt]:  # noqa: F811
    """Two requests over one session of three stages, each under its own name."""
    await village.start((0, 2), (2, 4), (4, 6))
    sessions = village.sessions()
    first, second = prompts(2, tokens=5)

    async def one(prompt: Prompt, name: str) -> None:
        with logs.bound(request_id=name), tracing.span("answer", PARENT, request_id=name):
            heard = await hear(sessions.answer(ask(village, prompt, prompt.custom_id)))
            assert len(heard.tokens) == 5

    await one(first, "req_first")
    await one(second, "req_second")
    await sessions.close()
    village.running.clear()
    await asyncio.gather(*(machine.stage.flush(5) for machine in village.machines))
    return first, second


async def test_one_name_finds_a_request_at_every_stage_and_no_other_request(
    village: Village,  # noqa: F811
    lines: Any,
) -> None:
    await _two_asked(village)
    for name in ("req_first", "req_second"):
        told = [line for line in lines() if line.get("request_id") == name]
        over = [line for line in told if line["event"] == "request over"]
        assert sorted(line["stage"] for line in over) == [0, 1, 2], name
        assert {line["phase"] for line in over} == {"finished"}
        assert len({(line["job"], line["order"], line["request"]) for line in over}) == 1
    opened = [line for line in lines() if line["event"] == "session matched"]
    assert [line["request_id"] for line in opened] == ["req_first"]  # it was opened for the first
    later = [line for line in lines() if line["event"] == "session closed"]
    assert later and not any("request_id" in line for line in later)


async def test_one_trace_has_a_span_of_every_stage_and_of_sampling(
    village: Village,  # noqa: F811
    spans: InMemorySpanExporter,
) -> None:
    await _two_asked(village)
    found = [
        s for s in spans.get_finished_spans() if s.attributes.get("request_id") == "req_second"
    ] + [s for s in spans.get_finished_spans() if s.name == "sampling"]
    (answer,) = [s for s in found if s.name == "answer"]
    assert format(answer.context.trace_id, "032x") == "ab" * 16
    assert format(answer.parent.span_id, "016x") == "cd" * 8
    stages = {s.name: s for s in found if s.name.startswith("stage")}
    assert set(stages) == {"stage 0", "stage 1", "stage 2"}
    assert all(s.parent.span_id == answer.context.span_id for s in stages.values())
    assert all(s.context.trace_id == answer.context.trace_id for s in stages.values())
    last = stages["stage 2"]
    (sampling,) = [
        s for s in found if s.name == "sampling" and s.parent.span_id == last.context.span_id
    ]
    assert sampling.attributes["tokens"] == 5
    assert last.attributes["phase"] == "finished" and last.attributes["layers"] == "4:6"
    assert not any("prompt" in str(s.attributes) for s in found)


async def test_the_name_and_the_span_reach_a_matcher_over_http(
    lines: Any, spans: InMemorySpanExporter
) -> None:
    app = FastAPI()
    seen: list[tuple[str, str]] = []

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        logs.get_logger("matcher").info("asked")
        seen.append((origin.current_id(), tracing.traceparent()))
        return {}

    app.add_middleware(origin.FollowRequest, names={"/v1/status": "match an order"})
    async with HttpServer(app) as server:
        matcher = MatcherApi(server.url)
        with logs.bound(request_id="req_x"), tracing.span("answer", PARENT, request_id="req_x"):
            await matcher.status()
        await matcher.status()
        async with httpx2.AsyncClient(base_url=server.url) as http:
            await http.get("/v1/status", headers={"x-request-id": "no id\t{}", "traceparent": "no"})
        await matcher.close()
    assert [name for name, _ in seen] == ["req_x", "", ""]
    asked = [line for line in lines() if line["event"] == "asked"]
    assert [line.get("request_id") for line in asked] == ["req_x", "", ""]
    matched = [s for s in spans.get_finished_spans() if s.name == "match an order"]
    assert format(matched[0].context.trace_id, "032x") == "ab" * 16
    assert all(s.parent is None for s in matched[1:])


def test_what_a_gateway_logs_and_answers_is_one_name(
    tmp_path: Path, lines: Any, spans: InMemorySpanExporter
) -> None:
    world = World(tmp_path / "world").start()
    try:
        headers = {"authorization": f"Bearer {world.new_key()}", "traceparent": PARENT}
        body = {"model": "toy", "messages": [{"role": "user", "content": "say:secret words"}]}
        url = f"{world.base_url}/chat/completions"
        good = httpx2.post(url, json=body, headers=headers)
        bad = httpx2.post(url, json={**body, "n": 99}, headers=headers)
        world.until(lambda: world.gateway.exchanges.running == 0)
    finally:
        world.stop()
    assert good.status_code == 200 and bad.status_code == 400
    by_name = {line["request_id"]: line for line in lines() if "request_id" in line}
    assert by_name[good.headers["x-request-id"]]["event"] == "request over"
    assert by_name[bad.headers["x-request-id"]]["event"] == "request refused"
    assert "secret words" not in json.dumps(lines())
    (answer,) = [s for s in spans.get_finished_spans() if s.name == "answer"]
    assert format(answer.context.trace_id, "032x") == "ab" * 16
    assert answer.attributes["request_id"] == good.headers["x-request-id"]


@pytest.mark.parametrize(
    "told",
    [
        {"request": "two words"},
        {"request": "x" * 65},
        {"request": 'a"}\n'},
        {"traceparent": "00-zz"},
        {"traceparent": PARENT + "\n"},
    ],
)
def test_a_stranger_cannot_write_into_our_logs(told: dict[str, str]) -> None:
    frame = encode(
        wire.Activations("0x" + "00" * 32, 0, 0, 1, origin=wire.Origin(**told)), b"\0" * 4
    )
    with pytest.raises(MalformedMessage):
        wire.decode(frame)


def test_frames_without_a_name_are_as_long_as_ever() -> None:
    rows = wire.Activations("0x" + "00" * 32, 0, 0, 1)
    assert b"origin" not in encode(rows, b"\0" * 4)


def test_nothing_is_imported_or_collected_where_nobody_collects() -> None:
    program = (
        "import sys; from core.runtime import tracing;"
        "assert not tracing.set_up('x'); assert tracing.begin('a', 'b') is None;"
        "s = tracing.span('a'); assert s is tracing.span('b'); s.__enter__();"
        "assert tracing.traceparent() == '';"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    environ = {"PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ, timeout=60)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match="traces cannot be sent"):
        tracing.set_up("tests")
    assert tracing.span("a").__enter__() is None
