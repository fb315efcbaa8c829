"""Which request is worked on? Its id, made where it comes in, is in every log line of it.

The id is bound to the task (and so to its children) as `request_id`. Over HTTP it travels as
`X-Request-Id`, beside `traceparent`; between machines as `wire.Origin`. It says nothing about the
requester or the prompt, and no signature covers it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from core.protocol import wire
from core.runtime import logs, tracing

HEADER: Final = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def new_id() -> str:
    """A fresh id, such as `req_0f3a…`."""
    return f"req_{secrets.token_hex(12)}"


def current_id() -> str:
    """The id bound to this task, "" for none."""
    return str(logs.bound_now().get("request_id", ""))


def current() -> wire.Origin | None:
    """Id and span of this task as they travel to a stage; None where there is neither."""
    request_id, parent = current_id(), tracing.traceparent()
    return wire.Origin(request_id, parent) if request_id or parent else None


def headers() -> dict[str, str]:
    """The same as they travel over HTTP."""
    found = {HEADER: current_id(), "traceparent": tracing.traceparent()}
    return {name: value for name, value in found.items() if value}


@contextmanager
def within(origin: wire.Origin | None, name: str = "") -> Iterator[None]:
    """Work for a request: its id in every log line, and with a `name` a span below its own."""
    if origin is None:
        yield
        return
    with logs.bound(request_id=origin.request):
        if not name:
            yield
            return
        with tracing.span(name, origin.traceparent, request_id=origin.request):
            yield


class FollowRequest:
    """An ASGI layer that works for the request that the caller names; a malformed id is none."""

    def __init__(self, app: Callable[..., Awaitable[None]], names: dict[str, str]) -> None:
        """`names` are the paths that get a span, and what it is called."""
        self._app, self._names = app, names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = {
            name: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"x-request-id", b"traceparent")
        }
        request_id, parent = told.get(b"x-request-id", ""), told.get(b"traceparent", "")
        if not _ID.fullmatch(request_id):
            request_id = ""
        with logs.bound(request_id=request_id):
            name = self._names.get(scope["path"], "")
            if not name:
                await self._app(scope, receive, send)
                return
            with tracing.span(name, parent, request_id=request_id):
                await self._app(scope, receive, send)
