"""Who may use the gateway, and within which limits? API keys: made, found, listed, revoked.

A secret is 32 random bytes, shown once; its SHA-256 is kept.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from client.gateway.copied import copied
from client.gateway.records.database import in_database
from client.gateway.records.tables import KeyRow, UsageRow
from client.records.statements import Statement, Transaction
from core.protocol import units
from core.protocol.errors import AmountInvalid, IdInvalid, UsageError
from core.runtime.commands.spreadsheet import csv_text

if TYPE_CHECKING:
    from client.gateway.records.database import Database
    from core.runtime.clock import Clock
    from core.runtime.settings import Settings

SECRET_PREFIX = "hr-"
LOCAL_KEY = "key_local"
_KEYS = KeyRow.metadata.tables["api_keys"]
_USAGE = UsageRow.metadata.tables["usage_days"]
_BY_SECRET = Statement(columns(_KEYS).where(_KEYS.c.secret_hash == bindparam("wanted")))
_SPENT = columns(func.coalesce(func.sum(_USAGE.c.cost_units), 0).label("units")).where(
    _USAGE.c.day == bindparam("day")
)
_SPENT_BY_ALL = Statement(_SPENT)
_SPENT_BY_KEY = Statement(_SPENT.where(_USAGE.c.key_id == bindparam("key")))
#: How long a key counts as it was found. A reservation looks again, so one that another process
#: revoked spends nothing; until then it may still be told an answer that is kept for it.
FRESH_S = 2.0
MOST_KNOWN = 1024
_PERIODS = {"day": 60 * 60 * 24}
_RATES = {"s": 60, "m": 1}


@dataclass(frozen=True)
class KeyLimits:
    """What a key may do; None is no limit, no model is every model."""

    budget_units: int | None = None
    budget_period: str = "total"
    expires_at: int | None = None
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tags: tuple[str, ...] = ()  # of no effect: words by which its owner finds it


@dataclass(frozen=True)
class ApiKey:
    """A key as it is kept, without its secret."""

    key_id: str
    name: str
    hint: str
    created_at: int
    limits: KeyLimits
    revoked_at: int | None
    last_used_at: int | None
    spent_units: int
    reserved_units: int
    spent_today_units: int = 0

    @property
    def is_local(self) -> bool:
        """Whether it is this machine's own, which sees the files and records of all keys."""
        return self.key_id == LOCAL_KEY

    def state(self, now: float) -> str:
        """active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        expires_at = self.limits.expires_at
        return "expired" if expires_at is not None and expires_at <= now else "active"

    @property
    def spent_in_period_units(self) -> int:
        """What counts against the budget, beside what is reserved."""
        return self.spent_today_units if self.limits.budget_period == "day" else self.spent_units

    @property
    def left_units(self) -> int | None:
        """What may still be reserved; None without a budget."""
        if self.limits.budget_units is None:
            return None
        return max(0, self.limits.budget_units - self.spent_in_period_units - self.reserved_units)


@dataclass(frozen=True)
class DayOfUse:
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


def days_of_use(keys: Iterable[ApiKey], usage: Iterable[Mapping[str, Any]]) -> list[DayOfUse]:
    """What `Keyring.usage` found, with the names and tags of these keys."""
    known = {key.key_id: (key.name, ", ".join(key.limits.tags)) for key in keys}
    found = []
    for row in usage:
        name, tags = known.get(row["key_id"], (row["key_id"], ""))
        found.append(DayOfUse(name=name, tags=tags, **row))
    return found


def usage_csv(days: Iterable[DayOfUse]) -> str:
    """For a spreadsheet."""
    return csv_text((field.name for field in fields(DayOfUse)), map(astuple, days))


class Keyring:
    """The keys of one gateway."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database, self._clock = database, clock
        self._known: dict[str, tuple[ApiKey, float]] = {}

    async def known(self, secret: str) -> ApiKey | None:
        """The key as it was found up to `FRESH_S` ago: enough where a reservation looks again."""
        name, now_s = hash_of(secret), self._clock.monotonic()
        key, found_s = self._known.get(name, (None, 0.0))
        if key is not None and now_s - found_s <= FRESH_S:
            return key
        key = await self.find(secret)
        if key is not None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[name] = key, now_s
        return key

    @in_database
    def new(self, name: str, limits: KeyLimits) -> tuple[ApiKey, str]:
        """A new key, and its secret, which nothing will show again."""
        secret = SECRET_PREFIX + secrets.token_urlsafe(32)
        row = KeyRow(
            key_id=f"key_{secrets.token_hex(8)}",
            name=name,
            secret_hash=hash_of(secret),
            hint=hint_of(secret),
            created_at=int(self._clock.now()),
            **_columns(limits),
        )
        with self.database.session() as session:
            session.add(row)
        return key_of(row), secret

    @in_database
    def find(self, secret: str) -> ApiKey | None:
        """The key with this secret, whatever its state."""
        with self.database.looking() as look:
            row = look.first(_BY_SECRET, {"wanted": hash_of(secret)})
            if row is None:
                return None
            if row.budget_period != "day":
                return key_of(row)
            return key_of(row, spent_on(look, day_of(self._clock.now()), row.key_id))

    @in_database
    def get(self, key_id: str) -> ApiKey | None:
        with self.database.session() as session:
            row = session.get(KeyRow, key_id)
            return None if row is None else self._with_today(session, row)

    @in_database
    def ls(self) -> list[ApiKey]:
        """Newest first, revoked ones included."""
        with self.database.session() as session:
            rows = session.exec(select(KeyRow).order_by(col(KeyRow.created_at).desc()))
            return [self._with_today(session, row) for row in rows.all()]

    async def revoke(self, typed: str) -> ApiKey:
        """End a key now, by its id or a unique prefix of it, or by its name. Raises IdInvalid."""
        key = await self._revoke(typed)
        self._known.clear()
        return key

    @in_database
    def _revoke(self, typed: str) -> ApiKey:
        with self.database.session() as session:
            row = _row_of(session, typed)
            row.revoked_at = row.revoked_at or int(self._clock.now())
            session.add(row)
            return key_of(row)

    async def change(self, typed: str, changes: Mapping[str, Any]) -> ApiKey:
        """Give a key other limits, by `KeyLimits`' names; what it spent stays spent.

        Raises IdInvalid, UsageError for one that was revoked.
        """
        key = await self._change(typed, changes)
        self._known.clear()
        return key

    @in_database
    def _change(self, typed: str, changes: Mapping[str, Any]) -> ApiKey:
        with self.database.session() as session:
            row = _row_of(session, typed)
            if row.revoked_at is not None:
                what = f"key '{row.name}' was revoked"
                raise UsageError(what, "it is good for nothing more", next_step="client keys new")
            for name, value in _columns(replace(key_of(row).limits, **changes)).items():
                setattr(row, name, value)
            session.add(row)
            return self._with_today(session, row)

    async def claim_local(self, secret: str) -> ApiKey:
        """Give this machine's own key this secret, in place of the one of an earlier start."""
        key = await self._claim_local(secret)
        self._known.clear()
        return key

    @in_database
    def _claim_local(self, secret: str) -> ApiKey:
        with self.database.session() as session:
            row = session.get(KeyRow, LOCAL_KEY) or KeyRow(
                key_id=LOCAL_KEY,
                name="this machine",
                secret_hash="",
                hint="",
                created_at=int(self._clock.now()),
            )
            row.secret_hash, row.hint = hash_of(secret), hint_of(secret)
            session.add(row)
            return key_of(row)

    @in_database
    def usage(self, key_id: str | None = None, days: int = 30) -> list[dict[str, Any]]:
        """What was used per key, day and model, newest day first."""
        since = day_of(self._clock.now() - (days - 1) * _PERIODS["day"])
        with self.database.session() as session:
            wanted = select(UsageRow).where(col(UsageRow.day) >= since)
            if key_id is not None:
                wanted = wanted.where(UsageRow.key_id == key_id)
            order = (col(UsageRow.day).desc(), UsageRow.key_id, UsageRow.model)
            return [row.model_dump() for row in session.exec(wanted.order_by(*order)).all()]

    def _with_today(self, session: Session, row: KeyRow) -> ApiKey:
        day = day_of(self._clock.now())
        return key_of(row, spent_on(Transaction.of(session), day, row.key_id))


