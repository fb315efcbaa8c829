"""How is the process that follows grammars asked, and started anew when a grammar ended it?"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from core.engine.sampling.grammar_child import frame, read_frame
from core.protocol.errors import GrammarInvalid, ModelUnsupported

#: A question takes milliseconds, and to start as long as it takes to read a tokenizer; a machine
#: may be busy.
_PATIENCE_S, _START_S = 5.0, 60.0


class Lost(Exception):
    """The process died over a question, or took too long; the next question starts another."""


class GrammarProcess:
    """The process for one model's tokens. Any thread may ask; questions wait for each other."""

    def __init__(self, tokenizer_file: Path, eos_ids: Collection[int]) -> None:
        """Raises ModelUnsupported for a model without end-of-text, or whose tokens are not known
        as bytes.
        """
        self._refused = "this model cannot follow a grammar"
        if not eos_ids:
            raise ModelUnsupported(self._refused, "it has no end-of-text token")
        self._file = tokenizer_file
        self.eos_ids = np.array(sorted(eos_ids), dtype=np.int64)
        self._lock, self._numbers = threading.Lock(), count(1)
        self._dropped = deque[int]()  # of answers that nobody follows any more
        self._process: subprocess.Popen[bytes] | None = None
        self._life = 1  # of the process: what one knew is gone with it
        with self._lock:
            size = self._started()
        #: A flag for each token: whether it ends an answer.
        self.ends = np.zeros(size, dtype=bool)
        self.ends[self.eos_ids] = True

    @cached_property
    def trial(self) -> GrammarProcess:
        """Another for the same tokens, in which no answer waits for what takes long."""
        return GrammarProcess(self._file, frozenset(self.eos_ids.tolist()))

    def new_number(self) -> int:
        """Of an answer."""
        return next(self._numbers)

    def open(self, number: int, text: str, said: Sequence[int]) -> int:
        """Begin an answer after these tokens; the life in which it is known.

        Raises Lost, GrammarInvalid for a grammar that cannot be read.
        """
        with self._lock:
            return self._opened(number, text, said)

    def attempt(self, text: str) -> None:
        """Read a grammar up to an answer's first token. Raises Lost, GrammarInvalid."""
        number = self.new_number()
        with self._lock:
            self._opened(number, text, ())
            self._asked("mask", number)
        self.drop(number)

    def mask(self, life: int, number: int) -> tuple[bytes | None, bool]:
        """As `Followers.mask`, of an answer that is known in this life. Raises Lost."""
        with self._lock:
            if life != self._life:
                raise Lost
            bits, may_end = self._asked("mask", number)
            return bits, may_end

    def whole(self, text: str, said: Sequence[int]) -> bool:
        """Whether these tokens are an answer. Raises Lost."""
        with self._lock:
            return bool(self._asked("whole", text, said))

    def tell(self, life: int, kind: str, *values: int) -> None:
        """What has no answer, of one that is known in this life; what was lost is told nothing."""
        with self._lock, suppress(Lost):
            if life == self._life:
                self._write(frame(kind, *values))

    def drop(self, number: int) -> None:
        """Nobody follows this answer any more. Safe where garbage is collected."""
        self._dropped.append(number)

    def _opened(self, number: int, text: str, said: Sequence[int]) -> int:
        why = self._asked("open", number, text, said)
        if why:
            raise GrammarInvalid(why[:500])
        return self._life

    def _asked(self, kind: str, *values: Any) -> Any:
        self._write(frame(kind, *values))
        (found,) = self._read()
        return found

    def _write(self, data: bytes) -> None:
        if self._process is None:
            self._started()
        assert self._process is not None and self._process.stdin is not None
        if self._dropped:
            numbers = [self._dropped.popleft() for _ in range(len(self._dropped))]
            data = frame("drop", *numbers) + data
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:
            self._end()
            raise Lost from None

    def _read(self, patience_s: float = _PATIENCE_S) -> Any:
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout
        try:
            # The pipe's buffer is empty: each answer is read to its end.
            if not select.select([pipe], [], [], patience_s)[0]:
                raise EOFError
            return read_frame(pipe)
        except (EOFError, OSError, ValueError):  # half a frame, too
            self._end()
            raise Lost from None

    def _started(self) -> int:
        """Start it; the number of its tokens. Raises ModelUnsupported."""
        ends = [str(i) for i in self.eos_ids.tolist()]
        module = "core.engine.sampling.grammar_child"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(self._file), *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[3],
        )
        try:
            size, why = self._read(_START_S)
        except Lost:
            size, why = 0, "it ended the program that reads it"
        if why:
            self._end()
            raise ModelUnsupported(self._refused, f"its {self._file.name}: {why}")
        return int(size)

    def _end(self) -> None:
        self._life += 1
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


@lru_cache(maxsize=8)
def grammar_process(tokenizer_file: Path, eos_ids: frozenset[int]) -> GrammarProcess:
    """The process for this tokenizer's tokens: one in a program. Raises ModelUnsupported."""
    return GrammarProcess(tokenizer_file, eos_ids)
