"""What does a router promise, and what does it return?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from scheduler.dispatch.estimate import KvEstimate
from scheduler.fleet import Shard


class Route:
    """The stages of one request, for life. A router that decides hop by hop appends to ``stages`` as it goes."""

    __slots__ = ("hops", "is_complete", "prompt_tokens", "stages")

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.stages: list[Shard] = []
        #: The router's own handles of the hops taken, the one back to the coordinator included.
        self.hops: list[int] = []
        self.is_complete = False


class Router(Protocol):
    """Chooses a route per request.

    ``wants_seconds``: whether `note_seconds` is worth calling. ``waiting_at`` counts the steps that wait at a machine;
    whoever runs the router sets it.

    A refused request (`choose` returns None) has changed nothing: whoever asked keeps it and asks again when a request
    has ended or a machine has come. Loads and estimates are rolled back inside.
    """

    kv: KvEstimate
    wants_seconds: bool
    waiting_at: Callable[[str], int]

    def choose(self, prompt_tokens: int) -> Route | None:
        """A route for a request of so many prompt tokens, complete or with its first stage; None to wait."""

    def extend(self, route: Route) -> bool:
        """Add the next stage to an incomplete route, when its prompt leaves the last one; False: no machine can."""

    def note_step(self, route: Route) -> None:
        """One decode step sets out on the route."""

    def note_seconds(self, route: Route, stage: int, seconds: float) -> None:
        """A step took so long from leaving the stage before to leaving this one."""

    def finish(self, route: Route) -> None:
        """The request has ended, or was taken off this route."""

    def set_present(self, machine_id: str, is_present: bool) -> None:
        """A machine left (nobody new is sent there) or came back."""
