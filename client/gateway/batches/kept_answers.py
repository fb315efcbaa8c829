"""Which lines of a batch are answered? Each answer is kept as it comes, over restarts too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlmodel import col, func, select

from client.gateway.batches.batch_lines import LinePlace, place_of
from client.gateway.records.database import in_database
from client.gateway.records.tables import BatchAnswerRow, BatchRow

if TYPE_CHECKING:
    from client.gateway.batches.offline import LineAnswer
    from client.gateway.records.database import Database
    from core.runtime.clock import Clock

LAST_LINE = 2**31 - 1


class KeptAnswers:
    """The finished answers of batches, in the gateway's database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database, self._clock = database, clock

    @in_database
    def first(self, batch_id: str, limit: int) -> list[BatchAnswerRow]:
        """A batch's first answers, by line."""
        with self.database.session() as session:
            return list(session.exec(_rows(batch_id).limit(limit)).all())

    @in_database
    def counts(self, batch_id: str) -> Counter[int]:
        """How many answers each line has."""
        line = col(BatchAnswerRow.line_number)
        wanted = select(line, func.count()).where(BatchAnswerRow.batch_id == batch_id)
        with self.database.session() as session:
            return Counter(dict(session.exec(wanted.group_by(line)).all()))

    @in_database
    def of(self, batch_id: str, lines: Sequence[LinePlace]) -> dict[int, list[BatchAnswerRow]]:
        """The answers of lines that follow each other, by line."""
        found: dict[int, list[BatchAnswerRow]] = {line.number: [] for line in lines}
        between = _rows(batch_id, lines[0].number, lines[-1].number)
        with self.database.session() as session:
            for row in session.exec(between).all():
                found.get(row.line_number, []).append(row)
        return found

    @in_database
    def names(self, batch_id: str, lines: Sequence[LinePlace]) -> set[tuple[int, int]]:
        """Which of these lines' answers are there: line and choice."""
        first, last = lines[0].number, lines[-1].number
        columns = col(BatchAnswerRow.line_number), col(BatchAnswerRow.answer_index)
        wanted = select(*columns).where(*_between(batch_id, first, last))
        with self.database.session() as session:
            return {(number, choice) for number, choice in session.exec(wanted).all()}

    @in_database
    def keep(self, batch_id: str, answer: LineAnswer) -> None:
        """Write one down, in place of what was kept for it, and count its line."""
        number, choice = place_of(answer.custom_id)
        logprobs = answer.logprobs if any(answer.logprobs) else None
        with self.database.session() as session:
            of_line = _rows(batch_id, number, number).limit(1)
            is_first = session.exec(of_line).first() is None
            session.merge(
                BatchAnswerRow(
                    batch_id=batch_id,
                    line_number=number,
                    answer_index=choice,
                    job_id=answer.job_id,
                    job_request=answer.job_request,
                    operators=json.dumps(answer.operators),
                    tokens=json.dumps(answer.tokens),
                    logprobs=msgspec.json.encode(logprobs).decode(),
                    finish=answer.finish,
                    ended_at=int(self._clock.now()),
                )
            )
            if is_first:
                row = session.get_one(BatchRow, batch_id)
                row.lines_done += 1
                session.add(row)


def _between(batch_id: str, first: int, last: int) -> tuple[Any, ...]:
    number = col(BatchAnswerRow.line_number)
    return BatchAnswerRow.batch_id == batch_id, number >= first, number <= last


def _rows(batch_id: str, first: int = 0, last: int = LAST_LINE) -> Any:
    order = col(BatchAnswerRow.line_number), col(BatchAnswerRow.answer_index)
    return select(BatchAnswerRow).where(*_between(batch_id, first, last)).order_by(*order)
