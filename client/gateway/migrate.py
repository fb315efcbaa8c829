"""How does an old gateway database become a new one?

The migrations travel inside the package and run at every start; running them twice changes nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection, Engine

FOLDER = Path(__file__).with_name("migrations")


def config(connection: Connection) -> Config:
    """Alembic's configuration over an open connection."""
    from alembic.config import Config

    found = Config()
    found.set_main_option("script_location", str(FOLDER))
    found.attributes["connection"] = connection
    return found


def upgrade(engine: Engine) -> None:
    """Bring the tables to the newest revision, in one transaction."""
    from alembic import command

    logging.getLogger("alembic").setLevel(logging.WARNING)  # it narrates every start
    with engine.begin() as connection:
        command.upgrade(config(connection), "head")
