"""API keys with their budgets, and the days on which they were used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from client.dashboard.views.common import Json
from client.gateway.money.keyring import ApiKey


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


@dataclass(frozen=True)
class UsageLine:
    """A key's use of a model on one day (UTC)."""

    day: str
    key_id: str
    name: str
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
    names = {line.key_id: line.name for line in lines}
    rows = tuple(
        UsageLine(
            day=str(row["day"]),
            key_id=str(row["key_id"]),
            name=names.get(str(row["key_id"]), str(row["key_id"])),
            model=str(row["model"]),
            requests=int(row["requests"]),
            failed=int(row["failed"]),
            tokens_in=int(row["tokens_in"]),
            tokens_out=int(row["tokens_out"]),
            cost_units=int(row["cost_units"]),
        )
        for row in usage
    )
    return Keys(tuple(lines), rows, tuple(models), now_ms)


def key_line(key: ApiKey, now_s: float) -> KeyLine:
    return KeyLine(
        key_id=key.key_id,
        name=key.name,
        hint=key.hint,
        state=key.state(now_s),
        is_local=key.is_local,
        created_at=key.created_at,
        expires_at=key.limits.expires_at,
        last_used_at=key.last_used_at,
        budget_units=key.limits.budget_units,
        budget_period=key.limits.budget_period,
        spent_units=key.spent_units,
        spent_in_period_units=key.spent_in_period_units,
        reserved_units=key.reserved_units,
        left_units=key.left_units,
        models=key.limits.models,
        requests_per_minute=key.limits.requests_per_minute,
        tokens_per_minute=key.limits.tokens_per_minute,
    )
