"""Is a link to the pages good once, for ten minutes, and for the right gateway's address?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from client.cli import app
from client.gateway.logins import GOOD_FOR_S, Logins, link_of
from client.gateway.records.database import Database, private_sqlite_url
from core.protocol.errors import ConfigError
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from tests.client.gateway.world import World
from tests.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database.open(private_sqlite_url(tmp_path / "gateway.sqlite"))
    yield database
    database.close()


async def test_a_link_is_good_once_even_if_two_come_with_it_at_once(
    database: Database, clock: ManualClock
) -> None:
    logins = Logins(database, clock)
    one, other = await logins.new(), await logins.new()
    assert one != other
    assert not await logins.spend("") and not await logins.spend(one[:-1])
    assert sorted(await asyncio.gather(*(logins.spend(one) for _ in range(8)))) == [False] * 7 + [
        True
    ]
    assert await logins.spend(other) and not await logins.spend(other)


async def test_a_link_is_good_for_ten_minutes_and_kept_no_longer(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    logins = Logins(database, clock)
    late, early = await logins.new(), await logins.new()
    await clock.advance(GOOD_FOR_S - 1)
    assert await logins.spend(early)
    await clock.advance(1)
    assert not await logins.spend(late)
    await logins.new()
    with database.engine.connect() as connection:
        found = connection.exec_driver_sql("select count(*) from logins").scalar_one()
    assert found == 1
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240
    assert late.encode() not in kept and early.encode() not in kept


def settings(tmp_path: Path, **flags: object) -> Settings:
    given = {f"gateway.{name}": value for name, value in flags.items()}
    return load(flags=given, environ={}, folders=Folders.at(tmp_path))


def test_a_link_has_the_address_that_people_have(tmp_path: Path) -> None:
    def link(url: str = "", **flags: object) -> str:
        return link_of(settings(tmp_path, **flags), "x", url)

    assert link() == "http://127.0.0.1:8080/login?token=x"
    assert link(host="0.0.0.0") == "http://127.0.0.1:8080/login?token=x"
    assert link(host="::1", port=1) == "http://[::1]:1/login?token=x"
    assert link(public_url="https://llm.example.org/") == "https://llm.example.org/login?token=x"
    assert link("http://127.0.0.1:4711", port=0) == "http://127.0.0.1:4711/login?token=x"
    with pytest.raises(ConfigError, match="not known here where the gateway listens"):
        link(port=0)
    for wrong in ("llm.example.org", "https://a/b", "https://a@b", "ftp://a", "https://"):
        with pytest.raises(ConfigError, match="public_url"):
            settings(tmp_path, public_url=wrong)


def test_the_program_makes_a_link_for_the_gateway_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.sqlite"
    url = private_sqlite_url(path)
    world = World(tmp_path, flags={"gateway.dashboard": "true"}, db_url=url).start()
    try:
        for name, value in {
            "HEADRACE_HOME": str(tmp_path / "home"),
            "HEADRACE_GATEWAY__DB_URL": url,
            "HEADRACE_GATEWAY__PORT": str(world.port),
        }.items():
            monkeypatch.setenv(name, value)
        assert app.main(["pages", "--json"]) == 0
        link = json.loads(capsys.readouterr().out.splitlines()[-1])["result"]["pages"]
        assert link.startswith(f"{world.url}/login?token=")
        assert httpx2.get(link).status_code == 303
        assert httpx2.get(link).status_code == 403
    finally:
        world.stop()
