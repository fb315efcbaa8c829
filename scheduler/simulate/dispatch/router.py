"""What does a router promise, and what does it return?"""

from __future__ import annotations

from typing import Protocol

from scheduler.fleet.fleet import Shard
from scheduler.simulate.dispatch.estimate import KvEstimate


class RequestRoute:
    """The stages of one request, for life, and the router's own handles of the hops between them.

    The last hop leads back to the coordinator.
    """

    __slots__ = ("hops", "prompt_tokens", "stages")

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.stages: list[Shard] = []
        self.hops: list[int] = []


class Router(Protocol):
    """Chooses a route per request.

    A refused request (`choose` returns None) has changed nothing: the caller keeps it, and asks
    again when a request has ended or a machine has come. Loads and estimates are rolled back
    inside.
    """

    kv: KvEstimate

    def choose(self, prompt_tokens: int) -> RequestRoute | None:
        """A route for a request of that many prompt tokens; None to wait."""

    def note_step(self, route: RequestRoute) -> None:
        """One decode step sets out on the route."""

    def finish(self, route: RequestRoute) -> None:
        """The request has ended, or was taken off this route."""

    def set_present(self, machine_id: str, is_present: bool) -> None:
        """A machine left (no new request is sent there) or came back."""
