"""What waits in front of a stage?"""

from __future__ import annotations

from collections.abc import Hashable

from core.protocol.types import LayerRange


class StepError(ValueError):
    """A step was moved as no step can be: queued twice, cut outside itself, or empty."""


class RequestStep:
    """One pass of one request over (part of) a stage's layers.

    Tokens [first, end) of the request's positions, of which the last `guessed` are guesses of what
    comes. A decode step may be queued again after its batch, with its position moved by the owner;
    a prompt's step is cut into chunks by the batch former. ``layers`` is the part of the stage's
    slice that the request uses, None for all of it. ``leads`` says that a microbatch of the stage
    before begins with it. ``is_waiting`` belongs to the former.
    """

    __slots__ = ("end", "first", "guessed", "is_waiting", "job", "layers", "leads", "request")

    def __init__(
        self,
        request: Hashable,
        first: int = 0,
        end: int = 1,
        job: Hashable = None,
        layers: LayerRange | None = None,
        guessed: int = 0,
        leads: bool = False,
    ) -> None:
        if not 0 <= first < end:
            raise StepError(f"tokens [{first}, {end}) of request {request}")
        if not 0 <= guessed < end - first:
            raise StepError(f"{guessed} guesses among tokens [{first}, {end})")
        self.request = request
        self.first = first
        self.end = end
        self.job = job
        self.layers = layers
        self.guessed = guessed
        self.leads = leads
        self.is_waiting = False

    @property
    def tokens(self) -> int:
        return self.end - self.first

    @property
    def is_decode(self) -> bool:
        """Whether it computes the next token, with or without guesses: no part of a prompt."""
        return self.first > 0 and self.end - self.first - self.guessed == 1

    def cut(self, end: int) -> RequestStep:
        """Take [first, end) off the front as a step of its own; what stays begins at `end`."""
        if not self.first < end < self.end:
            raise StepError(f"cannot cut [{self.first}, {self.end}) at {end}")
        front = self.part(self.first, end)
        self.first = end
        return front

    def part(self, first: int, end: int) -> RequestStep:
        """A step of the same request over other tokens; a subclass with more overrides it."""
        return RequestStep(self.request, first, end, self.job, self.layers)

    def __repr__(self) -> str:
        return f"Step({self.request}, [{self.first}, {self.end}), job={self.job})"
