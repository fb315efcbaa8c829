"""Which addresses does the gateway answer at? The OpenAI API, a few calls of its own, the pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse

from client.gateway.answers import receipts
from client.gateway.answers.answers import take
from client.gateway.answers.responses import FollowingResponse, failed, json_response
from client.gateway.batches.batches import batch_json
from client.gateway.batches.files import file_json
from client.gateway.batches.upload import Upload
from client.gateway.errors import BadParameter, KeyRefused, NotAllowedMethod, NotOffered, TooLarge
from client.gateway.openai import schemas
from client.gateway.openai.fields import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    RESPONSES,
    Endpoint,
    read_json,
)
from client.gateway.openai.models import alias_json, offer_json, unknown
from client.gateway.openai.terms import terms_of
from core.protocol.errors import HeadraceError, UsageError
from core.runtime import logs, origin
from core.runtime.logs import get_logger
from core.runtime.network.pace import FramePace

if TYPE_CHECKING:
    from client.gateway.gateway import Gateway
    from client.gateway.money.keyring import ApiKey

log = get_logger(__name__)
MAX_BODY_BYTES = 4 * 2**20
#: Pieces of all uploads together in a second, of 64 KiB at most, and at once after a pause.
UPLOADED_PIECES_PER_S, UPLOADED_BURST = 512.0, 256
OFFERED = "models, chat/completions, completions, responses, files, batches, receipts, jobs"
_ASKED = (400, 401, 402, 403, 404, 409, 413, 422, 429, 500, 502, 503, 504)
_LOOKED = (400, 401, 404, 500, 503)
#: Part of an address → the group of calls that it belongs to, where that has another name.
_GROUPS = {
    "chat": "completions",
    "responses": "completions",
    "receipts": "records",
    "jobs": "records",
}
#: What others offer and this does not → why.
_WHY_NOT = {
    "/v1/embeddings": f"no stage gives embeddings, which no order can buy; offered are {OFFERED}"
}
Id = Annotated[str, Path(min_length=1, max_length=128)]


def make_app(gateway: Gateway) -> FastAPI:
    """The application. Calls under `/v1` need an API key, others do not."""
    app = FastAPI(
        title="Headrace gateway",
        version="1",
        description="An OpenAI-compatible endpoint that is paid from its owner's wallet. "
        "Money is in base units of the token.",
        docs_url=None,
        redoc_url=None,
    )
    _answer_errors(app)
    _add_completions(app, gateway)
    _add_responses(app, gateway)
    _add_models(app, gateway)
    _add_files(app, gateway)
    _add_batches(app, gateway)
    _add_records(app, gateway)
    _add_health(app, gateway)
    _describe(app)
    app.add_middleware(_Timing)
    if gateway.settings.gateway.dashboard:
        mount_pages(app, gateway)
    return app


def mount_pages(app: FastAPI, gateway: Gateway) -> None:
    """Add the dashboard, which lies in a room above this one."""
    import_module("client.dashboard").mount(app, gateway)


async def authenticate(gateway: Gateway, request: Request, *, reserves: bool = False) -> ApiKey:
    """The key of a request; where the caller `reserves`, one found lately. Raises KeyRefused."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise KeyRefused("there is no API key", "the header Authorization: Bearer KEY is missing")
    keys = gateway.keys
    key = await (keys.known(secret.strip()) if reserves else keys.find(secret.strip()))
    if key is None:
        raise KeyRefused("the API key is not known here", "nobody made it, or it was mistyped")
    state = key.state(gateway.clock.now())
    if state != "active":
        raise KeyRefused(f"the API key '{key.name}' cannot be used", f"it is {state}")
    return key


async def read_body(
    request: Request,
    limit: int = MAX_BODY_BYTES,
    count: Callable[[int], None] = lambda size_bytes: None,
) -> bytes:
    """The whole body. Raises TooLarge, before it arrives if it says how long it is.

    `count` is told of all that arrives, and may raise.
    """
    too_large = TooLarge("the request is too large", f"at most {limit} bytes are taken")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    received = bytearray()
    async for chunk in request.stream():
        count(len(chunk))
        received += chunk
        if len(received) > limit:
            raise too_large
    return bytes(received)


