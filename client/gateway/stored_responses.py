"""Which responses can a key read again, and go on from?

Kept are the items of each request and the response, for thirty days, as many as fit; the oldest of
a key make room for its newest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, func
from sqlmodel import col, select

from client.gateway.errors import BadParameter, NotOffered
from client.gateway.records.database import in_database
from client.gateway.records.tables import ResponseRow

if TYPE_CHECKING:
    from sqlmodel import Session

    from client.gateway.records.database import Database
    from core.runtime.clock import Clock

KEPT_FOR_S: Final = 30 * 86400
MOST_BYTES_OF_A_KEY: Final = 256 * 2**20
#: Of a conversation, turn after turn: it is read whole, by whom a few bytes ask for it.
MOST_TURNS, MOST_CONVERSATION_BYTES = 256, 8 * 2**20
Json = dict[str, Any]


class StoredResponses:
    """The responses of one gateway's keys."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database, self._clock = database, clock

    @in_database
    def keep(self, key_id: str, items: Sequence[Json], response: Json) -> None:
        """Keep a response, and the items of its request."""
        texts = {"items": json.dumps(list(items)), "body": json.dumps(response)}
        row = ResponseRow(
            response_id=response["id"],
            key_id=key_id,
            created_at=response["created_at"],
            previous_id=response["previous_response_id"],
            size_bytes=sum(map(len, texts.values())),
            **texts,
        )
        with self.database.session() as session:
            session.merge(row)
            session.flush()
            self._make_room(session, key_id)

    @in_database
    def earlier(self, key_id: str, response_id: Any) -> list[Json]:
        """All items of a conversation up to a response, in their order. Raises BadParameter."""
        field = "previous_response_id"
        found, wanted, size = list[list[Json]](), response_id, 0
        with self.database.session() as session:
            while wanted is not None:
                row = session.get(ResponseRow, wanted) if isinstance(wanted, str) else None
                if row is None or row.key_id != key_id:
                    why = "this key has no such response, or it is kept no more"
                    raise BadParameter(field, why)
                size += row.size_bytes
                if len(found) == MOST_TURNS or size > MOST_CONVERSATION_BYTES:
                    most = f"{MOST_TURNS} turns and {MOST_CONVERSATION_BYTES} bytes"
                    raise BadParameter(field, f"the conversation has more than {most}")
                output = json.loads(row.body)["output"]
                found.append([*json.loads(row.items), *output])
                wanted = row.previous_id
        return [item for turn in reversed(found) for item in turn]

    async def get(self, response_id: str, key_id: str | None) -> Json:
        """A response as it was told. Raises NotOffered."""
        found: Json = json.loads((await self._row(response_id, key_id)).body)
        return found

    async def items(self, response_id: str, key_id: str | None) -> list[Json]:
        """The items of its request, each with an id. Raises NotOffered."""
        items = json.loads((await self._row(response_id, key_id)).items)
        return [{"id": f"item_{response_id}{i}", **item} for i, item in enumerate(items)]

    @in_database
    def delete(self, response_id: str, key_id: str | None) -> None:
        """Forget it: what goes on from it must have been asked before. Raises NotOffered."""
        with self.database.session() as session:
            session.delete(self._known(session, response_id, key_id))

    @in_database
    def _row(self, response_id: str, key_id: str | None) -> ResponseRow:
        with self.database.session() as session:
            return self._known(session, response_id, key_id)

    def _known(self, session: Session, response_id: str, key_id: str | None) -> ResponseRow:
        row = session.get(ResponseRow, response_id)
        if row is None or key_id not in (None, row.key_id):
            raise NotOffered(f"there is no response '{response_id[:80]}'", "this key has none such")
        return row

    def _make_room(self, session: Session, key_id: str) -> None:
        """Forget what is too old, of all keys, and the oldest of this one until the rest fits."""
        since = int(self._clock.now()) - KEPT_FOR_S
        session.execute(delete(ResponseRow).where(col(ResponseRow.created_at) < since))
        mine = col(ResponseRow.key_id) == key_id
        total = session.exec(select(func.sum(ResponseRow.size_bytes)).where(mine)).one() or 0
        if total <= MOST_BYTES_OF_A_KEY:
            return
        places = select(ResponseRow.response_id, ResponseRow.size_bytes).where(mine)
        for response_id, size in session.exec(places.order_by(col(ResponseRow.created_at))):
            session.execute(delete(ResponseRow).where(col(ResponseRow.response_id) == response_id))
            total -= size
            if total <= MOST_BYTES_OF_A_KEY:
                return
