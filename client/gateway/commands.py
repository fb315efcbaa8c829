"""What do `client serve`, `client pages` and `client keys` do?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from client.gateway.logins import Logins, link_of
from client.gateway.money.keyring import (
    ApiKey,
    DayOfUse,
    Keyring,
    changes_of,
    days_of_use,
    limits_of,
)
from client.gateway.records.database import Database, database_url
from core.protocol.errors import UsageError
from core.runtime.clock import SystemClock
from core.runtime.commands.results import Result
from core.runtime.commands.spreadsheet import csv_text

if TYPE_CHECKING:
    from client.options import KeyOptions
    from core.runtime.commands.console import Run
    from core.runtime.settings import Settings


class Serving(Result, frozen=True):
    """`serve`, once it answers."""

    url: str
    base_url: str
    payer: str
    pages: str | msgspec.UnsetType = msgspec.UNSET


class PagesLink(Result, frozen=True):
    """`pages`: good once, for ten minutes."""

    pages: str


class ShownKey(Result, frozen=True):
    """`keys ls` and `keys revoke`."""

    id: str
    name: str
    hint: str
    state: str
    budget: str | None
    spent: str
    today: str
    reserved: str
    expires: str | None
    models: str
    rate: str | None
    token_rate: str | None
    tags: str
    last_used: str | None
    created: str | None


class KeyUse(Result, frozen=True):
    """`keys usage`: a key's use of a model on one day (UTC)."""

    day: str
    key: str
    tags: str
    model: str
    requests: int
    failed: int
    tokens_in: int
    tokens_out: int
    cost: str
    cost_units: int


class NewKey(ShownKey, frozen=True):
    """`keys new`: the only time that the key itself is shown."""

    key: str


async def serve(run: Run, settings: Settings) -> None:
    """Serve until stopped."""
    from client.gateway.start import running

    signer = run.unlock()
    async with running(settings, signer) as gateway:
        base = f"{settings.gateway.public_url or gateway.url}/v1"
        lines = [f"OPENAI_BASE_URL={base}", "keys: client keys new NAME"]
        pages: str | msgspec.UnsetType = msgspec.UNSET
        if settings.gateway.dashboard:
            pages = link_of(settings, await gateway.logins.new(), gateway.url)
            lines.append(f"pages: {pages} (once, within ten minutes; then: client pages)")
        run.emit(Serving(gateway.url, base, gateway.payer, pages), human="\n".join(lines))
        await asyncio.Event().wait()


async def pages_link(run: Run) -> PagesLink:
    """A new link to the pages of the gateway that serves from this wallet's folder."""
    run.rehearse("make a link")
    with _database(run.settings) as database:
        return PagesLink(link_of(run.settings, await Logins(database, SystemClock()).new()))


async def new_key(run: Run, name: str, typed: KeyOptions) -> NewKey:
    """Make a key; the only time that its secret is shown."""
    if not 0 < len(name) <= 120:
        raise UsageError("the key has no usable name", "a name has 1 to 120 characters")
    said = {option: value for option, value in vars(typed).items() if value}
    limits = limits_of(run.settings, SystemClock().now(), **said)
    run.rehearse("make a key", {"name": name})
    with _keyring(run.settings) as keys:
        key, secret = await keys.new(name, limits)
    return NewKey(key=secret, **msgspec.structs.asdict(_row(run.settings, key)))


async def list_keys(run: Run) -> list[ShownKey]:
    """Every key, newest first."""
    with _keyring(run.settings) as keys:
        return [_row(run.settings, key) for key in await keys.ls()]


async def change_key(run: Run, key: str, typed: KeyOptions) -> ShownKey:
    """Give a key other limits. Raises UsageError where nothing is to be changed."""
    changes = changes_of(run.settings, SystemClock().now(), vars(typed))
    if not changes:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in vars(typed))
        raise UsageError("there is nothing to change", f"say what: {names}; none takes one away")
    run.rehearse("change a key", {"key": key})
    with _keyring(run.settings) as keys:
        return _row(run.settings, await keys.change(key, changes))


async def key_use(run: Run, days: int) -> list[KeyUse]:
    """What keys used of models, day by day, newest first."""
    with _keyring(run.settings) as keys:
        found = days_of_use(await keys.ls(), await keys.usage(days=days))
    return [_use(run.settings, day) for day in found]


def use_csv(lines: Sequence[KeyUse]) -> str:
    """The same for a spreadsheet."""
    return csv_text(KeyUse.__struct_fields__, map(msgspec.structs.astuple, lines))


async def revoke_key(run: Run, typed: str) -> ShownKey:
    """End a key; requests that run with it are still answered."""
    run.rehearse("revoke a key", {"key": typed})
    with _keyring(run.settings) as keys:
        return _row(run.settings, await keys.revoke(typed))


@contextmanager
def _keyring(settings: Settings) -> Iterator[Keyring]:
    with _database(settings) as database:
        yield Keyring(database, SystemClock())


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    database = Database.open(database_url(settings))
    try:
        yield database
    finally:
        database.close()


def _row(settings: Settings, key: ApiKey) -> ShownKey:
    """A key as people see it, money with its unit."""
    limits = key.limits
    budget = None
    if limits.budget_units is not None:
        per_day = "/day" if limits.budget_period == "day" else ""
        budget = settings.show_token(limits.budget_units) + per_day
    return ShownKey(
        id=key.key_id,
        name=key.name,
        hint=key.hint,
        state=key.state(SystemClock().now()),
        budget=budget,
        spent=settings.show_token(key.spent_units),
        today=settings.show_token(key.spent_today_units),
        reserved=settings.show_token(key.reserved_units),
        expires=_date(limits.expires_at),
        models=", ".join(limits.models) or "all",
        rate=f"{limits.requests_per_minute}/m" if limits.requests_per_minute else None,
        token_rate=f"{limits.tokens_per_minute}/m" if limits.tokens_per_minute else None,
        tags=", ".join(limits.tags),
        last_used=_date(key.last_used_at),
        created=_date(key.created_at),
    )


def _use(settings: Settings, day: DayOfUse) -> KeyUse:
    return KeyUse(
        day=day.day,
        key=day.name,
        tags=day.tags,
        model=day.model,
        requests=day.requests,
        failed=day.failed,
        tokens_in=day.tokens_in,
        tokens_out=day.tokens_out,
        cost=settings.show_token(day.cost_units),
        cost_units=day.cost_units,
    )


def _date(at: int | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
