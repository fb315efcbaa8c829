"""What does a batch write when it ends? Answers, errors and receipts, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from client.gateway.batches.batch_lines import (
    BadLine,
    BatchFile,
    LinePlace,
    error_line,
    output_line,
    receipt_line,
)
from client.gateway.money.signed import stage_receipts

if TYPE_CHECKING:
    from client.gateway.batches.kept_answers import KeptAnswers
    from client.gateway.openai.models import ServedModel
    from client.gateway.records.tables import BatchAnswerRow
    from client.records.store import ClientStore
    from core.protocol.errors import HeadraceError

#: So few that their answers with logprobs are no burden in memory.
LINES_AT_ONCE = 16
Line = TypeVar("Line")


@dataclass(frozen=True)
class BatchResults:
    """The files of one batch that has ended."""

    batch_id: str
    file: BatchFile
    answers: KeptAnswers
    store: ClientStore | None

    async def outputs(
        self, done: Sequence[LinePlace], served: ServedModel, created: int
    ) -> AsyncIterator[bytes]:
        """The answered lines. `created`: seconds since 1970."""
        for places in _few(done):
            answers = await self.answers.of(self.batch_id, places)
            yield await asyncio.to_thread(self._outputs, places, answers, served, created)

    async def receipts(self, done: Sequence[LinePlace]) -> AsyncIterator[bytes]:
        """Who answered these lines, and what they signed for it."""
        for places in _few(done):
            answers = await self.answers.of(self.batch_id, places)
            of = {(a.job_id, a.job_request) for rows in answers.values() for a in rows}
            signed = await stage_receipts(self.store, of)
            lines = await asyncio.to_thread(self.file.read, places)
            for place, line in zip(places, lines, strict=True):
                yield receipt_line(line, place.tokens_in, answers[place.number], signed)

    async def errors(
        self,
        lines: Sequence[BadLine | LinePlace],
        why: Callable[[LinePlace], HeadraceError],
    ) -> AsyncIterator[bytes]:
        """Lines without an answer; `why` says it of a good one."""
        for some in _few(lines):
            yield await asyncio.to_thread(self._errors, some, why)

    def _outputs(
        self,
        places: Sequence[LinePlace],
        answers: dict[int, list[BatchAnswerRow]],
        served: ServedModel,
        created: int,
    ) -> bytes:
        pairs = zip(places, self.file.read(places), strict=True)
        return b"".join(
            output_line(
                self.batch_id, line, place.tokens_in, answers[place.number], served, created
            )
            for place, line in pairs
        )

    def _errors(
        self,
        lines: Sequence[BadLine | LinePlace],
        why: Callable[[LinePlace], HeadraceError],
    ) -> bytes:
        good = [line for line in lines if isinstance(line, LinePlace)]
        names = {line.number: line.custom_id for line in self.file.read(good)}
        bad = (
            BadLine(line.number, names[line.number], why(line))
            if isinstance(line, LinePlace)
            else line
            for line in lines
        )
        return b"".join(error_line(self.batch_id, line) for line in bad)


def _few(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    return (lines[at : at + LINES_AT_ONCE] for at in range(0, len(lines), LINES_AT_ONCE))
