"""API keys with their budgets, and the days on which they were used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from client.dashboard.views.common import Json
from client.gateway.copied import copied
from client.gateway.money.keyring import ApiKey, DayOfUse, days_of_use


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
class Keys:
    """The page."""

    keys: tuple[KeyLine, ...]
    usage: tuple[DayOfUse, ...]
    models: tuple[str, ...]
    at_ms: int


def keys(
    found: Iterable[ApiKey], usage: Iterable[Json], models: Iterable[str], now_ms: int
) -> Keys:
    known = list(found)
    lines = [key_line(key, now_ms / 1000) for key in known]
    lines.sort(key=lambda line: (line.state != "active", line.is_local, -line.created_at))
    return Keys(tuple(lines), tuple(days_of_use(known, usage)), tuple(models), now_ms)


def key_line(key: ApiKey, now_s: float) -> KeyLine:
    return copied(KeyLine, key, state=key.state(now_s), **vars(key.limits))
