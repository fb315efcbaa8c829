"""What does a running miner tell its owner, over HTTP on this machine only?"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

from core.runtime.http_server import HttpServer
from core.runtime.metrics import Metrics

Leave = Callable[[float | None], None]
MAX_DRAIN_S = 86400.0


async def serve_status(
    describe: Callable[[], dict[str, Any]],
    metrics: Metrics,
    leave: Leave,
    token: str,
    port: int = 0,
) -> HttpServer:
    """`/status`, `/metrics`, and `POST /drain` for whoever knows the token. Raises ConfigError if the port is taken.

    `leave` gets the seconds that accepted work may still take, None for the configured time.
    """
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    metrics.mount(app)

    async def status(request: Request) -> Response:
        return JSONResponse(describe())

    async def drain(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return JSONResponse({"error": "the token is missing or wrong"}, status_code=401)
        wanted = request.query_params.get("timeout_s")
        try:
            timeout_s = None if wanted is None else float(wanted)
        except ValueError:
            timeout_s = -1.0
        if timeout_s is not None and not 0.0 <= timeout_s <= MAX_DRAIN_S:
            return JSONResponse({"error": f"timeout_s is not in 0 … {MAX_DRAIN_S:g}"}, 400)
        leave(timeout_s)
        return JSONResponse(describe(), status_code=202)

    app.add_route("/status", status, methods=["GET"])
    app.add_route("/drain", drain, methods=["POST"])
    server = HttpServer(app, "127.0.0.1", port)
    await server.start()
    return server
