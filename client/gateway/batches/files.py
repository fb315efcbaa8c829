"""Which files does the gateway keep? Uploads and what batches write, in a private folder.

A file is written under a name of its own until it is whole: what a process that died has left
behind begins with a point, and goes at the next start.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sqlalchemy import case, tuple_
from sqlmodel import Session, col, func, select

from client.gateway.errors import DiskLow, FilesFull, NotDone, NotOffered, TooLarge
from client.gateway.records.database import in_database
from client.gateway.records.tables import BatchRow, FileRow
from core.runtime.folders import make_private

if TYPE_CHECKING:
    from client.gateway.batches.upload import Upload
    from client.gateway.records.database import Database
    from core.runtime.clock import Clock
    from core.runtime.settings import GatewaySettings


#: What a file takes at least, of a disk and of its key's share.
BLOCK_BYTES = 4096


class Files:
    """The files of one gateway. Bytes lie in `folder` under the file's id."""

    def __init__(
        self, database: Database, clock: Clock, folder: Path, limits: GatewaySettings
    ) -> None:
        self.database, self._clock, self._folder = database, clock, make_private(folder)
        self._limits = limits
        #: Key → bytes of its uploads that are not whole yet.
        self.arriving: Counter[str] = Counter()

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    def forget_drafts(self) -> None:
        """Remove what an earlier process did not finish. None of ours may be under way."""
        for draft in self._folder.glob(".*"):
            draft.unlink()

    async def save(self, key_id: str, upload: Upload) -> FileRow:
        """Keep what comes, counted as it does. Where this raises, nothing is kept.

        Raises TooLarge, FilesFull, DiskLow, UsageError.
        """
        file_id, size = f"file-{secrets.token_hex(12)}", 0
        draft, path = self._draft(file_id), self.path(file_id)
        kept = await self._kept(key_id)
        try:
            with _writing(draft) as out:
                self._check_disk()
                async for chunk in upload.chunks():
                    size += len(chunk)
                    self.arriving[key_id] += len(chunk)
                    if size > self._limits.max_file_bytes:
                        why = f"at most {self._limits.max_file_bytes} bytes are taken"
                        raise TooLarge("the file is too large", why)
                    self._check_quota(kept + self.arriving[key_id])
                    self._check_disk()
                    out.write(chunk)
            about = upload.filename, upload.purpose
            draft.replace(path)
            return await self._keep(file_id, key_id, *about, size, is_upload=True)
        except BaseException:
            draft.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise
        finally:
            self.arriving[key_id] -= size
            if not self.arriving[key_id]:
                del self.arriving[key_id]

    async def write(
        self, file_id: str, key_id: str, filename: str, purpose: str, content: AsyncIterable[bytes]
    ) -> FileRow:
        """Keep a file of our own; written again under the same id it replaces what was there."""
        draft, size = self._draft(file_id), 0
        with _writing(draft) as out:
            async for some in content:
                size += out.write(some)
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

    def _draft(self, file_id: str) -> Path:
        return self.path(f".{file_id}")

    def _check_quota(self, size_bytes: int) -> None:
        most = self._limits.files_per_key_bytes
        if size_bytes > most:
            raise FilesFull("the key has no room for this file", f"its files may have {most} bytes")

    def _check_disk(self) -> None:
        least = self._limits.keep_free_bytes
        if shutil.disk_usage(self._folder).free < least:
            raise DiskLow("no file is taken now", f"less than {least} bytes of the disk are free")

    @in_database
    def _kept(self, key_id: str) -> int:
        with self.database.session() as session:
            return _kept_by(session, key_id)

    @in_database
    def _keep(
        self,
        file_id: str,
        key_id: str,
        filename: str,
        purpose: str,
        size: int,
        *,
        is_upload: bool = False,
    ) -> FileRow:
        """Of an upload, raises FilesFull: another gateway over this database may have kept more."""
        row = FileRow(
            file_id=file_id,
            key_id=key_id,
            filename=filename[:255],
            purpose=purpose,
            size_bytes=size,
            created_at=int(self._clock.now()),
        )
        with self.database.session() as session:
            if is_upload:
                self._check_quota(_kept_by(session, key_id) + max(size, BLOCK_BYTES))
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
        of = FileRow.purpose == purpose if purpose is not None else None
        with self.database.session() as session:
            return page_of(session, FileRow, "file_id", key_id, after, limit, of, oldest_first)

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


def _writing(path: Path) -> BinaryIO:
    """A new file that nobody else may read, in place of an old one."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _kept_by(session: Session, key_id: str) -> int:
    """Bytes of all files of a key, what its batches wrote included; small ones take a block."""
    size = col(FileRow.size_bytes)
    sizes = select(func.coalesce(func.sum(case((size < BLOCK_BYTES, BLOCK_BYTES), else_=size)), 0))
    return int(session.exec(sizes.where(FileRow.key_id == key_id)).one())


def page_of(
    session: Session,
    table: type[FileRow] | type[BatchRow],
    name: str,
    key_id: str | None,
    after: str | None,
    limit: int,
    of: Any = None,
    oldest_first: bool = False,
) -> list[Any]:
    """Rows of a key, or of all, that come after the one of a name, by time and name.

    One more than `limit` when there are more.
    """
    columns: Any = table.created_at, getattr(table, name)
    wanted = select(table) if of is None else select(table).where(of)
    if key_id is not None:
        wanted = wanted.where(table.key_id == key_id)
    if after is not None:
        start = session.get(table, after)
        if start is None or key_id not in (None, start.key_id):
            return []
        here, place = tuple_(*columns), (start.created_at, after)
        wanted = wanted.where(here > place if oldest_first else here < place)
    order = columns if oldest_first else [column.desc() for column in columns]
    return list(session.exec(wanted.order_by(*order).limit(limit + 1)).all())


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
