"""How does a batch live, from `validating` to its end, also over restarts?

Each decision is in the database before it is carried out: answers are kept as they come, and a
batch is charged once, in the transaction that ends it.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlmodel import col, func, select

from client.gateway.accepting import check_price, served_model
from client.gateway.batches import batch_lines
from client.gateway.batches.batch_lines import BadLine, BatchFile, LinePlace, Lines, place_of
from client.gateway.batches.files import page_of
from client.gateway.batches.kept_answers import KeptAnswers
from client.gateway.batches.offline import BatchRunner, Keep, LineAnswer
from client.gateway.batches.results import BatchResults
from client.gateway.errors import BadParameter, BatchesFull, NotDone, NotOffered
from client.gateway.money.ledger import Bill
from client.gateway.openai.fields import ENDPOINTS, Endpoint
from client.gateway.openai.shapes import receipt_of
from client.gateway.openai.terms import terms_from, terms_json
from client.gateway.records.database import in_database
from client.gateway.records.tables import BatchRow
from client.records.statements import Transaction
from client.sessions.answering import AskTerms
from core.protocol.errors import DeadlinePassed, HeadraceError, Interrupted, UsageError
from core.runtime import logs, tracing
from core.runtime.logs import get_logger
from core.runtime.retry import Backoff, pause_s, retry

if TYPE_CHECKING:
    from sqlmodel import Session

    from client.gateway.batches.files import Files
    from client.gateway.metrics import GatewayMetrics
    from client.gateway.money.keyring import ApiKey, Keyring
    from client.gateway.money.ledger import Ledger
    from client.gateway.money.limits import Limiter
    from client.gateway.money.prices import ModelPrices
    from client.gateway.openai.models import Catalogue, ServedModel
    from client.gateway.records.database import Database
    from client.records.store import ClientStore
    from core.runtime.clock import Clock
    from core.runtime.settings import Settings

log = get_logger(__name__)
WINDOWS_S = {"24h": 24 * 3600}
RUNNING = ("validating", "in_progress", "finalizing", "cancelling")
#: A batch that expired this long ago runs no more: time for its ending and clocks that differ.
GONE_AFTER_S = 3600
OVER = ("completed", "failed", "expired", "cancelled")
MOST_METADATA = 16
#: Between two tries of what nobody can serve now.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
PATIENT = Backoff(attempts=None, timeout_s=None, initial_s=FIRST_PAUSE_S, max_s=LONGEST_PAUSE_S)
T = TypeVar("T")


@dataclass
class Batches:
    """The batches of one gateway: it runs its own, and knows those of others over one database."""

    offline: BatchRunner
    settings: Settings
    clock: Clock
    database: Database
    keys: Keyring
    ledger: Ledger
    limiter: Limiter
    files: Files
    catalogue: Catalogue
    prices: ModelPrices
    metrics: GatewayMetrics
    gateway_id: str
    store: ClientStore | None
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    #: Tasks that have neither ended nor been stopped.
    _stoppable: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    #: Key → its places; its batches get them in the order in which they came.
    _turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = KeptAnswers(self.database, self.clock)
        self._running = asyncio.Semaphore(self.settings.gateway.batches_at_once)
        #: One file is read and tokenised at a time.
        self._reading = asyncio.Semaphore(1)

    async def start(self) -> int:
        """Go on with what an earlier life of this gateway left; how many.

        What was left before gateways had names is taken by the one whose folder has its file.
        """
        left = await self._take_left()
        for row in left:
            self._begin(row.batch_id)
        return len(left)

    async def close(self) -> None:
        """Stop; what runs is paid as far as it came, and goes on at the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(self, key: ApiKey, body: Mapping[str, Any], terms: AskTerms) -> BatchRow:
        """A new batch, which begins when it is its turn.

        Raises BadParameter, NotOffered, RateLimited, BatchesFull.
        """
        self.limiter.take_request(key)
        endpoint, window = body.get("endpoint"), body.get("completion_window")
        if endpoint not in ENDPOINTS:
            raise BadParameter("endpoint", f"it must be one of {', '.join(ENDPOINTS)}")
        if not isinstance(window, str) or window not in WINDOWS_S:
            raise BadParameter("completion_window", "it must be 24h")
        file_id = body.get("input_file_id")
        if not isinstance(file_id, str):
            raise BadParameter("input_file_id", "it must be the id of an uploaded file")
        file = await self.files.get(file_id, None if key.is_local else key.key_id)
        if file.purpose != "batch":
            raise BadParameter("input_file_id", "the file's purpose must be batch")
        now, batch_id = int(self.clock.now()), f"batch_{secrets.token_hex(12)}"
        row = await self._save(
            batch_id=batch_id,
            receipt_id=receipt_of(batch_id),
            key_id=key.key_id,
            gateway_id=self.gateway_id,
            input_file_id=file_id,
            endpoint=endpoint,
            status="validating",
            completion_window=window,
            extras=json.dumps(_metadata(body.get("metadata"))),
            terms=json.dumps(terms_json(terms)),
            created_at=now,
            expires_at=now + WINDOWS_S[window],
        )
        self._begin(batch_id)
        return row

    async def get(self, batch_id: str, key_id: str | None = None) -> BatchRow:
        """Raises NotOffered."""
        row = await self._find(batch_id)
        if row is None or key_id not in (None, row.key_id):
            raise NotOffered(f"there is no batch '{batch_id[:64]}'", "this key has no such batch")
        return row

    async def cancel(self, batch_id: str, key_id: str | None = None) -> BatchRow:
        """Stop it, or have its gateway do so; finished lines cost. Raises NotOffered, NotDone."""
        await self.get(batch_id, key_id)
        row = await self._ask_to_cancel(batch_id)
        if row.status not in RUNNING:
            raise NotDone(f"batch '{batch_id}' has ended", f"it is {row.status}")
        if row.status == "cancelling":
            self._stop(batch_id)
        return await self.get(batch_id, key_id)

    async def heed_cancels(self) -> None:
        """Stop what runs here and was cancelled at another gateway."""
        running = list(self._stoppable)
        for batch_id in await self._cancelling(running) if running else ():
            self._stop(batch_id)

    async def counts(self) -> dict[str, int]:
        """How many batches there are, by status."""
        return dict.fromkeys((*RUNNING, *OVER), 0) | await self._counts()

    async def wait(self, batch_id: str) -> None:
        """Until nothing is being done for it."""
        task = self._tasks.get(batch_id)
        if task is not None:
            await asyncio.wait({task})

    # --- its life ---

    def _begin(self, batch_id: str) -> None:
        task = asyncio.create_task(self._of_one_name(batch_id), name=batch_id)
        self._tasks[batch_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch_id, None))

    async def _of_one_name(self, batch_id: str) -> None:
        with logs.bound(request_id=batch_id), tracing.span("batch", request_id=batch_id):
            await self._live(batch_id)

    async def _live(self, batch_id: str) -> None:
        row = await self.get(batch_id)
        try:
            self._stoppable[batch_id] = self._tasks[batch_id]
            try:
                await self._work(row)
            finally:
                self._stoppable.pop(batch_id, None)
        except asyncio.CancelledError:
            if batch_id not in self._cancelled:
                raise  # the gateway stops: the next one goes on
            self._cancelled.discard(batch_id)
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
            await self._end_early(batch_id, "cancelled", Interrupted("the batch was cancelled", ""))
        except TimeoutError:
            error = DeadlinePassed(
                "the batch was not done in time",
                f"within {row.completion_window}",
                resume="a new batch",
            )
            await self._end_early(batch_id, "expired", error)
        except HeadraceError as error:
            await self._end_early(batch_id, "failed", error)
        except Exception as error:
            log.exception("a batch failed", batch=batch_id)
            bug = HeadraceError("a bug on the gateway's side", type(error).__name__)
            await self._end_early(batch_id, "failed", bug)

    def _stop(self, batch_id: str) -> None:
        """Once: what ends it is not stopped."""
        task = self._stoppable.pop(batch_id, None)
        if task is not None:
            self._cancelled.add(batch_id)
            task.cancel()

    async def _work(self, row: BatchRow) -> None:
        if row.status == "cancelling":
            error = Interrupted("the batch was cancelled", "its caller asked for it")
            await self._end_early(row.batch_id, "cancelled", error)
            return
        left_s = row.expires_at - self.clock.now()
        async with asyncio.timeout(max(0.0, left_s)) as limit:
            await self._run(row, limit)

    @asynccontextmanager
    async def _turn(self, row: BatchRow) -> AsyncIterator[None]:
        """A place among the batches that work: those that wait for room take none."""
        most = self.settings.gateway.batches_per_key
        async with self._turns.setdefault(row.key_id, asyncio.Semaphore(most)), self._running:
            yield

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """What a step gives, once nothing is in its way that time may remove."""
        return await retry(step, on=_may_pass, backoff=PATIENT, on_retry=_say_it_waits)

    async def _run(self, row: BatchRow, limit: asyncio.Timeout) -> None:
        """From its file to its end. The limit holds until everything is answered."""
        key = await self.keys.get(row.key_id)
        file = self._file_of(row)
        model = await self._model(file)
        served = None
        if model is not None:
            served = await self._patiently(lambda: self._served(row, key, model))
        if served is not None and row.status != "validating":
            await self._recover(row, served)
        async with self._turn(row):
            lines = await self._lines(file, model, served)
        if served is None or not lines.good:
            await self._refuse(row, lines)
            return
        terms = terms_from(json.loads(row.terms))
        if row.status == "validating":
            await self._patiently(lambda: self._reserve(row, served, lines, terms))
        failures = await self._answer_all(row, key, served, lines, terms)
        limit.reschedule(None)
        await self._finish(row, "completed", served, lines, failures, None)

    async def _served(self, row: BatchRow, key: ApiKey | None, asked: str) -> ServedModel:
        """The model that the batch asks for: the one that it began with, of an alias."""
        if row.model or key is None:
            return await self.catalogue.find(row.model or asked)
        return await served_model(self.settings, self.catalogue, key, asked)

    async def _recover(self, row: BatchRow, served: ServedModel, *, goes_on: bool = True) -> None:
        """What an earlier life of the gateway bought for it comes to its end, and is paid."""
        of = row.batch_id, served.model, served.tokenizer
        async with self._keeping(row, {}) as keep:
            await self._patiently(lambda: self.offline.recover(*of, keep, goes_on=goes_on))

    @asynccontextmanager
    async def _keeping(self, row: BatchRow, produced: dict[str, int]) -> AsyncIterator[Keep]:
        """Writes down every answer before the block ends, and counts its tokens by prompt."""
        writing = set[asyncio.Future[None]]()

        def keep(answer: LineAnswer) -> None:
            produced[answer.custom_id] = len(answer.tokens)
            written = asyncio.ensure_future(self.answers.keep(row.batch_id, answer))
            writing.add(written)
            written.add_done_callback(writing.discard)

        try:
            yield keep
        finally:
            await asyncio.gather(*writing)

    def _file_of(self, row: BatchRow) -> BatchFile:
        path = self.files.path(row.input_file_id)
        if not path.is_file():
            why = f"{row.input_file_id} was deleted, or is another gateway's"
            raise UsageError("the input file is gone", why)
        endpoint: Endpoint = next(known for known in ENDPOINTS if known == row.endpoint)
        return BatchFile(path, endpoint, self.settings.gateway.max_tokens)

    async def _model(self, file: BatchFile) -> str | None:
        async with self._reading:
            return await asyncio.to_thread(file.model)

    async def _lines(self, file: BatchFile, model: str | None, served: ServedModel | None) -> Lines:
        """All of them, read one batch after the other."""
        async with self._reading:
            return await asyncio.to_thread(file.lines, model, served)

    async def _reserve(
        self, row: BatchRow, served: ServedModel, lines: Lines, terms: AskTerms
    ) -> None:
        """Hold the most it can cost against its key's budget. Raises BudgetExceeded, NoCapacity."""
        tokens_in = sum(line.tokens_in * line.choices for line in lines.good)
        tokens_out = sum(line.tokens_most for line in lines.good) - tokens_in
        priced = await self.prices.price(served.model, tokens_in, tokens_out, terms)
        check_price(self.settings, priced, terms)
        await self._hold(row.batch_id, served.name, priced.most_units, lines)

    async def _answer_all(
        self,
        row: BatchRow,
        key: ApiKey | None,
        served: ServedModel,
        lines: Lines,
        terms: AskTerms,
    ) -> dict[str, HeadraceError]:
        """Order what is missing until all is there that time may bring.

        Returns what could not be answered.
        """
        failures, fruitless, missing = dict[str, HeadraceError](), 0, None
        while True:
            known = await self.answers.counts(row.batch_id)
            todo = [
                line
                for line in lines.good
                if known[line.number] < line.choices
                and all(failures[name].retryable for name in line.names if name in failures)
            ]
            if not todo:
                return failures
            if missing is not None:
                fruitless = 0 if len(todo) < missing else fruitless + 1
                why = str(next(iter(failures.values()), ""))
                log.info("a batch waits", lines=len(todo), why=why)
                await self.clock.sleep(pause_s(fruitless, FIRST_PAUSE_S, LONGEST_PAUSE_S))
            missing = len(todo)
            async with self._turn(row):
                failures |= await self._order(row, key, served, todo, terms)

    async def _order(
        self,
        row: BatchRow,
        key: ApiKey | None,
        served: ServedModel,
        todo: Sequence[LinePlace],
        terms: AskTerms,
    ) -> dict[str, HeadraceError]:
        """Order these lines once, in as few orders as their key's rate allows.

        Returns what could not be answered.
        """
        file, failures = self._file_of(row), dict[str, HeadraceError]()
        of = row.batch_id, served.model, served.tokenizer
        share = (math.inf, math.inf) if key is None else self.limiter.share(key)
        for part in batch_lines.parts_of(todo, *share):
            tokens = sum(line.tokens_most for line in part)
            if key is not None:
                await self.limiter.wait(key, len(part), tokens)
            kept = await self.answers.names(row.batch_id, part)
            prompts = [
                prompt
                for line in await asyncio.to_thread(file.load, part, served)
                for prompt in line.prompts
                if place_of(prompt.custom_id) not in kept
            ]
            produced = dict[str, int]()  # by prompt
            async with self._keeping(row, produced) as keep:
                try:
                    failures |= await self.offline.run(*of, prompts, terms, keep)
                except HeadraceError as error:
                    if not error.retryable:
                        raise
                    failures |= dict.fromkeys([one.custom_id for one in prompts], error)
            if key is not None:
                known_in = {one.custom_id: len(one.ids) for one in prompts}
                used = sum(known_in[name] + count for name, count in produced.items())
                self.limiter.give_back(key, max(0, tokens - used))
        return failures

    # --- its end ---

    async def _refuse(self, row: BatchRow, lines: Lines) -> None:
        """No line can be run: say why of each, as validation does."""
        errors = [
            _told(bad.error) | {"message": f"{bad.error.what}: {bad.error.why}", "line": bad.number}
            for bad in lines.bad[:100]
        ] or [
            {"code": "empty_file", "message": "the file has no lines", "line": None, "param": None}
        ]
        await self._end(row.batch_id, "failed", 0, lines.total, Bill(0, 0, 0), errors, {})

    async def _end_early(self, batch_id: str, status: str, error: HeadraceError) -> None:
        """Write down what is done; the lines that are not get this error."""
        row = await self.get(batch_id)
        if row.status == "validating" or (row.status == "cancelling" and not row.in_progress_at):
            await self._end(batch_id, status, 0, 0, Bill(0, 0, 0), [_told(error)], {})
            return
        served = await self._patiently(lambda: self.catalogue.find(row.model))
        try:
            await self._recover(row, served, goes_on=False)
        except HeadraceError:
            log.exception("what a batch bought is not settled", batch=batch_id)
        file = self._file_of(row)
        lines = await self._lines(file, await self._model(file), served)
        await self._finish(row, status, served, lines, {}, error)

    async def _finish(
        self,
        row: BatchRow,
        status: str,
        served: ServedModel,
        lines: Lines,
        failures: Mapping[str, HeadraceError],
        error: HeadraceError | None,
    ) -> None:
        """Files, bill, and the batch's end."""
        batch_id = row.batch_id
        results = BatchResults(batch_id, self._file_of(row), self.answers, self.store)
        if status == "completed":
            await self._finalize(batch_id)
        answered = await self.answers.counts(batch_id)
        done = [line for line in lines.good if answered[line.number] == line.choices]
        left = [line for line in lines.good if answered[line.number] != line.choices]
        without: list[BadLine | LinePlace] = [*lines.bad, *left]
        bad = sorted(without, key=lambda line: line.number)
        why = partial(_why, failures, error)
        now = int(self.clock.now())
        ids: dict[str, str | None] = {}
        for kind, mark, of, content in (
            ("output", "out", done, results.outputs(done, served, now)),
            ("error", "err", bad, results.errors(bad, why)),
            ("receipts", "rcp", done, results.receipts(done)),
        ):
            if of:
                file_id = f"file-{batch_id.removeprefix('batch_')}{mark}"
                name = f"{batch_id}_{kind}.jsonl"
                await self.files.write(file_id, row.key_id, name, "batch_output", content)
                ids[f"{kind}_file_id"] = file_id
        bill = await self.offline.bill(batch_id, served.model)
        errors = []
        if error is not None and status != "cancelled":
            errors = [_told(error) | {"message": f"{error.what}: {error.why}", "param": None}]
        await self._end(batch_id, status, len(done), len(bad), bill, errors, ids)
        self.metrics.paid(served.name, bill.tokens_in, bill.tokens_out, bill.cost_units)

    @in_database
    def _take_left(self) -> list[BatchRow]:
        ours, files = self.gateway_id, self.files
        with self.database.session() as session:
            wanted = select(BatchRow).where(
                col(BatchRow.status).in_(RUNNING), col(BatchRow.gateway_id).in_((ours, ""))
            )
            left = [
                row
                for row in session.exec(wanted.order_by(col(BatchRow.created_at))).all()
                if row.gateway_id or files.path(row.input_file_id).is_file()
            ]
            for row in left:
                row.gateway_id = ours
                session.add(row)
            return left

    @in_database
    def _cancelling(self, batch_ids: Sequence[str]) -> list[str]:
        with self.database.session() as session:
            wanted = select(BatchRow.batch_id).where(
                BatchRow.status == "cancelling", col(BatchRow.batch_id).in_(batch_ids)
            )
            return list(session.exec(wanted).all())

    @in_database
    def _counts(self) -> dict[str, int]:
        with self.database.session() as session:
            wanted = select(BatchRow.status, func.count()).group_by(col(BatchRow.status))
            return dict(session.exec(wanted).all())

    @in_database
    def _save(self, **values: Any) -> BatchRow:
        row, most = BatchRow(**values), self.settings.gateway.open_batches_per_key
        with self.database.session() as session:
            of_key = BatchRow.key_id == row.key_id, col(BatchRow.status).in_(RUNNING)
            if session.exec(select(func.count()).where(*of_key)).one() >= most:
                why = f"{most} have not ended, and a key has no more of these"
                raise BatchesFull("the key has too many batches", why)
            session.add(row)
        return row

    @in_database
    def _find(self, batch_id: str) -> BatchRow | None:
        with self.database.session() as session:
            return session.get(BatchRow, batch_id)

    @in_database
    def ls(
        self, key_id: str | None = None, after: str | None = None, limit: int = 20
    ) -> list[BatchRow]:
        """Newest first; one more than `limit` when there are more."""
        with self.database.session() as session:
            return page_of(session, BatchRow, "batch_id", key_id, after, limit)

    @in_database
    def _ask_to_cancel(self, batch_id: str) -> BatchRow:
        with self.database.session() as session:
            row = session.get_one(BatchRow, batch_id)
            if row.status in ("validating", "in_progress"):
                row.status, row.cancelling_at = "cancelling", int(self.clock.now())
            session.add(row)
            return row

    @in_database
    def _finalize(self, batch_id: str) -> None:
        with self.database.session() as session:
            row = session.get_one(BatchRow, batch_id)
            if row.ended_at is None:
                row.status, row.finalizing_at = "finalizing", int(self.clock.now())
            session.add(row)

    @in_database
    def _hold(self, batch_id: str, model: str, units: int, lines: Lines) -> None:
        with self.database.session() as session:
            row = session.get_one(BatchRow, batch_id)
            self.ledger.take(Transaction.of(session), row.key_id, units)
            row.reserved_units, row.model = units, model
            row.lines_total, row.lines_failed = lines.total, len(lines.bad)
            if row.status == "validating":
                row.status = "in_progress"
            row.in_progress_at = int(self.clock.now())
            session.add(row)

    @in_database
    def _end(
        self,
        batch_id: str,
        status: str,
        done: int,
        failed: int,
        bill: Bill,
        errors: Sequence[Mapping[str, Any]],
        files: Mapping[str, str | None],
    ) -> None:
        with self.database.session() as session:
            row = session.get_one(BatchRow, batch_id)
            if row.ended_at is not None:
                return
            if done + failed:
                row.lines_total, row.lines_done, row.lines_failed = done + failed, done, failed
            for name, file_id in files.items():
                setattr(row, name, file_id)
            self._close(session, row, status, bill, errors)

    @in_database
    def end_abandoned(self) -> list[BatchRow]:
        """End as expired what other gateways should have ended long ago: they are gone."""
        error = DeadlinePassed(
            "the batch was not done in time",
            "the gateway that ran it is gone",
            resume="a new batch",
        )
        expired_before = int(self.clock.now()) - GONE_AFTER_S
        with self.database.session() as session:
            wanted = select(BatchRow).where(
                col(BatchRow.status).in_(RUNNING),
                BatchRow.gateway_id != self.gateway_id,
                BatchRow.expires_at < expired_before,
            )
            gone = list(session.exec(wanted).all())
            for row in gone:
                row.lines_failed = row.lines_total - row.lines_done
                self._close(session, row, "expired", Bill(0, 0, 0), [_told(error)])
            return gone

    def _close(
        self,
        session: Session,
        row: BatchRow,
        status: str,
        bill: Bill,
        errors: Sequence[Mapping[str, Any]],
    ) -> None:
        """Its last state, and its bill in the same transaction."""
        row.status, row.errors = status, json.dumps(list(errors))
        row.ended_at = int(self.clock.now())
        row.cost_units = bill.cost_units
        row.tokens_in, row.tokens_out = bill.tokens_in, bill.tokens_out
        held, row.reserved_units = row.reserved_units, 0
        session.add(row)
        if row.model:
            session.flush()
            self.ledger.settle(
                Transaction.of(session),
                row.key_id,
                row.model,
                held,
                bill,
                requests=row.lines_total,
                failed=row.lines_failed,
            )


