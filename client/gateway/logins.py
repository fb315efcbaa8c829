"""How does the owner open the pages? By a link that is good once, for ten minutes.

Its token stays in a browser's history and in a proxy's log, where it opens nothing any more. Kept
is its SHA-256, in the database: so `client pages` makes a link for the gateway that runs.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from sqlalchemy import bindparam, delete, func, insert
from sqlalchemy import select as columns

from client.gateway.money.keyring import hash_of
from client.gateway.records.database import in_database
from client.gateway.records.tables import LoginRow
from client.records.statements import Statement
from core.protocol.errors import ConfigError
from core.runtime.http_server import url_of

if TYPE_CHECKING:
    from client.gateway.records.database import Database
    from core.runtime.clock import Clock
    from core.runtime.settings import Settings

GOOD_FOR_S: Final = 600
_LOGINS = LoginRow.metadata.tables["logins"]
_IS_IT = (_LOGINS.c.token_hash == bindparam("token")) & (_LOGINS.c.expires_at > bindparam("now"))
_IS_GOOD = Statement(columns(func.count().label("found")).where(_IS_IT))
_SPEND = Statement(delete(_LOGINS).where(_IS_IT))
_FORGET = Statement(delete(_LOGINS).where(_LOGINS.c.expires_at <= bindparam("now")))
_KEEP = Statement(
    insert(_LOGINS).values(token_hash=bindparam("token"), expires_at=bindparam("expires"))
)


class Logins:
    """The links of one gateway's pages."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database, self._clock = database, clock

    @in_database
    def new(self) -> str:
        """The token of a new link, which nothing will show again."""
        token, now = secrets.token_urlsafe(32), int(self._clock.now())
        with self.database.transaction() as writing:
            writing.execute(_FORGET, {"now": now})
            writing.execute(_KEEP, {"token": hash_of(token), "expires": now + GOOD_FOR_S})
        return token

    @in_database
    def spend(self, token: str) -> bool:
        """Whether the link was good, which it is no more. Another's token writes nothing."""
        asked = {"token": hash_of(token), "now": int(self._clock.now())}
        with self.database.looking() as look:
            if not look.first(_IS_GOOD, asked).found:
                return False
        with self.database.transaction() as writing:
            return writing.execute(_SPEND, asked) == 1


def link_of(settings: Settings, token: str, url: str = "") -> str:
    """The link with this token; `url` is where the gateway listens, if its port is not set.

    Raises ConfigError where neither says under which address it is opened.
    """
    ours = settings.gateway
    if not (ours.public_url or url or ours.port):
        raise ConfigError(
            "it is not known here where the gateway listens",
            "gateway.port is 0: it took one that was free",
            next_step="set gateway.port or gateway.public_url",
        )
    base = ours.public_url or url or url_of(ours.host, ours.port)
    return f"{base}/login?token={token}"
