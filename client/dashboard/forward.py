"""How do pages call the gateway's own API, with the owner's key, which is put in here?

The browser never holds a key, and a chat from a page is priced, limited and paid like any request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: What pages may ask for, by method; nothing else is passed on.
OPEN = {
    "GET": re.compile(r"/v1/(models|receipts/[\w.-]+|batches/[\w-]+|files/[\w-]+(/content)?)"),
    "POST": re.compile(r"/v1/(chat/completions|completions|files|batches|batches/[\w-]+/cancel)"),
}
PREFIX = "/api"
_DROPPED = {b"authorization", b"cookie"}
_KEPT = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "query_string",
    "client",
    "server",
    "extensions",
    "state",
)


def target_of(method: str, path: str) -> str | None:
    """The gateway's path behind `/api/v1/…`; None for what is not passed on."""
    wanted = path.removeprefix(PREFIX)
    rule = OPEN.get(method)
    return wanted if rule is not None and rule.fullmatch(wanted) else None


class Forwarded:
    """A response that is whatever the gateway answers, streamed as it comes."""

    def __init__(self, app: ASGIApp, target: str, token: str) -> None:
        self._app, self._target, self._token = app, target, token
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name not in _DROPPED]
        headers.append((b"authorization", f"Bearer {self._token}".encode()))
        path = {"path": self._target, "raw_path": self._target.encode(), "root_path": ""}
        inner = {key: scope[key] for key in _KEPT if key in scope} | path | {"headers": headers}
        await self._app(inner, receive, send)
