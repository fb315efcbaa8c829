"""How is a stranger's web server asked, so that it neither leads us inside nor holds us up?

A name may stand for a public address when it is looked at and for a private one when it is dialled:
so it is looked up once for each connection, and what was looked at is dialled. A server may send a
byte now and then: so an answer's head, redirects included, has its time, and so has each part.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.request import getproxies

import httpcore2
import httpx2

from core.protocol.errors import Unreachable
from core.runtime.network.targets import is_public

#: From the question to the end of the answer's head, over all redirects.
HEAD_WITHIN_S = 60.0
_MOST_REDIRECTS = 10
_by: ContextVar[float] = ContextVar("by", default=math.inf)  # when this thread has waited enough


class WebClient:
    """Asks web servers, in threads. What a proxy of the environment dials is the proxy's matter."""

    def __init__(self, *, are_private_allowed: bool, timeout_s: float) -> None:
        hooks = [_refuse_private] if getproxies() and not are_private_allowed else []
        self._client = httpx2.Client(
            timeout=timeout_s, trust_env=True, event_hooks={"request": hooks}
        )
        direct: Any = self._client._transport
        for way in (direct, *self._client._mounts.values()):
            if way is not None:  # what is not for a proxy goes the direct way
                is_free = are_private_allowed or way is not direct
                way._pool._network_backend = _Dialler(are_private_allowed=is_free)

    @contextmanager
    def asked(self, url: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        """An answer whose head is here, and whose body is not yet.

        Raises Unreachable for an address that is not of the internet, and what httpx2 raises.
        """
        with within(HEAD_WITHIN_S):
            answer = self._answer(self._client.build_request("GET", url, headers=headers))
        with closing(answer):
            yield answer

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """Follows redirects and reads none of their bodies, which may be of any length."""
        for _ in range(_MOST_REDIRECTS):
            answer = self._client.send(request, stream=True)
            if answer.next_request is None:
                return answer
            answer.close()
            request = answer.next_request
        raise httpx2.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects", request=request)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Let what this thread asks of web servers inside take so long in all, however it comes."""
    before = _by.set(min(_by.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _by.reset(before)


def _left(timeout_s: float | None) -> float | None:
    left_s = _by.get() - time.monotonic()
    if left_s <= 0:
        raise httpcore2.ReadTimeout("it took too long in all")
    return timeout_s if left_s == math.inf else min(left_s, timeout_s or math.inf)


class _Dialler(httpcore2.SyncBackend):
    """Dials the addresses that it has looked at."""

    def __init__(self, *, are_private_allowed: bool) -> None:
        self._are_private_allowed = are_private_allowed

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *rest: Any, **named: Any
    ) -> httpcore2.NetworkStream:
        """Raises Unreachable where one address of the host is not of the internet."""
        addresses = _addresses(host, port)
        if not self._are_private_allowed:
            _refuse(host, addresses)
        for address in addresses:
            try:
                return _Stream(super().connect_tcp(address, port, _left(timeout), *rest, **named))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        raise Unreachable(f"cannot find {host}", why="it has no address")


class _Stream(httpcore2.NetworkStream):
    """A connection that waits no longer than its thread may."""

    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _refuse_private(request: httpx2.Request) -> None:
    host = request.url.host
    _refuse(host, _addresses(host, request.url.port or 443))


def _addresses(host: str, port: int) -> list[str]:
    """What a name stands for now, none twice. Raises Unreachable."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"cannot find {host}", why=str(error)) from error
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def _refuse(host: str, addresses: Iterable[str]) -> None:
    """A publisher that nobody knows says where a model is: not in our own network."""
    if not all(map(is_public, addresses)):
        raise Unreachable(
            f"{host} is not read from",
            why="it is no public address, and network.private_addresses is not set",
            next_step="set network.private_addresses if this network is your own",
        )
