"""How does a migration make a table?"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

BIG, TEXT = sa.BigInteger(), sa.Text()


def create_table(
    table: str, key: str, /, *more: Any, nullable: tuple[str, ...] = (), **columns: Any
) -> None:
    """A table with this primary key and these columns, where a number is the length of a text.

    Columns that are not `nullable` are never NULL. `more` are further constraints.
    """
    made = []
    for name, kind in columns.items():
        kind = sa.String(length=kind) if isinstance(kind, int) else kind
        made.append(sa.Column(name, kind, nullable=name in nullable))
    op.create_table(table, *made, sa.PrimaryKeyConstraint(*key.split()), *more)
