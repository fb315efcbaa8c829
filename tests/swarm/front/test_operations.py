"""Operators see what happens: one name finds a request everywhere, every query has an answer."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from devnet.accounts import environ_of
from devnet.network import program
from tests.ops import prometheus
from tests.swarm.world import MARKS, WITHIN_S, World, until

pytestmark = MARKS
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "a word that no log may hold: xyzzy"}],
    "max_tokens": 8,
}


async def ask(world: World) -> str:
    """The name of an answered request."""
    headers = {"authorization": f"Bearer {await world.net.new_key('watcher')}"}
    async with httpx2.AsyncClient(timeout=120) as http:
        url = f"{world.net.gateway_url}/v1/chat/completions"
        answer = await http.post(url, json=ASKED, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-request-id"])


def lines_of(world: World, party: str, name: str) -> list[dict[str, Any]]:
    """What a party's program said about a request."""
    text = (world.net.layout.logs / f"{party}.log").read_text(errors="replace")
    return [json.loads(line) for line in text.splitlines() if name in line and line[:1] == "{"]


async def test_one_name_finds_a_request_in_every_log_of_its_path(world: World) -> None:
    name = await ask(world)

    async def all_told() -> bool:
        return all(lines_of(world, party, name) for party in ("gateway", *world.profiles))

    await until(all_told, within_s=WITHIN_S, what=f"everybody's log has {name}")
    (answered,) = [
        line for line in lines_of(world, "gateway", name) if line["event"] == "request over"
    ]
    assert answered["state"] == "done" and answered["tokens_out"] > 0
    over = {
        party: [x for x in lines_of(world, party, name) if x["event"] == "request over"]
        for party in world.profiles
    }
    assert sorted(line["stage"] for lines in over.values() for line in lines) == [0, 1, 2]
    assert {f"{line['job']}/{line['request']}" for lines in over.values() for line in lines} == {
        *answered["jobs"]
    }
    for log in world.net.layout.logs.glob("*.log"):
        assert "xyzzy" not in log.read_text(errors="replace")
    job = answered["jobs"][0].partition("/")[0]
    matched = (world.net.layout.logs / "matcher-1.log").read_text()
    assert f'"job":"{job}"' in matched.replace(" ", "")


@pytest_asyncio.fixture(loop_scope="package")
async def juror(world: World) -> AsyncIterator[str]:
    """Where a juror's metrics are."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    net = world.net
    await net.run("juror-1", program("auditor", "jury", "stake", "100usd", "--yes"))
    environ = environ_of(net.layout, "juror-1") | {"HEADRACE_AUDITOR__METRICS_PORT": str(port)}
    await net.processes.start("juror-1", program("auditor", "jury", "serve"), environ)
    yield f"127.0.0.1:{port}"
    await net.processes.stop("juror-1")


@pytest.mark.skipif(bool(prometheus.why_not()), reason=prometheus.why_not())
async def test_every_query_and_every_alert_has_an_answer_from_running_daemons(
    world: World, juror: str, tmp_path: Path
) -> None:
    targets = {
        "gateway": [f"127.0.0.1:{world.net.gateway_metrics_port}"],
        "matcher": [world.net.matcher_url.partition("//")[2]],
        "miner": [world.running(party).url.partition("//")[2] for party in world.profiles],
        "auditor": [juror],
    }

    async def is_up() -> bool:
        async with httpx2.AsyncClient(timeout=2) as http:
            for host in [host for hosts in targets.values() for host in hosts]:
                try:
                    text = (await http.get(f"http://{host}/metrics")).text
                except httpx2.HTTPError:
                    return False
                if "headrace_chain_up 0" in text:
                    return False
        return True

    await until(is_up, within_s=WITHIN_S, what="every daemon has metrics and its chain")
    with prometheus.running(tmp_path / "prometheus", targets) as url:
        await ask(world)
        wanted = dict(prometheus.queries())
        for name, expression in prometheus.alerts().items():
            wanted |= {f"{name}: {s}": s for s in prometheus.selectors(expression)}
        silent, deadline = wanted, time.monotonic() + WITHIN_S
        while silent and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
            silent = {
                name: query for name, query in silent.items() if not prometheus.ask(url, query)
            }
        assert not silent
        up = prometheus.ask(url, "up")
        assert len(up) == 3 + len(world.profiles) and {r["value"][1] for r in up} == {"1"}
        (busy,) = prometheus.ask(url, 'sum(headrace_requests_total{job="gateway",outcome="done"})')
        assert float(busy["value"][1]) >= 1
        rules = httpx2.get(f"{url}/api/v1/rules").json()["data"]["groups"]
        assert all(rule["health"] != "err" for group in rules for rule in group["rules"])
