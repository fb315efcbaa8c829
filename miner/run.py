"""How does one request run through one stage: rows in, compute, rows or a token out, and at the end a receipt?

Handlers put what arrives into the inbox after checking it; one task takes it out, so a request's steps never
overtake each other while steps of different requests share the compute thread in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import CheckFailed, HeadraceError, MalformedMessage
from core.runtime.logs import get_logger
from miner import jobs
from miner.book import Book
from miner.compute import Compute, Key
from miner.jobs import Request
from miner.links import Line
from miner.store import Boundary, StoredJob

#: A checkpoint goes with the first frame, with every chunk of a prompt, and at least every so many rows.
CHECKPOINT_ROWS = 32
#: A receiver that has not seen one for so many rows stops.
MAX_UNSIGNED_ROWS = 64
log = get_logger(__name__)


@dataclass(frozen=True)
class Bench:
    """What a run works with: shared by all runs of a stage."""

    compute: Compute
    book: Book
    hidden: int
    vocab: int
    eos_ids: frozenset[int]
    count: Callable[[str], None]
    monotonic: Callable[[], float]


@dataclass(frozen=True)
class Wires:
    """Where a run's words go. `client` may have no reader at the moment."""

    to_client: Callable[[wire.AnyMessage], None]
    to_next: Line | None
    to_first: Line | None
    is_over: Callable[[Run], None]


@dataclass(frozen=True)
class _Feed:
    first_row: int
    rows: int
    data: bytes | Sequence[int]


@dataclass(frozen=True)
class _End:
    tokens_in: int
    tokens_out: int


