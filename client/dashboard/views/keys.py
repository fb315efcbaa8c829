"""API keys with their budgets, and the days on which they were used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

from client.dashboard.views.common import Json
from client.gateway.copied import copied
from client.gateway.money.keyring import ApiKey
from core.runtime.commands.spreadsheet import csv_text


@dataclass(frozen=True)
class KeyLine:
    """A key without its secret."""

    key_id: str
    name: str
    hint: str
    state: str
    is_local: bool
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    budget_units: int | None
    budget_period: str
    spent_units: int
    spent_in_period_units: int
    reserved_units: int
    left_units: int | None
    models: tuple[str, ...]
    requests_per_minute: int | None
    tokens_per_minute: int | None
    tags: tuple[str, ...]


@dataclass(frozen=True)
class UsageLine:
    """A key's use of a model on one day (UTC)."""

    day: str
    key_id: str
    name: str
    tags: str
    model: str
    requests: int
    failed: int
    tokens_in: int
    tokens_out: int
    cost_units: int


@dataclass(frozen=True)
class Keys:
    """The page."""

    keys: tuple[KeyLine, ...]
    usage: tuple[UsageLine, ...]
    models: tuple[str, ...]
    at_ms: int


def keys(
    found: Iterable[ApiKey], usage: Iterable[Json], models: Iterable[str], now_ms: int
) -> Keys:
    lines = [key_line(key, now_ms / 1000) for key in found]
    lines.sort(key=lambda line: (line.state != "active", line.is_local, -line.created_at))
    return Keys(tuple(lines), usage_lines(lines, usage), tuple(models), now_ms)


def usage_lines(keys: Iterable[KeyLine], usage: Iterable[Json]) -> tuple[UsageLine, ...]:
    known = {key.key_id: (key.name, ", ".join(key.tags)) for key in keys}
    found = []
    for row in usage:
        name, tags = known.get(row["key_id"], (row["key_id"], ""))
        found.append(UsageLine(name=name, tags=tags, **row))
    return tuple(found)


def usage_csv(lines: Iterable[UsageLine]) -> str:
    """For a spreadsheet."""
    return csv_text((field.name for field in fields(UsageLine)), map(astuple, lines))


def key_line(key: ApiKey, now_s: float) -> KeyLine:
    return copied(KeyLine, key, state=key.state(now_s), **vars(key.limits))
