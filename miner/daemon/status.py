"""What does a running miner tell its owner, over HTTP on this machine only?"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from core.runtime.commands.results import plain
from core.runtime.http_server import STRANGERS, HttpServer
from core.runtime.metrics import Metrics
from miner.commands.results import MinerStatus

Leave = Callable[[float | None], None]
Pause = Callable[[bool], None]
MAX_DRAIN_S = 86400.0


async def serve_status(
    describe: Callable[[], MinerStatus],
    metrics: Metrics,
    leave: Leave,
    token: str,
    port: int = 0,
    pause: Pause = lambda paused: None,
) -> HttpServer:
    """`/status`, `/metrics`, and `POST /drain` and `/pause` for a caller that knows the token.

    Raises ConfigError if the port is taken. `leave` gets the seconds that accepted work may still
    take, None for the configured time; `pause` whether new work is refused from now on.
    """
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    metrics.mount(app)

    def described(status_code: int) -> Response:
        return JSONResponse(plain(describe()), status_code)

    async def status(request: Request) -> Response:
        return described(200)

    def is_owner(request: Request) -> bool:
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())

    async def drain(request: Request) -> Response:
        if not is_owner(request):
            return JSONResponse({"error": "the token is missing or wrong"}, status_code=401)
        wanted = request.query_params.get("timeout_s")
        try:
            timeout_s = None if wanted is None else float(wanted)
        except ValueError:
            timeout_s = -1.0
        if timeout_s is not None and not 0.0 <= timeout_s <= MAX_DRAIN_S:
            return JSONResponse({"error": f"timeout_s is not in 0 … {MAX_DRAIN_S:g}"}, 400)
        leave(timeout_s)
        return described(202)

    async def stop_or_go_on(request: Request) -> Response:
        if not is_owner(request):
            return JSONResponse({"error": "the token is missing or wrong"}, status_code=401)
        wanted = request.query_params.get("paused")
        if wanted not in ("true", "false"):
            return JSONResponse({"error": "paused is neither true nor false"}, 400)
        pause(wanted == "true")
        return described(202)

    app.add_route("/pause", stop_or_go_on, methods=["POST"])
    app.add_route("/status", status, methods=["GET"])
    app.add_route("/drain", drain, methods=["POST"])
    server = HttpServer(app, "127.0.0.1", port, limits=STRANGERS)
    await server.start()
    return server