def _offer(
    app: FastAPI,
    method: str,
    path: str,
    answer: schemas.Json,
    *codes: int,
    body: schemas.Json | None = None,
    body_type: str = "application/json",
    also: schemas.Json | None = None,
) -> Callable[[Any], Any]:
    """A decorator: the function answers there, with this schema or an error of these codes.

    `also` are other forms of the answer by content type.
    """
    responses = schemas.responses(answer, *codes)
    responses[200]["content"] |= also or {}
    group = path.split("/")[2]
    return app.api_route(
        path,
        methods=[method],
        tags=[_GROUPS.get(group, group)],
        openapi_extra=None if body is None else schemas.body_of(body, body_type),
        responses=responses,
        response_class=JSONResponse if method in ("GET", "DELETE") else Response,
    )


def _add_completions(app: FastAPI, gateway: Gateway) -> None:
    async def answer(request: Request, endpoint: Endpoint) -> Response:
        key = await authenticate(gateway, request, reserves=True)
        try:
            with gateway.bodies.of(key.key_id) as count:
                data = await read_body(request, count=count)
                exchange = await take(gateway, key, endpoint, data, request.headers)
        except HeadraceError as error:
            log.info("request refused", code=error.code, who=key.key_id)
            gateway.metrics.requests.labels("", error.api_code).inc()
            return failed(error, headers=gateway.limiter.headers(key))
        return FollowingResponse(gateway.exchanges, exchange)

    also = {"text/event-stream": {"schema": {"type": "string"}}}

    @_offer(app, "POST", CHAT, schemas.COMPLETION, *_ASKED, body=schemas.CHAT_BODY, also=also)
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        return await answer(request, CHAT)

    body = schemas.COMPLETION_BODY

    @_offer(app, "POST", COMPLETIONS, schemas.COMPLETION, *_ASKED, body=body, also=also)
    async def completions(request: Request) -> Response:
        """Go on from text or token ids."""
        return await answer(request, COMPLETIONS)

    one = schemas.object_of("response")
    body = schemas.RESPONSE_BODY

    @_offer(app, "POST", RESPONSES, one, *_ASKED, body=body, also=also)
    async def respond(request: Request) -> Response:
        """Answer items, and keep the response unless `store` is false."""
        return await answer(request, RESPONSES)


def _add_responses(app: FastAPI, gateway: Gateway) -> None:
    kept, one = gateway.responses, schemas.object_of("response")

    @_offer(app, "GET", "/v1/responses/{response_id}", one, *_LOOKED)
    async def get(response_id: Id, request: Request) -> Response:
        """A response that was kept."""
        key = await authenticate(gateway, request)
        return json_response(await kept.get(response_id, _own(key)))

    @_offer(app, "GET", "/v1/responses/{response_id}/input_items", schemas.LIST, *_LOOKED)
    async def items(response_id: Id, request: Request) -> Response:
        """The items of its request."""
        key = await authenticate(gateway, request)
        found = await kept.items(response_id, _own(key))
        return _page(found, len(found))

    @_offer(app, "DELETE", "/v1/responses/{response_id}", one, *_LOOKED)
    async def delete(response_id: Id, request: Request) -> Response:
        """Forget it."""
        key = await authenticate(gateway, request)
        await kept.delete(response_id, _own(key))
        return json_response({"id": response_id, "object": "response", "deleted": True})


def _add_models(app: FastAPI, gateway: Gateway) -> None:
    network = gateway.settings.network

    def shown(offer: Any) -> dict[str, Any]:
        created = int(gateway.started_at)
        return offer_json(offer, created, network.token_symbol, network.token_decimals)

    @_offer(app, "GET", "/v1/models", schemas.LIST, *_LOOKED)
    async def models(request: Request) -> Response:
        """Models, with price, context, precision, weights hash and how many miners serve them."""
        key = await authenticate(gateway, request)
        offers = await gateway.catalogue.ls()
        allowed = set(key.limits.models)
        data = [shown(o) for o in offers if not allowed or o.model.name in allowed]
        data += [
            alias_json(name, models, int(gateway.started_at))
            for name, models in gateway.settings.gateway.aliases.items()
            if not allowed or name in allowed or allowed & set(models)
        ]
        return json_response({"object": "list", "data": data})

    @_offer(app, "GET", "/v1/models/{model:path}", schemas.object_of("model"), *_LOOKED)
    async def model(model: Id, request: Request) -> Response:
        """One model."""
        await authenticate(gateway, request)
        aliases = gateway.settings.gateway.aliases
        if model in aliases:
            return json_response(alias_json(model, aliases[model], int(gateway.started_at)))
        offers = {offer.model.name: offer for offer in await gateway.catalogue.ls()}
        if model not in offers:
            raise unknown(model, [*offers, *aliases])
        return json_response(shown(offers[model]))


