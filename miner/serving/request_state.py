"""How far is one request at one stage, and which move may come next?

    WAITING ── start ──▶ RUNNING ── end ──▶ FINISHED ◀─┐
       │                    └── strand ──▶ STRANDED ── cut
       └── cancel, fail, from anywhere ──▶ CANCELLED, FAILED

A first stage knows the prompt and waits for room; a later stage is RUNNING from its first row. A
stranded request has lost a neighbour: what was done is kept, and frames that still arrive are late.
Values and pure moves: a move gives the next value, None for a repeated or late message, or raises
CheckFailed for one that cannot be and PeerUnreachable for one before which others are missing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from core.protocol.errors import CheckFailed, ContextTooLong, PeerUnreachable


class RequestPhase(StrEnum):
    """Where a request stands; the last three are final."""

    WAITING = "waiting"
    RUNNING = "running"
    STRANDED = "stranded"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


OVER = frozenset({RequestPhase.FINISHED, RequestPhase.CANCELLED, RequestPhase.FAILED})
#: Rows that a stage may be ahead of the tokens that a client held when the pipeline broke.
CUT_ROWS = 16


class Request(msgspec.Struct, frozen=True):
    """One request as one stage sees it.

    `rows` entered this stage, `produced` tokens were sampled (first and last stage only).
    `prompt_tokens` and `max_new_tokens` are 0 until the client's Submit, and stay 0 in the middle
    of a pipeline. At a later stage `guessed` rows more are here that may turn out to be void.
    """

    index: int
    is_first: bool
    is_last: bool
    context: int
    phase: RequestPhase = RequestPhase.WAITING
    prompt_tokens: int = 0
    max_new_tokens: int = 0
    rows: int = 0
    produced: int = 0
    finish: str = ""
    guessed: int = 0

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def is_late(self) -> bool:
        """Whether it takes no frames any more."""
        return self.is_over or self.phase is RequestPhase.STRANDED

    @property
    def is_submitted(self) -> bool:
        return self.prompt_tokens > 0


def submit(request: Request, prompt_tokens: int, max_new_tokens: int) -> Request:
    """The client said what to do: once, at the ends of a pipeline. Raises ContextTooLong too."""
    if not (request.is_first or request.is_last):
        raise _illegal(request, "a middle stage is given no prompts")
    if request.is_over or request.is_submitted:
        raise _illegal(request, "it was submitted before")
    if prompt_tokens < 1 or max_new_tokens < 1:
        raise _illegal(request, "a prompt and its answer have at least one token each")
    if prompt_tokens + max_new_tokens > request.context:
        raise ContextTooLong(
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            context_tokens=request.context,
        )
    if request.rows > prompt_tokens:
        raise _illegal(
            request, f"{request.rows} rows arrived for a prompt of {prompt_tokens} tokens"
        )
    return replace(request, prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)


def start(request: Request) -> Request:
    """A first stage has room: the whole prompt is fed."""
    if (
        not request.is_first
        or not request.is_submitted
        or request.phase is not RequestPhase.WAITING
    ):
        raise _illegal(request, "it cannot be started now")
    return replace(request, phase=RequestPhase.RUNNING, rows=request.prompt_tokens)


def rows_arrive(request: Request, first_row: int, count: int, guessed: int = 0) -> Request | None:
    """The stage before sent rows [first_row, first_row + count), the last `guessed` of them
    guesses. None: they were here already. Guesses that came before count as far as `first_row`, the
    others are void.
    """
    if request.is_first:
        raise _illegal(request, "a first stage takes tokens, not activations")
    if request.is_late:
        return None
    end = first_row + count
    if end <= request.rows or (first_row < request.rows and end <= request.rows + request.guessed):
        return None
    if first_row > request.rows + request.guessed:
        raise PeerUnreachable(
            "the stage before", f"rows {request.rows} to {first_row - 1} were lost on the way"
        )
    if first_row < request.rows:
        raise _illegal(request, f"rows {first_row} to {end - 1} arrived after {request.rows} rows")
    if not 0 <= guessed < count:
        raise _illegal(request, f"{guessed} of {count} rows are said to be guesses")
    limit = most = request.context
    if request.is_last and request.is_submitted:
        limit = request.prompt_tokens + request.produced
        most = request.prompt_tokens + request.max_new_tokens
    if end - guessed > limit or end > most:
        raise _illegal(request, f"row {end - 1} arrived where at most {limit} rows can be")
    if guessed and request.is_last and first_row < max(1, request.prompt_tokens):
        raise _illegal(request, "nothing can be guessed before the answer begins")
    return replace(request, phase=RequestPhase.RUNNING, rows=end - guessed, guessed=guessed)


def guess_fits(request: Request) -> Request:
    """A last stage has drawn what was guessed: one of the guessed rows counts."""
    if not request.guessed:
        raise _illegal(request, "nothing is guessed")
    return replace(request, rows=request.rows + 1, guessed=request.guessed - 1)


def guesses_end(request: Request) -> Request:
    """A last stage drew something else, or all that was guessed: the other rows are void."""
    return replace(request, guessed=0)


def produce(request: Request, *, is_eos: bool, is_unwanted: bool = False) -> Request:
    """A last stage sampled the next token. `finish` says whether it was the last one, and why."""
    due = request.prompt_tokens + request.produced
    if not request.is_last or request.phase is not RequestPhase.RUNNING or request.finish:
        raise _illegal(request, "no token is due here")
    if not request.is_submitted or request.rows < due:
        raise _illegal(
            request, f"token {request.produced} needs {due} rows, there are {request.rows}"
        )
    produced = request.produced + 1
    finish = ""
    if is_eos:
        finish = "stop"
    elif produced >= request.max_new_tokens:
        finish = "length"
    elif is_unwanted:
        finish = "cancelled"
    return replace(request, produced=produced, finish=finish)


def token_arrives(request: Request, step: int, finish: str) -> Request | None:
    """A first stage hears token `step`, the next row unless it is the last. None: known."""
    if not request.is_first:
        raise _illegal(request, "only a first stage is told tokens")
    if request.is_late or (step < request.produced and not request.is_last):
        return None
    if request.phase is not RequestPhase.RUNNING:
        raise _illegal(request, "a token came before the prompt was fed")
    heard = request.produced - 1 if request.is_last else request.produced
    if step > heard and not request.is_last:
        raise PeerUnreachable("the last stage", f"token {heard} was lost on the way")
    if step != heard:
        raise _illegal(request, f"token {step} came where token {heard} is due")
    if not request.is_last:
        if request.finish:
            raise _illegal(request, "a token came after the last one")
        if not finish and step + 1 >= request.max_new_tokens:
            raise _illegal(request, f"more than {request.max_new_tokens} tokens are on their way")
    return replace(
        request, produced=step + 1, finish=finish, rows=request.rows if finish else request.rows + 1
    )


def end(request: Request, tokens_in: int, tokens_out: int) -> Request | None:
    """All is said; the counts must be those this stage saw. None: it is over already."""
    if request.is_late:
        return None
    if request.phase is not RequestPhase.RUNNING:
        raise _illegal(request, "it has not begun")
    rows = tokens_in + tokens_out - 1
    here = request.rows + request.guessed
    if tokens_in < 1 or tokens_out < 1 or not request.rows <= rows <= here:
        raise _illegal(
            request,
            f"{tokens_in} tokens in and {tokens_out} out are {rows} rows, "
            f"{request.rows} passed here",
        )
    if request.is_first or request.is_last:
        if not request.finish:
            raise _illegal(request, "its last token has not been produced")
        if (tokens_in, tokens_out) != (request.prompt_tokens, request.produced):
            raise _illegal(
                request,
                f"{tokens_in} tokens in and {tokens_out} out, counted here "
                f"{request.prompt_tokens} and {request.produced}",
            )
    return replace(request, phase=RequestPhase.FINISHED, rows=rows, guessed=0)


def carry(request: Request, rows: int) -> Request:
    """A later stage remembers the first `rows` rows from the order that this one continues."""
    if request.is_first or request.is_late or request.rows:
        raise _illegal(request, f"{rows} rows cannot be taken over now")
    return replace(request, phase=RequestPhase.RUNNING if rows else request.phase, rows=rows)


def rewind(request: Request, first_row: int, until: int) -> Request | None:
    """Other rows come from `first_row` on, among the `until` that may be carried over."""
    if request.is_late:
        return None
    if request.is_first or request.produced or request.rows > until + 1:
        raise _illegal(request, f"rows from {first_row} on cannot be replaced any more")
    return replace(request, rows=min(first_row, request.rows))


def strand(request: Request) -> Request | None:
    """A neighbour is lost, or another order goes on with it. None: it has stopped already."""
    return None if request.is_late else replace(request, phase=RequestPhase.STRANDED)


def cut(request: Request, tokens_in: int, tokens_out: int, kept: int) -> Request | None:
    """A broken pipeline's answer ends with the tokens the client holds.

    `kept` rows are whole here. None: it is over. No more may be cut off than can have been under
    way: what a stage did it is paid for.
    """
    if request.is_over:
        return None
    rows = tokens_in + tokens_out - 1
    if request.phase is not RequestPhase.STRANDED or tokens_in < 1 or tokens_out < 1 or rows > kept:
        raise _illegal(
            request, f"{kept} rows are kept, {tokens_in} tokens in and {tokens_out} out have {rows}"
        )
    if kept - rows > CUT_ROWS:
        raise _illegal(request, f"{kept} rows were done here, {rows} would be paid")
    if (request.is_first or request.is_last) and tokens_in != request.prompt_tokens:
        raise _illegal(request, f"its prompt has {request.prompt_tokens} tokens, not {tokens_in}")
    if request.is_last and not 0 <= request.produced - tokens_out <= CUT_ROWS:
        raise _illegal(request, f"{request.produced} tokens were produced, not {tokens_out}")
    return replace(request, phase=RequestPhase.FINISHED)


def cancel(request: Request) -> Request | None:
    """The client no longer wants it. None: it is over already."""
    return None if request.is_over else replace(request, phase=RequestPhase.CANCELLED)


def fail(request: Request) -> Request | None:
    """It cannot go on here. None: it is over already."""
    return None if request.is_over else replace(request, phase=RequestPhase.FAILED)


def _illegal(request: Request, why: str) -> CheckFailed:
    return CheckFailed(f"request {request.index} cannot go on ({request.phase})", why)