class Run:
    """One request at this stage, from its first message to its receipt."""

    def __init__(self, job: StoredJob, request: Request, bench: Bench, wires: Wires) -> None:
        self.job, self.request = job, request
        self.seen_at = bench.monotonic()
        self.prompt: tuple[int, ...] = ()
        self.counts = (0, 0)  # tokens in and out, once it is finished
        self._bench, self._wires = bench, wires
        self._sampling: t.SamplingParams | None = None
        self._submitted = asyncio.Event()
        self._inbox: asyncio.Queue[_Feed | _End] = asyncio.Queue()
        self._in, self._out = commit.RowTree(), commit.RowTree()
        self._in_data, self._out_data = bytearray(), bytearray()
        self._row_bytes = 4 * bench.hidden
        self._checked_rows = 0  # rows covered by the newest checkpoint received
        self._signed_rows = 0  # rows covered by the newest checkpoint sent
        self._checkpoint: tuple[t.HopCheckpoint, str] | None = None
        self._task = asyncio.create_task(self._work(), name=f"request {request.index}")

    @property
    def index(self) -> int:
        return self.request.index

    @property
    def key(self) -> Key:
        return (self.job.order_hash, self.index)

    @property
    def checkpoint(self) -> tuple[t.HopCheckpoint, str] | None:
        """The newest word of the stage before, with its signature."""
        return self._checkpoint

    @property
    def tokens(self) -> list[int]:
        """What a last stage has sampled so far."""
        if not self.request.is_last:
            return []
        return token_ids(self._out_data)

    # --- what arrives ---

    def submit(self, prompt: Sequence[int], sampling: t.SamplingParams) -> None:
        """The client's part, already checked against the order. Raises CheckFailed."""
        self.request = jobs.submit(self.request, len(prompt), sampling.max_new_tokens)
        self.prompt, self._sampling = tuple(prompt), sampling
        self._submitted.set()
        self._touch()

    def begin(self) -> None:
        """A first stage has room for this request now. Raises CheckFailed."""
        self.request = jobs.start(self.request)
        self._touch()
        for start, end in jobs.prompt_chunks(len(self.prompt)):
            self._feed_tokens(start, self.prompt[start:end])

    def take_rows(self, message: wire.Activations, payload: memoryview) -> None:
        """Rows from the stage before. A fault of theirs fails the request."""
        self._guarded(self._take_rows, message, payload)

    def take_token(self, message: wire.Token) -> None:
        """A token from the last stage, at the first."""
        self._guarded(self._take_token, message)

    def take_end(self, tokens_in: int, tokens_out: int) -> None:
        """The request is over: commit to it and sign."""
        self._guarded(self._take_end, tokens_in, tokens_out)

    def cancel(self) -> None:
        """The client gave it up."""
        self._leave(jobs.cancel(self.request))

    def fail(self, error: HeadraceError) -> None:
        """It cannot go on here: the client is told, the memory freed."""
        after = jobs.fail(self.request)
        if after is None:
            return
        self._bench.count(f"request_failed_{error.code}")
        log.warning(
            "request failed", order=self.job.order_hash[:10], request=self.index, error=str(error)
        )
        self._wires.to_client(
            wire.RequestFailed(
                order_hash=self.job.order_hash,
                request=self.index,
                code=error.code,
                reason=str(error)[:2000],
            )
        )
        self._leave(after)

    async def closed(self) -> None:
        """Wait until the run's task is gone."""
        await asyncio.gather(self._task, return_exceptions=True)

    # --- checks ---

    def _guarded(self, move: Callable[..., None], *args: object) -> None:
        try:
            move(*args)
        except HeadraceError as error:
            self.fail(error)

    def _take_rows(self, message: wire.Activations, payload: memoryview) -> None:
        after = jobs.rows_arrive(self.request, message.start, message.rows)
        if after is None:
            self._bench.count("rows_repeated")
            return
        if len(payload) != message.rows * self._row_bytes:
            raise MalformedMessage(
                f"activations of {len(payload)} bytes",
                f"{message.rows} rows have {message.rows * self._row_bytes}",
            )
        data = bytes(payload)
        self._in.extend(data, self._row_bytes)
        self._in_data += data
        self._check_checkpoint(message)
        self.request = after
        self._touch()
        self._inbox.put_nowait(_Feed(message.start, message.rows, data))

    def _check_checkpoint(self, message: wire.Activations) -> None:
        rows, checkpoint = len(self._in), message.checkpoint
        if checkpoint is not None:
            before = self.job.plan[self.job.stage - 1]
            said = t.HopCheckpoint(
                order_hash=self.job.order_hash,
                plan_hash=self.job.plan_hash,
                stage=self.job.stage - 1,
                request_index=self.index,
                rows=rows,
                running_root=commit.to_hex(self._in.root()),
            )
            signature = message.checkpoint_signature or ""
            if checkpoint != said or not signing.is_signed_by(
                self._bench.book.domain, said, signature, before.operator
            ):
                raise CheckFailed(
                    f"the checkpoint of stage {said.stage} does not fit",
                    f"it covers {checkpoint.rows} rows, {rows} arrived, and their root is {said.running_root}",
                )
            self._checked_rows, self._checkpoint = rows, (checkpoint, signature)
        if rows - self._checked_rows > MAX_UNSIGNED_ROWS or not self._checked_rows:
            raise CheckFailed(
                f"stage {self.job.stage - 1} signs no checkpoints",
                f"{rows - self._checked_rows} rows came without one",
            )

    def _take_token(self, message: wire.Token) -> None:
        after = jobs.token_arrives(self.request, message.step, message.finish)
        if after is None:
            self._bench.count("tokens_repeated")
            return
        if message.token >= self._bench.vocab:
            raise CheckFailed(
                "the token is refused", f"id {message.token} is no token of the model"
            )
        fed_at, self.request = self.request.rows, after
        self._touch()
        if not message.finish:
            self._feed_tokens(fed_at, (message.token,))
            return
        self._take_end(after.prompt_tokens, after.produced)

    def _take_end(self, tokens_in: int, tokens_out: int) -> None:
        if jobs.end(self.request, tokens_in, tokens_out) is None:
            self._bench.count("ends_repeated")
            return
        self._touch()
        self._inbox.put_nowait(_End(tokens_in, tokens_out))

    def _feed_tokens(self, first_row: int, ids: Sequence[int]) -> None:
        data = commit.token_bytes(ids)
        self._in.extend(data, 4)
        self._in_data += data
        self._inbox.put_nowait(_Feed(first_row, len(ids), ids))

    # --- the work ---

    async def _work(self) -> None:
        try:
            if self.request.is_last:
                await self._submitted.wait()
            while not self.request.is_over:
                item = await self._inbox.get()
                if isinstance(item, _End):
                    await self._finish(item)
                    return
                if self.request.is_last:
                    await self._step_of_last(item)
                else:
                    await self._step(item)
        except HeadraceError as error:
            self.fail(error)
        except Exception as error:
            log.exception("request broke", order=self.job.order_hash[:10], request=self.index)
            self.fail(HeadraceError("this stage has a bug", f"{type(error).__name__}: {error}"))

    async def _step(self, item: _Feed) -> None:
        out = await self._bench.compute.rows(self.key, item.data)
        if self.request.is_over:
            return
        self._out.extend(out, self._row_bytes)
        self._out_data += out
        checkpoint = signature = None
        if (
            item.rows > 1
            or not self._signed_rows
            or len(self._out) - self._signed_rows >= CHECKPOINT_ROWS
        ):
            self._signed_rows = len(self._out)
            checkpoint, signature = self._bench.book.checkpoint(
                self.job, self.index, len(self._out), self._out.root()
            )
        assert self._wires.to_next is not None, "only the last stage has no next one"
        self._wires.to_next.put(
            wire.Activations(
                order_hash=self.job.order_hash,
                request=self.index,
                start=item.first_row,
                rows=item.rows,
                checkpoint=checkpoint,
                checkpoint_signature=signature,
            ),
            out,
            self.fail,
        )

    async def _step_of_last(self, item: _Feed) -> None:
        end = item.first_row + item.rows
        prompt_tokens = self.request.prompt_tokens
        if item.first_row < prompt_tokens < end or (item.rows > 1 and end > prompt_tokens):
            raise CheckFailed("activations are refused", "a frame reaches past the prompt's end")
        if end < prompt_tokens:
            await self._bench.compute.feed(self.key, item.data)
            return
        assert self._sampling is not None, "submitted requests have sampling parameters"
        step = self.request.produced
        token = await self._bench.compute.token(
            self.key, item.data, self._sampling, self.index, step
        )
        if self.request.is_over:
            return
        self.request = jobs.produce(self.request, is_eos=token in self._bench.eos_ids)
        row = commit.token_bytes((token,))
        self._out.append(row)
        self._out_data += row
        self._touch()
        self._tell_token(
            wire.Token(
                order_hash=self.job.order_hash,
                request=self.index,
                step=step,
                token=token,
                finish=self.request.finish,  # type: ignore[arg-type]
            )
        )

    def _tell_token(self, message: wire.Token) -> None:
        self._wires.to_client(message)
        if self._wires.to_first is not None:
            self._wires.to_first.put(message, b"", self.fail)
        else:
            self._take_token(message)

    async def _finish(self, item: _End) -> None:
        if self._wires.to_next is not None:
            self._wires.to_next.put(
                wire.FinishRequest(
                    order_hash=self.job.order_hash,
                    request=self.index,
                    tokens_in=item.tokens_in,
                    tokens_out=item.tokens_out,
                )
            )
        leaf = t.RequestLeaf(
            request_index=self.index,
            in_root=commit.to_hex(self._in.root()),
            out_root=commit.to_hex(self._out.root()),
            tokens_in=item.tokens_in,
            tokens_out=item.tokens_out,
        )
        book, first, last = self._bench.book, self.request.is_first, self.request.is_last
        if self._checkpoint is not None:
            await book.disk(book.store.put_checkpoint, *self._checkpoint)
        signed = await book.finish(
            self.job,
            leaf,
            Boundary(4 if first else self._row_bytes, bytes(self._in_data)),
            Boundary(4 if last else self._row_bytes, bytes(self._out_data)),
        )
        self.counts = (item.tokens_in, item.tokens_out)
        self._wires.to_client(wire.Receipt(signed=signed))
        self._leave(jobs.end(self.request, item.tokens_in, item.tokens_out))

    # --- the end ---

    def _touch(self) -> None:
        self.seen_at = self._bench.monotonic()

    def _leave(self, after: Request | None) -> None:
        if after is None:
            return
        self.request = after
        if asyncio.current_task() is not self._task:
            self._task.cancel()
        self._wires.is_over(self)


def token_ids(data: bytes | bytearray | memoryview) -> list[int]:
    """Ids of consecutive u32le rows. Raises ValueError for a broken length."""
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not whole token ids")
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