def _add_files(app: FastAPI, gateway: Gateway) -> None:
    files, one = gateway.files, schemas.object_of("file")
    pace = FramePace(UPLOADED_PIECES_PER_S, UPLOADED_BURST)
    form = {"body": schemas.FILE_BODY, "body_type": "multipart/form-data"}

    @_offer(app, "POST", "/v1/files", one, 400, 401, 413, 429, 500, 503, **form)
    async def upload(request: Request) -> Response:
        """Keep a file, as `multipart/form-data` with `file` and `purpose`: a request of the key."""
        key = await authenticate(gateway, request)
        gateway.limiter.take_request(key)
        row = await files.save(key.key_id, Upload(request.headers, _paced(request.stream(), pace)))
        return json_response(file_json(row))

    @_offer(app, "GET", "/v1/files", schemas.LIST, *_LOOKED)
    async def ls(
        request: Request,
        purpose: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: str = "desc",
    ) -> Response:
        """Files of this key, newest first."""
        key = await authenticate(gateway, request)
        rows = await files.ls(
            _own(key), purpose=purpose, after=after, limit=limit, oldest_first=order == "asc"
        )
        return _page([file_json(row) for row in rows], limit)

    @_offer(app, "GET", "/v1/files/{file_id}", one, *_LOOKED)
    async def get(file_id: Id, request: Request) -> Response:
        """What a file is."""
        key = await authenticate(gateway, request)
        return json_response(file_json(await files.get(file_id, _own(key))))

    content = schemas.responses({}, *_LOOKED)
    content[200]["content"] = {"application/octet-stream": {"schema": {"type": "string"}}}

    @app.get("/v1/files/{file_id}/content", tags=["files"], responses=content)
    async def read(file_id: Id, request: Request) -> Response:
        """A file's bytes."""
        key = await authenticate(gateway, request)
        row, path = await files.readable(file_id, _own(key))
        return FileResponse(path, media_type="application/octet-stream", filename=row.filename)

    @_offer(app, "DELETE", "/v1/files/{file_id}", one, 409, *_LOOKED)
    async def delete(file_id: Id, request: Request) -> Response:
        """Forget a file that no unfinished batch reads."""
        key = await authenticate(gateway, request)
        await files.delete(file_id, _own(key))
        return json_response({"id": file_id, "object": "file", "deleted": True})


async def _paced(pieces: AsyncIterator[bytes], pace: FramePace) -> AsyncIterator[bytes]:
    """Pieces of an upload, as fast as all uploads together may come."""
    async for piece in pieces:
        yield piece
        await pace.turn()