def _may_pass(error: Exception) -> bool:
    return isinstance(error, HeadraceError) and error.retryable


def _say_it_waits(error: Exception) -> None:
    log.info("a batch waits", why=str(error))


def _told(error: HeadraceError) -> dict[str, Any]:
    """Why a batch ended, as its callers read it."""
    return {
        "code": error.api_code,
        "message": f"{error.what}: {error.why}. {error.next_step}",
        "line": None,
        "param": error.details.get("param"),
    }


def _why(
    failures: Mapping[str, HeadraceError], error: HeadraceError | None, line: LinePlace
) -> HeadraceError:
    for name in line.names:
        if name in failures:
            return failures[name]
    return error or HeadraceError("the line was not answered", "nobody said why")


def _metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    is_table = isinstance(value, dict) and len(value) <= MOST_METADATA
    if not is_table or not all(isinstance(v, str) and len(v) <= 512 for v in value.values()):
        raise BadParameter("metadata", f"it must be at most {MOST_METADATA} texts by name")
    return dict(value)


def batch_json(row: BatchRow, shown_cost: str) -> dict[str, Any]:
    """The batch object of official clients, with what it cost beside it."""
    errors = json.loads(row.errors)

    def ended(status: str) -> int | None:
        return row.ended_at if row.status == status else None

    return {
        "id": row.batch_id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model or None,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": row.output_file_id,
        "error_file_id": row.error_file_id,
        "created_at": row.created_at,
        "in_progress_at": row.in_progress_at,
        "expires_at": row.expires_at,
        "finalizing_at": row.finalizing_at,
        "completed_at": ended("completed"),
        "failed_at": ended("failed"),
        "expired_at": ended("expired"),
        "cancelling_at": row.cancelling_at,
        "cancelled_at": ended("cancelled"),
        "request_counts": {
            "total": row.lines_total,
            "completed": row.lines_done,
            "failed": row.lines_failed,
        },
        "usage": {
            "input_tokens": row.tokens_in,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": row.tokens_out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": row.tokens_in + row.tokens_out,
        },
        "metadata": json.loads(row.extras) or None,
        "headrace": {
            "receipt": row.receipt_id,
            "receipts_file_id": row.receipts_file_id,
            "reserved_units": row.reserved_units,
            "cost_units": row.cost_units,
            "cost": shown_cost,
        },
    }
