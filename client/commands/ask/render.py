"""How does a running batch look on a terminal: streaming text, a progress bar, and payments?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from client.orders.orders import route_text
from client.pipeline.pipeline import Match
from core.engine.sampling.stops import ShownText
from core.engine.weights.tokenizer import Tokenizer
from core.protocol import ids
from core.protocol.errors import HeadraceError
from core.protocol.types import Order

if TYPE_CHECKING:
    from core.runtime.commands.console import Run
    from core.runtime.commands.console import StageProgress as Progress


def printable(text: str) -> str:
    """Text as a terminal may show it: control characters, which could repaint it, become U+FFFD."""
    return "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 127 <= ord(c) < 160) else "�" for c in text
    )


class BatchView:
    """A `BatchWatcher` that prints. Text that is generated again is printed once.

    One answer is shown as it comes. Of several, which come at once, each is shown when it is whole.
    """

    def __init__(
        self,
        run: Run,
        tokenizer: Tokenizer,
        show_units: Callable[[int], str],
        stage: Progress,
        *,
        stream_text: bool,
        label: str = "",
    ) -> None:
        """`label` begins every line about orders and money."""
        self._run, self._show, self._stage = run, show_units, stage
        self._tokenizer, self._stream_text, self._label = tokenizer, stream_text, label
        self._streams: dict[str, _ShownStream] = {}
        self._stops: dict[str, tuple[str, ...]] = {}
        self._shown: dict[str, int] = {}
        self._lines: dict[str, str] = {}  # what was not printed yet
        self._is_alone = False
        self.finished = 0
        self.tokens = 0
        self.paid_units = 0
        self.began_s = time.monotonic()
        self.last_token_s = self.began_s

    @property
    def tokens_per_s(self) -> float:
        """Produced tokens over the time from the first submit to the last token."""
        elapsed_s = self.last_token_s - self.began_s
        return self.tokens / elapsed_s if elapsed_s > 0 else 0.0

    def stop_at(self, stops: Mapping[str, tuple[str, ...]]) -> None:
        """Show no answer past its stop strings, by custom id."""
        self._stops = dict(stops)

    def order_signed(self, order: Order, locked_units: int) -> None:
        self._is_alone = order.requests == 1 and not self._lines
        self._note(
            f"order    {order.requests} requests, {order.max_tokens_in} tokens in, at most "
            f"{order.max_tokens_out} out, locks {self._show(locked_units)}"
        )

    def job_opened(self, match: Match) -> None:
        self.began_s = time.monotonic() if not self.tokens else self.began_s
        self._note(f"matched  {ids.short(ids.Kind.JOB, match.job_id)}   {route_text(match.plan)}")

    def token(self, custom_id: str, step: int, token: int) -> None:
        if step < self._shown.get(custom_id, 0):
            return
        self._shown[custom_id] = step + 1
        self.tokens += 1
        self.last_token_s = time.monotonic()
        if self._stream_text:
            if custom_id not in self._streams:
                stops = self._stops.get(custom_id, ())
                self._streams[custom_id] = _ShownStream(self._tokenizer, stops)
            self._print(custom_id, self._streams[custom_id].push(token))
        self._stage.set(self.finished, f"{self.tokens} tokens  {self.tokens_per_s:.1f} tok/s")

    def request_finished(self, custom_id: str, finish: str) -> None:
        self.finished += 1
        if self._stream_text and custom_id in self._streams:
            self._print(custom_id, self._streams.pop(custom_id).finish(), is_last=True)
        self._stage.set(self.finished)

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None:
        kept = f"{finished} finished requests are kept, {left} are left"
        self._note(f"lost     {reason.what}: {reason.why}. {kept}")

    def acknowledged(self, match: Match, paid_units: int) -> None:
        self.paid_units += paid_units
        paid = f"{self._show(paid_units)} for what was delivered"
        self._note(f"paid     {ids.short(ids.Kind.JOB, match.job_id)}   {paid}")

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None:
        why = f"the matcher did not take the acknowledgement ({reason.what}: {reason.why})"
        job = ids.short(ids.Kind.JOB, match.job_id)
        self._note(f"unpaid   {job}   {why}; it pays from the receipts after the window")

    def _note(self, text: str) -> None:
        from rich.markup import escape

        self._run.note(escape(printable(self._label + text)))

    def _print(self, custom_id: str, text: str, *, is_last: bool = False) -> None:
        """Each line of text carries whose it is."""
        self._lines[custom_id] = self._lines.get(custom_id, "") + text
        if not (self._is_alone or is_last):
            return
        *whole, pending = _wrap(self._lines.pop(custom_id))
        if is_last and pending.strip():
            whole.append(pending)
        for line in whole:
            self._run.note(_line(custom_id, line))
        if not is_last:
            self._lines[custom_id] = pending


def _line(custom_id: str, text: str) -> str:
    from rich.markup import escape

    name = printable(custom_id)[:12]
    return f"  [cyan]{escape(f'{name:<12}')}[/cyan] {escape(printable(text).strip())}"


def _wrap(text: str, width: int = 90) -> list[str]:
    """Whole lines of at most `width` characters cut at spaces, then the unfinished rest."""
    lines = []
    while True:
        newline = text.find("\n")
        if 0 <= newline <= width:
            lines.append(text[:newline])
            text = text[newline + 1 :]
        elif len(text) > width:
            cut = text.rfind(" ", 0, width)
            cut = cut if cut > 0 else width
            lines.append(text[:cut])
            text = text[cut:].lstrip(" ")
        else:
            return [*[line for line in lines if line.strip()], text]


class _ShownStream:
    """The text of an answer as its tokens come, up to its stop strings."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._stream, self._shown = tokenizer.stream(), ShownText(stops)

    def push(self, token: int) -> str:
        return self._shown.push(self._stream.push(token))

    def finish(self) -> str:
        return self._shown.push(self._stream.finish()) + self._shown.finish()


class ChatView:
    """One answer of a conversation: bare text as it arrives, each token once."""

    def __init__(
        self, tokenizer: Tokenizer, write: Callable[[str], None], stops: Sequence[str] = ()
    ) -> None:
        self._stream, self._write = _ShownStream(tokenizer, stops), write
        self.tokens = 0
        self.began_s = time.monotonic()

    def token(self, custom_id: str, step: int, token: int) -> None:
        if step == self.tokens:
            self.tokens += 1
            self._write(printable(self._stream.push(token)))

    def request_finished(self, custom_id: str, finish: str) -> None:
        self._write(printable(self._stream.finish()))