def _add_batches(app: FastAPI, gateway: Gateway) -> None:
    batches = gateway.batches

    def shown(row: Any) -> dict[str, Any]:
        return batch_json(row, gateway.show(row.cost_units))

    one = schemas.object_of("batch")

    @_offer(app, "POST", "/v1/batches", one, 400, 401, 404, 413, 429, 500, body=schemas.BATCH_BODY)
    async def create(request: Request) -> Response:
        """Run a file of requests as one order."""
        key = await authenticate(gateway, request)
        with gateway.bodies.of(key.key_id) as count:
            body = read_json(await read_body(request, count=count))
        terms = terms_of(request.headers, gateway.settings)
        return json_response(shown(await batches.create(key, body, terms)))

    @_offer(app, "GET", "/v1/batches", schemas.LIST, *_LOOKED)
    async def ls(
        request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> Response:
        """Batches of this key, newest first."""
        key = await authenticate(gateway, request)
        rows = await batches.ls(_own(key), after, limit)
        return _page([shown(row) for row in rows], limit)

    @_offer(app, "GET", "/v1/batches/{batch_id}", one, *_LOOKED)
    async def get(batch_id: Id, request: Request) -> Response:
        """How far a batch is."""
        key = await authenticate(gateway, request)
        return json_response(shown(await batches.get(batch_id, _own(key))))

    @_offer(app, "POST", "/v1/batches/{batch_id}/cancel", one, 409, *_LOOKED)
    async def cancel(batch_id: Id, request: Request) -> Response:
        """Stop a batch; finished lines are kept and paid."""
        key = await authenticate(gateway, request)
        return json_response(shown(await batches.cancel(batch_id, _own(key))))


def _add_records(app: FastAPI, gateway: Gateway) -> None:
    @_offer(app, "GET", "/v1/receipts/{receipt}", schemas.object_of("receipt"), *_LOOKED)
    async def receipt(receipt: Id, request: Request) -> Response:
        """What a request cost and who signed for it; by its id, its receipt's or a stage's."""
        key = await authenticate(gateway, request)
        return json_response(await receipts.receipt(gateway, receipt, _own(key)))

    @_offer(app, "GET", "/v1/jobs/{job}", schemas.object_of("job"), *_LOOKED)
    async def job(job: Id, request: Request) -> Response:
        """A job, and this key's requests that it answered."""
        key = await authenticate(gateway, request)
        return json_response(await receipts.job(gateway, job, _own(key)))


def _add_health(app: FastAPI, gateway: Gateway) -> None:
    fine = {"type": "object", "required": ["ok"]}

    @app.get("/health", tags=["health"], responses=schemas.responses(fine))
    @app.head("/health", include_in_schema=False)
    async def health() -> Response:
        """The process answers."""
        return json_response({"ok": True})

    not_ready = schemas.responses(fine)
    not_ready[503] = {**not_ready[200], "description": "It cannot work now."}

    @app.get("/ready", tags=["health"], responses=not_ready)
    @app.head("/ready", include_in_schema=False)
    async def ready() -> Response:
        """Requests can be answered: somebody serves a whole model, and the chain answers."""
        problem = gateway.balance_watch.problem
        try:
            async with asyncio.timeout(5.0):
                offers = await gateway.catalogue.ls()
        except HeadraceError as error:
            offers, problem = (), problem or f"{error.what}: {error.why}"
        except TimeoutError:
            offers, problem = (), problem or "the matcher does not answer"
        serving = [offer.model.name for offer in offers if offer.is_covered]
        ok = bool(serving) and not problem and not gateway.exchanges.is_stopping
        state = {"ok": ok, "models": serving, "problem": problem or None}
        return json_response(state, 200 if ok else 503)


def _answer_errors(app: FastAPI) -> None:
    def handler(kind: type[Exception]) -> Callable[[Any], Any]:
        return app.exception_handler(kind)

    @handler(HeadraceError)
    async def ours(_: Request, error: HeadraceError) -> Response:
        return failed(error)

    @handler(RequestValidationError)
    async def bad_parameter(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return failed(BadParameter(str(first["loc"][-1]), str(first["msg"])))

    @handler(HTTPException)
    async def not_offered(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path} is not offered"
        if error.status_code == 405:
            wrong = NotAllowedMethod(what, "the endpoint has other methods")
            return failed(wrong, headers=error.headers)
        if error.status_code == 404:
            why = _WHY_NOT.get(request.url.path, f"offered are {OFFERED}")
            return failed(NotOffered(what, why))
        return failed(UsageError(what, str(error.detail)), error.status_code)

    @handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, exc_info=error)
        return failed(HeadraceError("a bug on the gateway's side", type(error).__name__))


def _describe(app: FastAPI) -> None:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            parts = found.setdefault("components", {})
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, operations in found["paths"].items():
                for operation in operations.values():
                    if path not in (
                        *ENDPOINTS,
                        RESPONSES,
                    ):  # the framework's own, which we answer with 400
                        operation["responses"].pop("422", None)
                    if path.startswith("/v1"):
                        operation["security"] = [{"key": []}]
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


class _Timing:
    """Names each call, in its log lines and as `x-request-id`; and says `openai-processing-ms`."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        began, request_id = time.perf_counter(), origin.new_id()

        async def timed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                names = {name for name, _ in headers}
                if b"openai-processing-ms" not in names:
                    took = round((time.perf_counter() - began) * 1000)
                    headers.append((b"openai-processing-ms", str(took).encode()))
                if b"x-request-id" not in names:
                    headers.append((b"x-request-id", request_id.encode()))
            await send(message)

        with logs.bound(request_id=request_id):
            await self._app(scope, receive, timed)


def _own(key: ApiKey) -> str | None:
    """Whose things a key may see: its own, or everybody's for the owner of this machine."""
    return None if key.is_local else key.key_id


def _page(data: list[dict[str, Any]], limit: int) -> Response:
    """A list of at most `limit`; it was asked for one more to know whether there is more."""
    shown = data[:limit]
    return json_response(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(data) > limit,
        }
    )