def _row_of(session: Session, typed: str) -> Any:
    """The key with this id, a unique prefix of it, or this name. Raises IdInvalid."""
    rows = session.exec(select(KeyRow).where(KeyRow.key_id != LOCAL_KEY)).all()
    fitting = [row for row in rows if typed in (row.key_id, row.name)] or [
        row for row in rows if typed and row.key_id.startswith(typed)
    ]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{row.key_id} ({row.name})" for row in fitting or rows)
    raise IdInvalid(
        f"'{typed}' names {'several keys' if fitting else 'no key'}",
        why=f"there are: {names or 'none'}",
        next_step="client keys ls",
    )


def _columns(limits: KeyLimits) -> dict[str, Any]:
    """Limits as `KeyRow` has them."""
    lists = {name: json.dumps(getattr(limits, name)) for name in ("models", "tags")}
    return vars(limits) | lists


def spent_on(look: Transaction, day: str, key_id: str | None = None) -> int:
    """What a key, or all keys, spent on a day."""
    if key_id is None:
        return int(look.first(_SPENT_BY_ALL, {"day": day}).units)
    return int(look.first(_SPENT_BY_KEY, {"day": day, "key": key_id}).units)


def key_of(row: Any, spent_today_units: int = 0) -> ApiKey:
    """A row of `KeyRow`, or of its table, as a value."""
    lists = {name: tuple(json.loads(getattr(row, name))) for name in ("models", "tags")}
    limits = copied(KeyLimits, row, **lists)
    return copied(ApiKey, row, limits=limits, spent_today_units=spent_today_units)


