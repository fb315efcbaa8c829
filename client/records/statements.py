"""How do the statements of every request run at the database driver's own speed?

SQLAlchemy writes the SQL, once for each kind of database, and the driver's cursor runs it: through
a `Connection` of SQLAlchemy the same statement takes some ten times as long.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Executable
    from sqlalchemy.engine import Dialect, Engine
    from sqlmodel import Session

Values = Mapping[str, Any]


@dataclass(frozen=True)
class _Written:
    """A statement in one database's SQL."""

    sql: str
    arrange: Callable[[Values], Any]  # values as the driver takes them
    row: Callable[[Iterable[Any]], Any]


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement of SQLAlchemy Core; its values, bound by name, are int, str, bool or None."""

    core: Executable
    _known: dict[str, _Written] = field(default_factory=dict)

    def written(self, dialect: Dialect) -> _Written:
        """In the SQL of this database."""
        if dialect.name not in self._known:
            self._known[dialect.name] = _write(self.core, dialect)
        return self._known[dialect.name]


def _write(core: Any, dialect: Dialect) -> _Written:
    compiled = core.compile(dialect=dialect)
    said = compiled.params.items()
    given = {name: value for name, value in said if not compiled.binds[name].required}
    order: Sequence[str] | None = compiled.positiontup

    def arrange(values: Values) -> Any:
        bound = {**given, **values} if given else values
        return bound if order is None else [bound[name] for name in order]

    names = [str(column.key) for column in getattr(core, "selected_columns", ())]
    row: Any = namedtuple("Row", names)  # type: ignore[misc]
    return _Written(str(compiled), arrange, row._make)


class Transaction:
    """One under way, which `writing` or a session ends."""

    def __init__(self, dialect: Dialect, cursor: Any) -> None:
        self._dialect, self.cursor = dialect, cursor

    @classmethod
    def of(cls, session: Session) -> Transaction:
        """The same transaction as a session's, which has written what it wants to be seen."""
        connection = session.connection()
        return cls(connection.dialect, connection.connection.cursor())

    def execute(self, statement: Statement, values: Values) -> int:
        """How many rows it changed."""
        written = statement.written(self._dialect)
        self.cursor.execute(written.sql, written.arrange(values))
        return int(self.cursor.rowcount)

    def first(self, statement: Statement, values: Values) -> Any:
        """The first row that it finds, its columns by name; None without any."""
        written = statement.written(self._dialect)
        self.cursor.execute(written.sql, written.arrange(values))
        found = self.cursor.fetchone()
        return None if found is None else written.row(found)


@contextmanager
def reading(engine: Engine) -> Iterator[Transaction]:
    """A transaction that waits for no other one and keeps nothing."""
    connection = engine.raw_connection()
    try:
        yield Transaction(engine.dialect, connection.cursor())
    finally:
        connection.close()  # into the pool, where what was not committed is rolled back


@contextmanager
def writing(engine: Engine, turn: str = "") -> Iterator[Transaction]:
    """All or nothing. It begins with the statement `turn`, if any. Raises the driver's errors."""
    with reading(engine) as transaction:
        if turn:
            transaction.cursor.execute(turn)
        yield transaction
        transaction.cursor.connection.commit()
