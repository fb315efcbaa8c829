"""Is somebody told before money runs out: once, signed, and however often their receiver fails?"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from hypothesis import given
from hypothesis import strategies as st

from client.gateway.balance_watch import LOW_FUNDS, SeenBalances, lasts_s
from client.wallet import Balances
from core.protocol.errors import ChainUnreachable, ConfigError, SecretFileTooOpen
from core.runtime.alerts import SIGNATURE, Alerts, Trouble, secret_of, sign
from core.runtime.clock import SystemClock
from core.runtime.http_server import HttpServer
from core.runtime.metrics import Metrics
from core.runtime.retry import Backoff
from core.runtime.settings import AlertSettings as Limits
from miner.daemon.stake_watch import EVENTS, SessionDebt, StakeWatch, owed_since
from tests.client.gateway.world import World
from tests.house.tree import ROOT
from tests.ops.receiver import is_signed

SECRET = b"a secret of some length"
FAST = Backoff(attempts=6, timeout_s=20.0, initial_s=0.01, max_s=0.05, jitter_s=0.0)
LOW = Trouble("money runs out", "1usd is left", "send more", values={"left_units": "1000000"})


@dataclass
class Receiver:
    """Somebody's own webhook, over real HTTP. `answers` are the statuses that it gives first."""

    answers: list[int] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)
    tries: int = 0
    url: str = ""

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/hook")
        async def hook(request: Request) -> Response:
            self.tries += 1
            body, header = await request.body(), request.headers[SIGNATURE]
            assert is_signed(SECRET, body, header, SystemClock().now())
            assert not is_signed(b"another secret", body, header, SystemClock().now())
            if self.answers:
                return Response(status_code=self.answers.pop(0))
            self.got.append(json.loads(body))
            return Response(status_code=204)

        return app

    async def heard(self, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(20):
            while len(self.got) < count:
                await asyncio.sleep(0.01)
        return self.got


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with HttpServer(receiver.app()) as server:
        receiver.url = f"{server.url}/hook"
        yield receiver


def alerts_to(url: str, *events: str, metrics: Metrics | None = None) -> Alerts:
    return Alerts(
        metrics or Metrics(),
        SystemClock(),
        events=events or ("low",),
        webhook=url,
        secret=SECRET,
        about={"daemon": "gateway", "network": "devnet", "account": "0xab"},
        backoff=FAST,
    )


async def test_an_alert_is_told_once_and_its_end_under_the_same_id(receiver: Receiver) -> None:
    alerts = alerts_to(receiver.url)
    for _ in range(5):
        alerts.tell("low", [LOW])
    alerts.tell("low", [])
    alerts.tell("low", [])
    firing, resolved = await receiver.heard(2)
    await alerts.close()
    assert (firing["state"], resolved["state"]) == ("firing", "resolved")
    assert firing["id"] == resolved["id"] and firing["daemon"] == "gateway"
    assert firing["values"] == {"left_units": "1000000"} and firing["fix"] == "send more"
    assert len(receiver.got) == 2


async def test_a_receiver_that_fails_is_asked_again_with_a_fresh_signature(
    receiver: Receiver,
) -> None:
    receiver.answers = [503, 429, 500]
    metrics = Metrics()
    alerts = alerts_to(receiver.url, metrics=metrics)
    alerts.tell("low", [LOW])
    await receiver.heard(1)
    await alerts.close()
    assert receiver.tries == 4
    text = metrics.render()[0].decode()
    assert 'headrace_webhooks_total{outcome="delivered"} 1.0' in text
    assert 'headrace_alerts{event="low"} 1.0' in text


async def test_who_refuses_or_is_not_there_keeps_nobody_waiting(receiver: Receiver) -> None:
    receiver.answers = [403]
    metrics = Metrics()
    alerts = alerts_to(receiver.url, metrics=metrics)
    alerts.tell("low", [LOW])
    await alerts.flush(10)
    assert receiver.tries == 1 and not receiver.got
    await alerts.close()
    away = alerts_to("http://127.0.0.1:1/hook", metrics=metrics)
    away.tell("low", [LOW])
    await away.flush(20)
    await away.close()
    text = metrics.render()[0].decode()
    assert 'headrace_webhooks_total{outcome="refused"} 1.0' in text
    assert 'headrace_webhooks_total{outcome="given_up"} 1.0' in text


@given(secret=st.binary(min_size=1), body=st.binary(), at=st.integers(0, 2**40), more=st.binary())
def test_only_the_same_bytes_in_time_are_signed(
    secret: bytes, body: bytes, at: int, more: bytes
) -> None:
    header = sign(secret, body, at)
    assert is_signed(secret, body, header, at + 300)
    assert not is_signed(secret, body, header, at + 301)
    assert not is_signed(secret, body + b"x" + more, header, at)
    assert not is_signed(secret, body, header.replace("v1=", "v0="), at)


@given(st.text())
def test_any_header_is_read_without_an_error(header: str) -> None:
    assert not is_signed(SECRET, b"{}", header, 0.0)


def test_a_webhook_needs_a_secret_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef0123\n")
    assert secret_of("", None) == b""
    with pytest.raises(ConfigError, match="alerts cannot be sent"):
        secret_of("http://x", None)
    file.chmod(0o644)
    with pytest.raises(SecretFileTooOpen):
        secret_of("http://x", file)
    file.chmod(0o600)
    assert secret_of("http://x", file) == b"0123456789abcdef0123"
    file.write_text("short")
    with pytest.raises(ConfigError, match="too short"):
        secret_of("http://x", file)


# --- the gateway's ---


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 10**9)), min_size=2, max_size=20),
    st.integers(0, 10**12),
)
def test_money_lasts_as_long_as_the_rate_says(steps: list[tuple[float, int]], left: int) -> None:
    at, spent, samples = 0.0, 0, [(0.0, 0)]
    for seconds, units in steps:
        at, spent = at + seconds, spent + units
        samples.append((at, spent))
    found = lasts_s(samples, left)
    if at < 60 or not spent:
        assert found is None
    else:
        assert found == pytest.approx(left / (spent / at))