def hash_of(secret: str) -> str:
    """What is kept of a secret: it is random, so nothing slower than SHA-256 is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def hint_of(secret: str) -> str:
    """What people recognise a key by."""
    return f"{secret[: len(SECRET_PREFIX) + 3]}…{secret[-4:]}"


def day_of(now: float) -> str:
    """The day (UTC) of a time: `2026-11-21`."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def limits_of(
    settings: Settings,
    now: float,
    *,
    budget: str | None = None,
    expires: str | None = None,
    models: Sequence[str] = (),
    rate: str | None = None,
    token_rate: str | None = None,
    tags: Sequence[str] = (),
) -> KeyLimits:
    """Limits as typed: `5usd` or `5usd/day`, `30d`, `60/m`. Raises UsageError, AmountInvalid."""
    amount, _, period = (budget or "").partition("/")
    if period not in ("", *_PERIODS):
        raise AmountInvalid(
            f"'{budget}' is not a budget",
            why=f"'{period}' is not a period",
            next_step="such as 5usd, or 5usd/day",
        )
    return KeyLimits(
        budget_units=settings.token(amount) if budget else None,
        budget_period=period or "total",
        expires_at=int(now) + units.parse_duration(expires) if expires else None,
        models=tuple(models),
        requests_per_minute=_rate(rate),
        tokens_per_minute=_rate(token_rate),
        tags=tuple(tags),
    )


def changes_of(settings: Settings, now: float, typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed of a key's limits, by the names of `limits_of`; "none" takes one away.

    What is empty was not typed. Raises UsageError, AmountInvalid.
    """
    said = {name: value for name, value in typed.items() if value}
    kept = {name: value for name, value in said.items() if value != "none" and "none" not in value}
    limits = vars(limits_of(settings, now, **kept))
    return {field: limits[field] for name in said for field in _FIELDS[name]}


#: As typed → what it changes.
_FIELDS = {
    "budget": ("budget_units", "budget_period"),
    "expires": ("expires_at",),
    "models": ("models",),
    "rate": ("requests_per_minute",),
    "token_rate": ("tokens_per_minute",),
    "tags": ("tags",),
}


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    count, _, period = text.partition("/")
    if not count.isascii() or not count.isdigit() or int(count) < 1 or period not in _RATES:
        raise UsageError(f"'{text}' is not a rate", "it is such as 60/m or 2/s")
    return int(count) * _RATES[period]
