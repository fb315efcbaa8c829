"""Which files does the gateway keep? Uploads and what batches write, in a private folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlmodel import col, select

from client.gateway.errors import NotDone, NotOffered, TooLarge
from client.gateway.records.database import in_database
from client.gateway.records.tables import BatchRow, FileRow
from core.runtime.folders import make_private

if TYPE_CHECKING:
    from client.gateway.records.database import Database
    from core.runtime.clock import Clock

MAX_FILE_BYTES = 512 * 2**20
PURPOSES = ("batch", "batch_output")


class Files:
    """The files of one gateway. Bytes lie in `folder` under the file's id."""

    def __init__(
        self, database: Database, clock: Clock, folder: Path, max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self.database, self._clock, self._folder = database, clock, make_private(folder)
        self._max_bytes = max_bytes

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    async def save(
        self, key_id: str, filename: str, purpose: str, chunks: AsyncIterator[bytes]
    ) -> FileRow:
        """Keep what comes. Raises TooLarge; then nothing is kept."""
        file_id, size = f"file-{secrets.token_hex(12)}", 0
        path = self.path(file_id)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise TooLarge(
                            "the file is too large", f"at most {self._max_bytes} bytes are taken"
                        )
                    out.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return await self._keep(file_id, key_id, filename, purpose, size)

    async def write(
        self, file_id: str, key_id: str, filename: str, purpose: str, lines: Iterable[bytes]
    ) -> FileRow:
        """Keep a file of our own; written again under the same id it replaces what was there."""
        draft = self.path(f".{file_id}")
        size = 0
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            for line in lines:
                size += out.write(line)
        draft.replace(self.path(file_id))
        return await self._keep(file_id, key_id, filename, purpose, size)

    async def get(self, file_id: str, key_id: str | None) -> FileRow:
        """A file of this key, or of any. Raises NotOffered."""
        row = await self._find(file_id)
        if row is None or key_id not in (None, row.key_id):
            raise NotOffered(f"there is no file '{file_id[:64]}'", "this key has no such file")
        return row

    async def readable(self, file_id: str, key_id: str | None) -> tuple[FileRow, Path]:
        """A file and where its bytes lie. Raises NotOffered, also if another gateway has them."""
        row, path = await self.get(file_id, key_id), self.path(file_id)
        if not path.is_file():
            raise NotOffered(
                f"file '{file_id[:64]}' is not in this gateway's folder",
                "it was uploaded to, or written by, another gateway over the same database",
                next_step="ask that gateway for it",
            )
        return row, path

    async def delete(self, file_id: str, key_id: str | None) -> None:
        """Raises NotOffered, NotDone while a batch reads it."""
        await self.get(file_id, key_id)
        await self._drop(file_id)
        self.path(file_id).unlink(missing_ok=True)

    @in_database
    def _keep(self, file_id: str, key_id: str, filename: str, purpose: str, size: int) -> FileRow:
        row = FileRow(
            file_id=file_id,
            key_id=key_id,
            filename=filename[:255],
            purpose=purpose,
            size_bytes=size,
            created_at=int(self._clock.now()),
        )
        with self.database.session() as session:
            session.merge(row)
        return row

    @in_database
    def _find(self, file_id: str) -> FileRow | None:
        with self.database.session() as session:
            return session.get(FileRow, file_id)

    @in_database
    def ls(
        self,
        key_id: str | None,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        oldest_first: bool = False,
    ) -> list[FileRow]:
        """Newest first; one more than `limit` when there are more."""
        with self.database.session() as session:
            wanted = select(FileRow)
            if key_id is not None:
                wanted = wanted.where(FileRow.key_id == key_id)
            if purpose is not None:
                wanted = wanted.where(FileRow.purpose == purpose)
            time, name = col(FileRow.created_at), col(FileRow.file_id)
            order = (time, name) if oldest_first else (time.desc(), name.desc())
            rows = list(session.exec(wanted.order_by(*order)).all())
        return page_after(rows, after, limit, lambda row: row.file_id)

    @in_database
    def _drop(self, file_id: str) -> None:
        with self.database.session() as session:
            row = session.get(FileRow, file_id)
            reading = select(BatchRow.batch_id).where(
                BatchRow.input_file_id == file_id, col(BatchRow.ended_at).is_(None)
            )
            batch_id = session.exec(reading).first()
            if batch_id is not None:
                raise NotDone(
                    f"file '{file_id[:64]}' is not deleted",
                    f"batch '{batch_id}' reads it until it ends",
                    next_step="wait for the batch, or cancel it",
                )
            if row is not None:
                session.delete(row)


def page_after(rows: Sequence[Any], after: str | None, limit: int, id_of: Any) -> list[Any]:
    """The rows after one, at most one more than the limit (which says that there are more)."""
    start = 0
    if after is not None:
        start = next((i + 1 for i, row in enumerate(rows) if id_of(row) == after), len(rows))
    return list(rows[start : start + limit + 1])


def file_json(row: FileRow) -> dict[str, Any]:
    """The file object of official clients."""
    return {
        "id": row.file_id,
        "object": "file",
        "bytes": row.size_bytes,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }
