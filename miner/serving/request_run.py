"""How does one request run through one stage: rows in, compute, rows or a token out, and at the end
a receipt?

Handlers put what arrives into the inbox after checking it; one task takes it out, so a request's
steps never overtake each other while steps of different requests share the compute thread in turn.

A request that continues another order takes over what this stage remembers of it
(`docs/protocol.md` §8): rows that are here are neither computed nor sent again, unless the stage
before sends other ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from core.batching.chunks import carried_rows, replay_chunks
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import CheckFailed, HeadraceError, MalformedMessage, PeerUnreachable
from core.protocol.ids import Kind, short
from core.protocol.receipts import is_inner_root, word_of
from core.runtime import tracing
from core.runtime.logs import get_logger
from miner.compute.compute import Compute, Key, RequestSpec
from miner.compute.pace import TRACE_NUMBERS
from miner.compute.stepper import DrawnToken
from miner.records.store import BoundaryRows, Rooted, StoredJob
from miner.serving import bf16_rows, request_state
from miner.serving.committed_rows import RootedRows
from miner.serving.outbox import Outbox
from miner.serving.receipts import ReceiptBook
from miner.serving.request_state import Request, RequestPhase

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from core.engine.sampling.grammar import Grammar
    from core.engine.sampling.guesses import Boldness, Guesser
    from core.engine.sampling.sampling import Sampler
    from core.engine.sampling.stops import AnswerEnding
    from core.engine.weights.tokenizer import Tokenizer

#: Requests at a first stage that guess whatever it costs: eight rows take little longer than
#: one.
GUESS_FREELY = 2
log = get_logger(__name__)


@dataclass(frozen=True)
class RunContext:
    """What a run works with: shared by all runs of a stage."""

    compute: Compute
    book: ReceiptBook
    hidden: int
    vocab: int
    eos_ids: frozenset[int]
    count: Callable[[str], None]
    monotonic: Callable[[], float]
    tokenizer: Callable[[], Tokenizer] | None = None
    #: Whether a first stage guesses ahead.
    guesses: bool = True
    #: Layers between two boundaries that a stage signs; 0: all of its layers.
    span_layers: int = 0

    def ending(self, sampling: t.SamplingParams, prompt: Sequence[int]) -> AnswerEnding:
        """Where an answer ends. CheckFailed for stop strings where there is no tokenizer."""
        from core.engine.sampling.stops import AnswerEnding

        if sampling.stop and self.tokenizer is None:
            raise CheckFailed("stop strings are refused", "this stage has no tokenizer")
        tokenizer = self.tokenizer() if sampling.stop and self.tokenizer else None
        return AnswerEnding(sampling, self.eos_ids, tokenizer, prompt)


@dataclass(frozen=True)
class Wires:
    """Where a run's words go. `client` may have no reader at the moment."""

    to_client: Callable[[wire.AnyMessage], None]
    to_next: Outbox | None
    to_first: Outbox | None
    is_over: Callable[[RequestRun], None]
    ask_next: Callable[[wire.AnyMessage], Awaitable[wire.AnyMessage]] | None = None
    #: At a first stage: whether a request's first rows may be fed before more is acknowledged.
    affords: Callable[[RequestRun, int], bool] | None = None


@dataclass(frozen=True)
class _Feed:
    first_row: int
    rows: int
    data: bytes | Sequence[int]
    trace: list[int]  # what the stages before have spent; the compute thread adds this one
    guessed: int = 0  # of the rows, the last ones


@dataclass(frozen=True)
class _TakeOver:
    """First of all for a continued request: take `rows` rows that compute holds as `old`."""

    old: Key | None
    rows: int


@dataclass(frozen=True)
class _Rewind:
    first_row: int


@dataclass(frozen=True)
class _End:
    tokens_in: int
    tokens_out: int


class RequestRun:
    """One request at this stage, from its first message to its receipt."""

    def __init__(self, job: StoredJob, request: Request, context: RunContext, wires: Wires) -> None:
        self.job, self.request = job, request
        self.seen_at = context.monotonic()
        self.prompt: tuple[int, ...] = ()
        self.counts = (0, 0)  # tokens in and out, once it is finished
        self.stranding: wire.RequestFailed | None = None  # what the client was told of it
        self._context, self._wires = context, wires
        self._sampling: t.SamplingParams | None = None
        self._sampler: Sampler | None = None
        self._ending: AnswerEnding | None = None
        self._submitted = asyncio.Event()
        self._inbox: asyncio.Queue[_Feed | _TakeOver | _Rewind | _End] = asyncio.Queue()
        self._row_bytes = 4 * context.hidden
        self._in = RootedRows(4 if request.is_first else self._row_bytes)
        self._out = RootedRows(4 if request.is_last else self._row_bytes)
        #: Of a last stage: what its last layer gave where it drew, a row for each token of `_out`.
        self._states = RootedRows(self._row_bytes)
        #: What every position gave at each boundary inside this stage.
        spans = job.place.layers.spans(context.span_layers)
        self._inner = [RootedRows(self._row_bytes) for _ in spans[1:]]
        #: Rows at most and the group before are known with the first message that says them.
        self._spec = RequestSpec(
            self.key, ring=job.plan_hash, layers=job.place.layers, owner=job.order.requester
        )
        self._trace: list[int] = []  # goes with the next frame or token
        self._done_rows = 0  # rows that the compute thread remembers
        self._sent_rows = 0  # rows of ours that the next stage has or is about to have
        self._told: wire.Carried | None = None  # of the next stage, until we could compare
        self._again = False  # the next frame replaces rows that the next stage has
        self._is_taken = False  # another order goes on with it
        self._has_end = False  # all its tokens are known
        self.is_unwanted = False  # its client wants no more of it
        self.rows_seen = 0  # the most that were here, guesses too
        self._next: tuple[int, int] | None = None  # row and token that wait to be paid for
        self._carry: wire.Carry | None = None  # what the client's continuation lets us take over
        self._carried: wire.Carried | None = None
        self._word: t.SignedWord | None = None  # of the stage before, about all rows that came
        self._answer = t.ZERO_HASH, 0  # at a first stage: root and tokens of the last one's word
        self._origin: wire.Origin | None = None  # told on to the next stage
        self._has_told_origin = False
        self._span: Span | None = None
        self._sampling_span: Span | None = None
        self._log = log.bind(
            job=short(Kind.JOB, job.job_id), order=job.order_hash[:10], request=request.index
        )
        self._guesser: Guesser | None = None  # at both ends of a pipeline, once the prompt is known
        self._boldness: Boldness | None = None
        self._guesses: deque[int] = deque()  # fed by this first stage and not heard of yet
        self._guessed = self._guessed_right = 0  # of the last step that carried guesses
        self._task = asyncio.create_task(self._work(), name=f"request {request.index}")

    @property
    def index(self) -> int:
        return self.request.index

    @property
    def key(self) -> Key:
        return (self.job.order_hash, self.index)

    @property
    def tokens(self) -> list[int]:
        """What a last stage has sampled so far."""
        if not self.request.is_last:
            return []
        return token_ids(self._out.data(0, len(self._out)))

    # --- what arrives ---

    def named(self, origin: wire.Origin | None) -> None:
        """What others call this request; the first word counts."""
        if origin is None or self._origin is not None:
            return
        self._origin = origin
        self._log = self._log.bind(request_id=origin.request)
        stage = self.job.stage
        self._span = tracing.begin(
            f"stage {stage}",
            origin.traceparent,
            request_id=origin.request,
            layers=f"{self.job.place.layer_from}:{self.job.place.layer_to}",
        )
        self._log.debug("request begins", stage=stage)

    def submit(
        self,
        prompt: Sequence[int],
        sampling: t.SamplingParams,
        grammar: Grammar | None = None,
    ) -> None:
        """The client's part, already checked against the order. Raises CheckFailed.

        `grammar` is what the answer of a last stage must follow, as it stands at its beginning.
        """
        self.request = request_state.submit(self.request, len(prompt), sampling.max_new_tokens)
        self.prompt, self._sampling = tuple(prompt), sampling
        if self.request.is_last:
            self._ending = self._context.ending(sampling, prompt)
            eos_ids = self._context.eos_ids
            self._sampler = _sampler(sampling, self.index, prompt, eos_ids, grammar)
        self._guesser, self._boldness = _guesser(prompt)
        self._spec = replace(self._spec, most_rows=len(prompt) + sampling.max_new_tokens)
        self._submitted.set()
        self._touch()

    def begin(self, *, continues: bool = False, old: RequestRun | None = None) -> None:
        """A first stage has room for this request now. Raises CheckFailed.

        One that `continues` another order's takes over what is left of `old`, as far as its tokens
        are the same.
        """
        self.request = request_state.start(self.request)
        self._touch()
        start, decoded_from = 0, len(self.prompt)
        if continues:
            assert self._sampling is not None, "submitted requests have sampling parameters"
            decoded_from = max(0, len(self.prompt) - self._sampling.first_step)
            most = carried_rows(len(self.prompt), decoded_from)
            if old is not None:
                most = min(most, _equal_rows(old.tokens_fed, self.prompt))
                most = carried_rows(most + 1, decoded_from)
            start = self._take_over(
                old,
                wire.Carry(
                    order_hash=self.job.order_hash,
                    request=self.index,
                    rows=most,
                    decoded_from=decoded_from,
                ),
            )
        for first, last in replay_chunks(start, len(self.prompt), decoded_from):
            self._feed_tokens(first, self.prompt[first:last])

    def carry(self, message: wire.Carry, old: RequestRun | None) -> wire.Carried:
        """What of a continued request is here, for the stage before. Raises CheckFailed."""
        if self._carried is None:
            rows = self._take_over(old, message)
            self.request = request_state.carry(self.request, rows)
            self._carried = wire.Carried(
                rows=rows, root=commit.to_hex(self._in.root(len(self._in)))
            )
            self._touch()
        return self._carried

    def take_rows(self, message: wire.Activations, payload: memoryview) -> None:
        """Rows from the stage before. A fault of theirs fails the request."""
        self._guarded(self._take_rows, message, payload)

    def take_token(self, message: wire.Token) -> None:
        """A token from the last stage, at the first."""
        self._guarded(self._take_token, message)

    def take_end(self, tokens_in: int, tokens_out: int, word: t.SignedWord | None) -> None:
        """The request is over: commit to it and sign, as the stage before gave its word."""
        self._guarded(self._take_end, tokens_in, tokens_out, word)

    def wait(self) -> None:
        """It waits for memory here: its client and peers are told that nothing is lost."""
        message = wire.Waiting(
            order_hash=self.job.order_hash, request=self.index, stage=self.job.stage
        )
        self.stays()
        self._wires.to_client(message)
        after = self._wires.to_next or self._wires.to_first
        if after is not None:
            after.put(message)

    def makes_room(self) -> None:
        """Nobody on this ring waits for what has left of it: it may never come home."""
        self._context.compute.heard(self.key, None, is_last=True)

    def stays(self) -> None:
        """Nothing moves it, and all is well."""
        self._touch()

    def cancel(self) -> None:
        """The client wants no more: what has begun ends with its next token, and is signed for.

        INVARIANT: no client ends work that was begun so that nobody is bound by it.
        """
        self.is_unwanted = True
        is_stranded = self.request.phase is RequestPhase.STRANDED
        if is_stranded or (self.request.is_first and self.has_not_begun):
            self.give_up()

    @property
    def has_not_begun(self) -> bool:
        """Whether nothing was done for it here."""
        return self.request.phase is RequestPhase.WAITING

    def give_up(self) -> None:
        """Forget it: nobody pays for it any more, or nothing comes of it."""
        self._leave(request_state.cancel(self.request))

    def stop(self) -> None:
        """Those after us go on no more; what has its end waits only for its signature."""
        if not self._has_end and not self.request.finish:
            self.strand()

    def strand(self, error: HeadraceError | None = None, lost: str | None = None) -> None:
        """Stop and keep what was done: neighbour `lost` is silent, or another order goes on."""
        after = request_state.strand(self.request)
        if after is None:
            return
        self.request = after
        self._touch()
        self.makes_room()
        if asyncio.current_task() is not self._task:
            self._task.cancel()
        if error is None:
            return
        self._context.count("request_stranded")
        self._log.warning("request stranded", error=str(error), lost=lost)
        self.stranding = failed(self.job, self.index, error.code, str(error), lost)
        self._wires.to_client(self.stranding)

    async def cut(self, tokens_in: int, tokens_out: int) -> t.SignedReceipt:
        """Sign up to the last token that the client holds of a broken pipeline, or CheckFailed."""
        self.strand()
        # What was guessed counts as far as the client holds the tokens.
        rows = min(tokens_in + tokens_out - 1, self._done_rows, len(self._in))
        after = request_state.cut(self.request, tokens_in, tokens_out, max(self._kept_rows, rows))
        if after is None:
            raise CheckFailed(f"request {self.index} is not cut", f"it is {self.request.phase}")
        await self._write_down(tokens_in, tokens_out)
        signed = await self._context.book.sign_over(self.job, [self.index])
        if not self.request.is_over:
            self._leave(after)
        return signed

    def fail(self, error: HeadraceError) -> None:
        """It cannot go on here: the client is told, the memory freed."""
        after = request_state.fail(self.request)
        if after is None:
            return
        self._context.count(f"request_failed_{error.code}")
        self._log.warning("request failed", error=str(error))
        self._wires.to_client(failed(self.job, self.index, error.code, str(error)))
        self._leave(after)

    async def closed(self) -> None:
        """Wait until the run's task is gone."""
        await asyncio.gather(self._task, return_exceptions=True)

    # --- checks ---

    def _guarded(self, move: Callable[..., None], *args: object) -> None:
        try:
            move(*args)
        except _BrokenWord as broken:  # nothing is signed over it but what the client still asks
            self.strand(broken.reason, broken.by)
        except PeerUnreachable as error:  # the stage before is there, what it sent is not
            self.strand(error)
        except HeadraceError as error:
            self.fail(error)

    def _take_rows(self, message: wire.Activations, payload: memoryview) -> None:
        if message.again:
            self._rewind(message.start)
        self.named(message.origin)
        after = request_state.rows_arrive(
            self.request, message.start, message.rows, message.guessed
        )
        if after is None:
            self._context.count("rows_repeated")
            return
        sent_bytes = message.rows * self._row_bytes // (2 if message.halved else 1)
        if len(payload) != sent_bytes:
            raise MalformedMessage(
                f"activations of {len(payload)} bytes",
                f"{message.rows} rows{' of halves' * message.halved} have {sent_bytes}",
            )
        data = bf16_rows.whole(payload) if message.halved else bytes(payload)
        self._keep_in(message.start)
        self._in.append(data)
        self.request = after
        self._touch()
        if message.most_rows or message.group:
            self._spec = replace(
                self._spec,
                most_rows=message.most_rows or self._spec.most_rows,
                group_before=(message.group - 1 if message.group else self._spec.group_before),
            )
        self._inbox.put_nowait(
            _Feed(message.start, message.rows, data, self._trace_of(message), message.guessed)
        )

    def _trace_of(self, message: wire.Activations) -> list[int]:
        """What the stages before have spent; nothing where it is longer than theirs can be.

        Ours is added to it: no peer could read one that is too long, nor what shares its frame.
        """
        trace = message.trace or []
        return trace if len(trace) <= TRACE_NUMBERS * self.job.stage else []

    def _keep_in(self, rows: int) -> None:
        """Guesses from row `rows` on are void. Raises CheckFailed before any peer can know that."""
        if rows >= len(self._in):
            return
        if self._done_rows < len(self._in):
            raise CheckFailed("guesses are void too soon", f"row {rows} has not left this stage")
        self._in.cut(rows)
        self._done_rows = rows

    def _rewind(self, first_row: int) -> None:
        until = self._carry.rows if self._carry is not None else -1
        after = request_state.rewind(self.request, first_row, until)
        if after is None or first_row >= len(self._in):
            return
        self._context.count("rows_replaced")
        self.request = after
        self._in.cut(first_row)
        self._inbox.put_nowait(_Rewind(first_row))

    def _take_word(
        self, stage: int, root: bytes, tokens: tuple[int, int], word: t.SignedWord | None
    ) -> None:
        """Keep what another stage signed of the rows that it sent, which came with this root.

        Raises _BrokenWord where it is withheld or of other rows: what was done here is kept.
        """
        by = self.job.plan[stage].operator
        came = commit.to_hex(root)
        # What came to that stage is its own affair.
        in_root = t.ZERO_HASH if word is None else word.word.in_root
        answer_root = t.ZERO_HASH if word is None or stage else word.word.answer_root
        inner_root = t.ZERO_HASH if word is None else word.word.inner_root
        leaf = t.RequestLeaf(self.index, in_root, came, *tokens, inner_root)
        spans = self.job.plan[stage].layers.spans(self._context.span_layers)
        said = word_of(self.job.order_hash, self.job.plan_hash, stage, leaf, answer_root)
        if (
            word is None
            or word.word != said
            or not is_inner_root(word.inner, said.inner_root, spans)
            or not signing.is_signed_by(self._context.book.domain, said, word.signature, by)
        ):
            given = "none came"
            if word is not None:
                given = f"it is of rows with root {word.word.out_root}"
                given += f" and {len(word.inner)} of {len(spans) - 1} roots inside it"
            what = f"the word of stage {stage} does not fit"
            why = f"{given}, those that arrived have {came}"
            raise _BrokenWord(PeerUnreachable(what, why), by)
        self._word = word

    def _take_answer(self, message: wire.Token, prompt_tokens: int, produced: int) -> None:
        """The last stage's word over the whole answer, at a first stage that is another one."""
        drawn = bytes(self._in.data(prompt_tokens, prompt_tokens + produced - 1))
        drawn += commit.token_bytes((message.token,))
        states_root = commit.unhex(message.states_root or t.ZERO_HASH)
        root = commit.answer_root(commit.rows_root(drawn, 4), states_root)
        last = len(self.job.plan) - 1
        self._take_word(last, root, (prompt_tokens, produced), message.word)
        self._answer = commit.to_hex(root), produced

    def _take_token(self, message: wire.Token) -> None:
        after = request_state.token_arrives(self.request, message.step, message.finish)
        if after is None:
            self._context.count("tokens_repeated")
            return
        if message.token >= self._context.vocab:
            raise CheckFailed(
                "the token is refused", f"id {message.token} is no token of the model"
            )
        fed_at, self.request = self.request.rows, after
        self._touch()
        self._context.compute.heard(self.key, message.trace, is_last=bool(message.finish))
        if not message.finish:
            self._heard(fed_at, message.token)
            return
        if not self.request.is_last:
            self._take_answer(message, after.prompt_tokens, after.produced)
        self._take_end(after.prompt_tokens, after.produced)

    def _take_end(self, tokens_in: int, tokens_out: int, word: t.SignedWord | None = None) -> None:
        if request_state.end(self.request, tokens_in, tokens_out) is None:
            self._context.count("ends_repeated")
            return
        if not self.request.is_first:
            root = self._in.root(tokens_in + tokens_out - 1)
            self._take_word(self.job.stage - 1, root, (tokens_in, tokens_out), word)
        self._touch()
        self._has_end = True
        self._inbox.put_nowait(_End(tokens_in, tokens_out))

    @property
    def is_held(self) -> bool:
        """Whether it waits for an acknowledgement."""
        return self._next is not None

    def go_on(self) -> None:
        """Feed what waits for an acknowledgement, if that is here."""
        if self._next is None or self.request.is_late:
            return
        row, token = self._next
        assert self._wires.affords is not None, "only a first stage holds anything back"
        if self._wires.affords(self, row + 1):
            self._next = None
            self._feed_on(row, token)

    def _heard(self, row: int, token: int) -> None:
        """The newest token, which is fed at its row unless it was guessed."""
        assert self._guesser is not None and self._boldness is not None, "a submitted request"
        if not self.request.is_last:  # one that is both ends has pushed it when it was drawn
            self._guesser.push(token)
        if self._guesses and self._guesses[0] == token:
            self._guesses.popleft()
            self._guessed_right += 1
            return
        self._guesses.clear()
        if self._guessed:
            self._boldness.heard(self._guessed_right, self._guessed)
        self._keep_in(row)
        self._next = (row, token)
        self.go_on()

    def _feed_on(self, row: int, token: int) -> None:
        """Feed the newest token, and guesses to follow."""
        assert self._guesser is not None and self._boldness is not None, "a submitted request"
        left = self.request.max_new_tokens - self.request.produced - 1
        most = min(self._boldness.guesses, left, self._room_for_guesses())
        guesses = self._guesser.guess(most) if most > 0 else []
        self._guesses.extend(guesses)
        self._guessed, self._guessed_right = len(guesses), 0
        self._feed_tokens(row, (token, *guesses), guessed=len(guesses))

    def _room_for_guesses(self) -> int:
        """Guesses for the next step: any number with few requests here, else what delays none."""
        context = self._context
        if not context.guesses:
            return 0
        if context.compute.requests <= GUESS_FREELY:
            return wire.MAX_GUESSED
        return context.compute.spare_rows(self.key)

    def _feed_tokens(self, first_row: int, ids: Sequence[int], *, guessed: int = 0) -> None:
        self._in.append(commit.token_bytes(ids))
        self._inbox.put_nowait(_Feed(first_row, len(ids), ids, [], guessed))

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
                if isinstance(item, _TakeOver):
                    await self._begin_with(item)
                elif isinstance(item, _Rewind):
                    await self._forget_from(item.first_row)
                elif self.request.is_last:
                    await self._step_of_last(item)
                else:
                    await self._step(item)
        except HeadraceError as error:
            self.fail(error)
        except Exception as error:
            self._log.exception("request broke")
            self.fail(HeadraceError("this stage has a bug", f"{type(error).__name__}: {error}"))

    async def _step(self, item: _Feed) -> None:
        assert self._wires.to_next is not None, "only the last stage has no next one"
        await self._wires.to_next.wait_for_room()
        inside: list[bytes] = []
        out = await self._context.compute.rows(
            self._spec,
            item.data,
            first=item.first_row,
            trace=item.trace,
            as_decodes=self._as_decodes(item.first_row, item.rows, item.guessed),
            guessed=item.guessed,
            inside=inside,
        )
        if self.request.is_late:
            return
        self._keep_inner(item.first_row, inside)
        self._trace = item.trace
        if item.first_row < len(self._out):  # guesses that are void
            self._out.cut(item.first_row)
            self._sent_rows = min(self._sent_rows, item.first_row)
        self._out.append(out)
        self._done_rows = len(self._out)
        if item.guessed:
            self._send(item.first_row, self._done_rows, item.guessed)
            self._sent_rows = self._done_rows
        else:
            self._emit()

    def _emit(self) -> None:
        """Send on what the next stage has not got."""
        done, told = len(self._out), self._told
        if told is not None:
            if done < told.rows:
                return
            same = commit.to_hex(self._out.root(told.rows)) == told.root
            self._sent_rows, self._again = (told.rows, False) if same else (0, told.rows > 0)
            self._told = None
        decoded_from = self._carry.decoded_from if self._carry is not None else done
        for start, end in replay_chunks(self._sent_rows, done, decoded_from):
            self._send(start, end)
        self._sent_rows = done

    def _send(self, start: int, end: int, guessed: int = 0) -> None:
        again, self._again = self._again, False
        trace, self._trace = self._trace, []
        origin = None if self._has_told_origin else self._origin
        self._has_told_origin = True
        assert self._wires.to_next is not None, "only the last stage has no next one"
        data = self._out.data(start, end)
        halved = bf16_rows.try_halve(data)
        self._wires.to_next.put(
            wire.Activations(
                order_hash=self.job.order_hash,
                request=self.index,
                start=start,
                rows=end - start,
                halved=halved is not None,
                again=again,
                guessed=guessed,
                most_rows=0 if start else self._spec.most_rows,
                group=0 if start else self._group_here(),
                trace=trace or None,
                origin=origin,
            ),
            data if halved is None else halved,
            self._lost_next,
        )

    async def _step_of_last(self, item: _Feed) -> None:
        if item.guessed:
            await self._draw_along(item)
            return
        end = item.first_row + item.rows
        prompt_tokens = self.request.prompt_tokens
        if item.first_row < prompt_tokens < end or (item.rows > 1 and end > prompt_tokens):
            raise CheckFailed("activations are refused", "a frame reaches past the prompt's end")
        inside: list[bytes] = []
        if end < prompt_tokens:
            await self._context.compute.feed(
                self._spec,
                item.data,
                first=item.first_row,
                as_decodes=self._as_decodes(item.first_row, item.rows),
                inside=inside,
            )
            self._keep_inner(item.first_row, inside)
            self._done_rows = end
            return
        assert self._sampler is not None, "a submitted request has a sampler at the last stage"
        drawn = await self._context.compute.token(
            self._spec,
            item.data,
            self._sampler,
            first=item.first_row,
            trace=item.trace,
            as_decodes=self._as_decodes(item.first_row, item.rows),
            inside=inside,
        )
        if self.request.is_late:
            return
        self._keep_inner(item.first_row, inside)
        self._done_rows = end
        if self._span is not None and self._sampling_span is None:
            self._sampling_span = tracing.begin("sampling", self._span)
        await self._take_drawn(drawn, item.trace)

    async def _draw_along(self, item: _Feed) -> None:
        """A row and guesses after it: as many tokens as were guessed right, and one more."""
        assert self._sampler is not None and self._guesser is not None, "a submitted request"
        guesses = self._guesser.guess(item.guessed)
        if item.rows != item.guessed + 1 or len(guesses) != item.guessed:
            raise CheckFailed("activations are refused", "nothing can have been guessed here")
        inside: list[bytes] = []
        draws = await self._context.compute.tokens(
            self._spec,
            item.data,
            self._sampler,
            guesses,
            first=item.first_row,
            trace=item.trace,
            as_decodes=self._as_decodes(item.first_row, item.rows, item.guessed),
            inside=inside,
        )
        if self.request.is_late:
            return
        self._keep_inner(item.first_row, inside)
        self._done_rows = item.first_row + item.rows
        for number, drawn in enumerate(draws):
            if number and not self.request.is_first:
                self.request = request_state.guess_fits(self.request)
            await self._take_drawn(drawn, item.trace if not number else [])
            if self.request.finish:
                break
        self.request = request_state.guesses_end(self.request)

    def _keep_inner(self, first_row: int, inside: Sequence[bytes]) -> None:
        """Rows from this one on, at each boundary inside; what was there before is void.

        Raises CheckFailed where rows before them are missing: others would be signed.
        """
        for kept, rows in zip(self._inner, inside, strict=True):
            if len(kept) < first_row:
                why = f"{len(kept)} of {first_row} rows are kept"
                raise CheckFailed("the request stops: rows inside this stage are missing", why)
            kept.cut(first_row)
            kept.append(rows)

    async def _take_drawn(self, drawn: DrawnToken, trace: list[int]) -> None:
        """The next token is drawn."""
        assert self._sampler is not None and self._guesser is not None, "a submitted request"
        assert self._ending is not None, "and knows where it ends"
        choice = drawn.choice
        step, token = self.request.produced, choice.token
        self._sampler.take(token)
        self._guesser.push(token)
        self.request = request_state.produce(
            self.request,
            is_eos=self._ending.push(token) == "stop",
            is_unwanted=self.is_unwanted,
        )
        self._out.append(commit.token_bytes((token,)))
        self._states.append(drawn.state)
        self._touch()
        await self._tell_token(
            wire.Token(
                order_hash=self.job.order_hash,
                request=self.index,
                step=step,
                token=token,
                finish=self.request.finish,  # type: ignore[arg-type]
                logprob=choice.logprob,
                top=choice.top,
            ),
            trace,
        )

    async def _tell_token(self, message: wire.Token, trace: list[int]) -> None:
        self._wires.to_client(message)
        message = msgspec.structs.replace(message, trace=trace or None, logprob=None, top=())
        if self._wires.to_first is not None:
            if message.finish:
                tokens, states_root = len(self._out), self._states.root(len(self._out))
                said = await self._write_down(self.request.prompt_tokens, tokens)
                message = msgspec.structs.replace(
                    message,
                    states_root=commit.to_hex(states_root),
                    word=self._context.book.word(self.job, *said),
                )
            self._wires.to_first.put(message, b"", self._lost_first)
        else:
            self._take_token(message)

    async def _finish(self, item: _End) -> None:
        # On disk before its word leaves: a machine that comes back says nothing else.
        said = await self._write_down(item.tokens_in, item.tokens_out)
        if self._wires.to_next is not None:
            self._wires.to_next.put(
                wire.FinishRequest(
                    order_hash=self.job.order_hash,
                    request=self.index,
                    tokens_in=item.tokens_in,
                    tokens_out=item.tokens_out,
                    word=self._context.book.word(self.job, *said),
                )
            )
        signed = await self._context.book.sign_over(self.job, [self.index])
        self._wires.to_client(wire.Receipt(signed=signed))
        self._leave(request_state.end(self.request, item.tokens_in, item.tokens_out))

    async def _write_down(
        self, tokens_in: int, tokens_out: int
    ) -> tuple[t.RequestLeaf, str, list[str]]:
        """What is signed of this request with these tokens; rows beyond them are left out.

        Returns the leaf, of a first stage the root of the answer, else zero, and the roots inside.

        Raises CheckFailed where it was written down otherwise before.

        INVARIANT: a request has one leaf here for ever, so its word and every receipt agree.
        """
        last = self.request.is_last
        rows_in = tokens_in + tokens_out - 1
        rows_out = tokens_out if last else rows_in
        out_root, states = self._out.root(rows_out), None
        if last:
            states = Rooted(self._states.root(tokens_out), _boundary(self._states, tokens_out))
            out_root = commit.answer_root(out_root, states.root)
        answer_root, answered = self._answer
        if not self.request.is_first:
            answer_root = t.ZERO_HASH
        elif last:
            answer_root = commit.to_hex(out_root)
        elif answered != tokens_out:
            answer_root = t.ZERO_HASH  # the last stage was lost, or said so of more tokens
        leaf = t.RequestLeaf(
            request_index=self.index,
            in_root=commit.to_hex(self._in.root(rows_in)),
            out_root=commit.to_hex(out_root),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            inner_root=commit.to_hex(commit.inner_root([r.root(rows_in) for r in self._inner])),
        )
        book = self._context.book
        if self._word is not None:
            await book.disk(book.store.put_word, self._word)
        await book.finish(
            self.job,
            leaf,
            _boundary(self._in, rows_in),
            _boundary(self._out, rows_out),
            states,
            answer_root,
            [Rooted(r.root(rows_in), _boundary(r, rows_in)) for r in self._inner],
        )
        self.counts = (tokens_in, tokens_out)
        return leaf, answer_root, [commit.to_hex(r.root(rows_in)) for r in self._inner]

    # --- going on with what another order began ---

    @property
    def tokens_fed(self) -> list[int]:
        """What a first stage has run so far."""
        return token_ids(self._in.data(0, self._kept_rows)) if self.request.is_first else []

    @property
    def has_memory(self) -> bool:
        """Whether the compute thread knows rows of it that no other request has taken over."""
        return self._kept_rows > 0 and not self._is_taken

    @property
    def _kept_rows(self) -> int:
        """Rows that are whole here and count: taken in, computed, and handed on."""
        return min(self._done_rows, len(self._in), self.request.rows)

    def _take_over(self, old: RequestRun | None, carry: wire.Carry) -> int:
        """Make what is left of `old` ours, as far as the message allows; returns its rows."""
        self._carry = carry
        rows = 0
        if old is not None:
            old.strand()
            rows = min(old._kept_rows, carry.rows)
            rows = carried_rows(rows + 1, carry.decoded_from)
        if old is not None and rows:
            self._in = old._in.prefix(rows)
            if not self.request.is_last:
                self._out = old._out.prefix(rows)
            self._inner = [inner.prefix(rows) for inner in old._inner]
            self._done_rows, old._is_taken = rows, True
            self._context.count("requests_carried_over")
        self._inbox.put_nowait(_TakeOver(old.key if old is not None and rows else None, rows))
        return rows

    async def _begin_with(self, item: _TakeOver) -> None:
        if item.old is not None:
            held = await self._context.compute.carry(
                item.old, self.key, item.rows, ring=self.job.plan_hash
            )
            await self._run_again(held, item.rows)
        if self._wires.ask_next is None:
            return
        assert self._carry is not None, "set before this item was put"
        try:
            answer = await self._wires.ask_next(self._carry)
        except PeerUnreachable as error:
            self._lost_next(error)
            return
        self._told = answer if isinstance(answer, wire.Carried) else None
        self._emit()

    async def _forget_from(self, first_row: int) -> None:
        """What comes after these rows is replaced by the stage before; so is what we made of it."""
        if first_row >= self._done_rows:
            return
        held = await self._context.compute.carry(
            self.key, self.key, first_row, ring=self.job.plan_hash
        )
        self._done_rows = first_row
        for inner in self._inner:
            inner.cut(first_row)
        if not self.request.is_last:
            self._out.cut(first_row)
            if self._sent_rows > first_row:
                self._sent_rows, self._again = first_row, True
        await self._run_again(held, first_row)

    async def _run_again(self, start: int, end: int) -> None:
        """Run rows again that we have and the compute thread no longer remembers."""
        assert self._carry is not None, "only continued requests are carried"
        for first, last in replay_chunks(start, end, self._carry.decoded_from):
            data = self._in.data(first, last)
            again = token_ids(data) if self.request.is_first else data
            put = self._context.compute.feed if self.request.is_last else self._context.compute.rows
            as_decodes = self._as_decodes(first, last - first)
            await put(self._spec, again, first=first, as_decodes=as_decodes)

    def _as_decodes(self, first_row: int, rows: int, guessed: int = 0) -> bool:
        """Whether these rows were decoded one at a time, so that they get the same bits again."""
        carry = self._carry
        decoded = carry is not None and rows > 1 and first_row >= carry.decoded_from
        return decoded or guessed > 0

    def _group_here(self) -> int:
        """A number for those that leave here, or came, as one group; 0 without groups."""
        group = self._context.compute.group(self.key)
        if group is None:
            group = self._spec.group_before
        return 0 if group is None else group + 1

    def _lost_next(self, error: HeadraceError) -> None:
        self.strand(error, self.job.plan[self.job.stage + 1].operator)

    def _lost_first(self, error: HeadraceError) -> None:
        self.strand(error, self.job.plan[0].operator)

    # --- the end ---

    def _touch(self) -> None:
        self.seen_at = self._context.monotonic()

    def _leave(self, after: Request | None) -> None:
        if after is None:
            return
        self.request = after
        if asyncio.current_task() is not self._task:
            self._task.cancel()
        self._told_over()
        self._wires.is_over(self)

    def _told_over(self) -> None:
        """The last word about it in the log, and the end of its spans."""
        phase, tokens_out = str(self.request.phase), self.request.produced
        self._log.info(
            "request over",
            stage=self.job.stage,
            phase=phase,
            rows=self._done_rows,
            tokens_out=tokens_out,
        )
        tracing.end(self._sampling_span, tokens=tokens_out)
        tracing.end(self._span, phase=phase, rows=self._done_rows)


class _BrokenWord(Exception):
    """The word of stage `by` is withheld, or is of other rows than came."""

    def __init__(self, reason: PeerUnreachable, by: str) -> None:
        super().__init__(str(reason))
        self.reason, self.by = reason, by


def _sampler(
    sampling: t.SamplingParams,
    index: int,
    prompt: Sequence[int],
    eos_ids: frozenset[int],
    grammar: Grammar | None,
) -> Sampler:
    from core.engine.sampling.sampling import Sampler

    return Sampler(sampling, index, prompt, eos_ids, grammar)


def _guesser(prompt: Sequence[int]) -> tuple[Guesser, Boldness]:
    from core.engine.sampling.guesses import Boldness, Guesser

    return Guesser(prompt), Boldness()


def _boundary(rows: RootedRows, count: int) -> BoundaryRows:
    return BoundaryRows(rows.row_bytes, rows.data(0, count))


def _equal_rows(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def failed(
    job: StoredJob, index: int, code: str, reason: str, lost: str | None = None
) -> wire.RequestFailed:
    """What a client is told of a request that cannot go on here."""
    return wire.RequestFailed(
        order_hash=job.order_hash, request=index, code=code, reason=reason[:2000], lost=lost
    )


def token_ids(data: bytes | bytearray | memoryview) -> list[int]:
    """Ids of consecutive u32le rows. Raises ValueError for a broken length."""
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not whole token ids")
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
