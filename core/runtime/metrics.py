"""What does a program count, and how does Prometheus read it?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from fastapi import FastAPI
    from prometheus_client import Counter, Gauge, Histogram

    from core.runtime.http_server import HttpServer

log = get_logger(__name__)
NAME = re.compile(r"headrace_[a-z0-9]+(_[a-z0-9]+)*")
LATENCY_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)

M = TypeVar("M")


class Metrics:
    """One registry, owned by one program object, so that two in one process do not mix.

    Names are ``headrace_<what>_<base unit>`` (counters end in ``_total``). Asking for a name again
    gives the same metric. Labels are few and bounded: never an address, a prompt or an id.
    """

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry
        from prometheus_client.process_collector import ProcessCollector

        self.registry = CollectorRegistry()
        self._known: dict[str, Any] = {}
        ProcessCollector(namespace="headrace", registry=self.registry)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows; ``name`` ends in ``_total``."""
        from prometheus_client import Counter

        if not name.endswith("_total"):
            raise ValueError(f"a counter's name ends in _total: {name}")
        return self._get(Counter, name, help_text, labels)

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that goes up and down."""
        from prometheus_client import Gauge

        return self._get(Gauge, name, help_text, labels)

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        buckets: Iterable[float] = LATENCY_BUCKETS_S,
    ) -> Histogram:
        """A distribution, by default of seconds."""
        from prometheus_client import Histogram

        return self._get(Histogram, name, help_text, labels, buckets=tuple(buckets))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition text and its content type, in the format that ``accept`` asks for."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def mount(self, app: FastAPI, path: str = "/metrics") -> None:
        """Answer GET and HEAD at ``path`` of an existing application."""
        from fastapi import Request, Response

        async def metrics(request: Request) -> Response:
            body, content_type = self.render(request.headers.get("accept", ""))
            return Response(body, headers={"content-type": content_type})

        app.add_route(path, metrics, methods=["GET", "HEAD"], include_in_schema=False)

    async def serve(self, port: int, host: str = "127.0.0.1") -> HttpServer:
        """Answer at ``http://host:port/metrics``; port 0 takes a free one. Raises ConfigError."""
        from fastapi import FastAPI

        from core.runtime.http_server import STRANGERS, HttpServer

        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        self.mount(app)
        server = HttpServer(app, host, port, limits=STRANGERS)
        await server.start()
        return server

    async def serve_while(
        self, stack: AsyncExitStack, port: int | None, host: str = "127.0.0.1"
    ) -> None:
        """Serve until the stack ends, and say where in the log; nothing without a port."""
        if port is None:
            return
        server = await self.serve(port, host)
        stack.push_async_callback(server.stop)
        log.info("metrics are served", url=f"{server.url}/metrics")

    def _get(
        self, kind: type[M], name: str, help_text: str, labels: Sequence[str], **options: Any
    ) -> M:
        if name not in self._known:
            if not NAME.fullmatch(name):
                raise ValueError(f"a metric's name is headrace_<what>_<unit>: {name}")
            make: Any = kind
            self._known[name] = make(
                name, help_text, tuple(labels), registry=self.registry, **options
            )
        known = self._known[name]
        if not isinstance(known, kind):
            raise ValueError(f"{name} is already a {type(known).__name__}")
        return known