async def test_a_gateway_warns_of_low_funds_and_of_a_key_whose_budget_runs_out(
    receiver: Receiver, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    flags = {"alerts.webhook": receiver.url, "alerts.secret_file": str(secret)}
    world = World(tmp_path / "world", flags={**flags, "gateway.low_balance": "2usd"})
    await asyncio.to_thread(world.start)
    try:
        await asyncio.to_thread(_use_up, world)
        (budget,) = await receiver.heard(1)
        assert budget["event"] == "key_budget" and budget["subject"].startswith("key_")
        assert "hr-" not in json.dumps(budget)
        await asyncio.to_thread(world.run, _spend(world, [(0, 0), (600, 10**6)]))
        low = (await receiver.heard(2))[1]
        assert low["event"] == LOW_FUNDS and low["state"] == "firing"
        assert low["values"] == {"left_units": "3000000", "lasts_s": 1800}
        assert "last 0.5 hours" in low["why"] and "less than" not in low["why"]
        await asyncio.to_thread(
            world.run, _spend(world, [(10**6, 2 * 10**6), (10**6 + 99, 2 * 10**6)])
        )
        assert (await receiver.heard(3))[2]["state"] == "resolved"
    finally:
        await asyncio.to_thread(world.stop)


def _use_up(world: World) -> None:
    import openai

    key = world.new_key("nearly", budget_units=10**6)
    with openai.OpenAI(base_url=world.base_url, api_key=key, max_retries=0) as client:
        said: Any = [{"role": "user", "content": "say:hello"}]
        client.chat.completions.create(model="toy", messages=said, max_tokens=8)

    def shrink() -> None:
        from client.gateway.records.tables import KeyRow

        with world.gateway.database.session() as session:
            row = session.get(KeyRow, world.key_id)  # type: ignore[attr-defined]
            row.budget_units = row.spent_units + 1
            session.add(row)

    world.key_id = world.key(key).key_id  # type: ignore[attr-defined]
    world.run(world.gateway.database.run(shrink))
    world.run(world.gateway.balance_watch._look_at_keys())


async def _spend(world: World, samples: list[tuple[float, int]]) -> None:
    """As if the chain had been read at these times, three tokens being left."""
    held = Balances(0, 10**6, 2 * 10**6, 0, 0, 0)
    for at, spent in samples:
        world.gateway.balance_watch._look_at_rate(SeenBalances(held, at), spent)


# --- the miner's ---


@dataclass
class Registry:
    """What the chain says of an owner."""

    stake: int = 500
    least: int = 100
    disputes: int = 0
    clock_s: int = 0
    is_away: bool = False

    def now_s(self) -> int:
        return self.clock_s

    async def registered(self, owner: str) -> dict[str, int]:
        if self.is_away:
            raise ChainUnreachable("no answer", "away")
        return {"stake": self.stake, "openDisputes": self.disputes, "jailUntil": 0}

    async def least_stake(self) -> int:
        return self.least

    async def credit(self, owner: str) -> int:
        return 0

    async def gas_wei(self) -> int:
        return 1


@dataclass
class Job:
    """The part of an open job that is looked at."""

    units: int
    stored: Any = field(default_factory=lambda: type("S", (), {"job_id": "0x" + "12" * 32})())
    is_open_order: bool = True

    def unpaid_units(self, spec: object) -> int:
        return self.units


async def test_a_miner_warns_of_stake_disputes_and_work_that_nobody_pays(
    receiver: Receiver,
) -> None:
    registry = Registry()
    chain: Any = registry
    alerts = alerts_to(receiver.url, *EVENTS)
    standing = StakeWatch(chain, "0x1", alerts, Limits(unsettled="1h"), lambda units: f"{units}u")
    jobs: Any = [Job(7)]

    async def look(**now: int | bool) -> list[str]:
        for name, value in now.items():
            setattr(registry, name, value)
        try:
            await standing.look(jobs, spec=None)  # type: ignore[arg-type]
        except ChainUnreachable:
            assert registry.is_away
        return sorted(event for event, of in alerts._firing.items() for _ in of)

    assert await look() == []
    assert await look(clock_s=3599) == []
    assert await look(clock_s=3600, is_away=True) == ["unsettled_work"]
    jobs[0].units = 0
    assert await look(is_away=False) == []
    assert await look(stake=110) == []
    assert await look(stake=109) == ["low_stake"]
    assert await look(disputes=2) == ["disputed", "low_stake"]
    assert await look(disputes=0, stake=500) == []
    heard = await receiver.heard(6)
    await alerts.close()
    told = [(body["event"], body["state"]) for body in heard]
    for event in EVENTS:
        assert told.count((event, "firing")) == told.count((event, "resolved")) == 1
    assert next(b for b in heard if b["event"] == "unsettled_work")["subject"].startswith("job_")


def test_who_pays_is_late_anew() -> None:
    one: Callable[[int], list[SessionDebt]] = lambda units: [SessionDebt("a", units)]  # noqa: E731
    since = owed_since({}, one(5), 10)
    assert owed_since(since, one(9), 99) == {"a": 10}
    assert owed_since(since, one(0), 99) == {} and owed_since(since, [], 99) == {}


def test_the_page_for_operators_shows_how_an_alert_is_checked():
    assert inspect.getsource(is_signed) in (ROOT / "ops" / "README.md").read_text()
