"""Which addresses does the gateway answer at? The OpenAI API, its own few calls beside it, and the pages if they are there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.responses import FileResponse

from client.gateway.answers import receipts
from client.gateway.answers.answers import take
from client.gateway.answers.responses import FollowingResponse, failed, json_response
from client.gateway.batches.batches import batch_json
from client.gateway.batches.files import PURPOSES, file_json
from client.gateway.errors import (
    BadParameter,
    KeyRefused,
    NotAllowedMethod,
    NotOffered,
    TooLarge,
)
from client.gateway.openai import schemas
from client.gateway.openai.fields import CHAT, COMPLETIONS, Endpoint, read_json
from client.gateway.openai.models import offer_json, unknown
from client.gateway.openai.terms import terms_of
from core.protocol.errors import HeadraceError, UsageError
from core.runtime import logs, origin
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.gateway.gateway import Gateway
    from client.gateway.money.keyring import ApiKey

log = get_logger(__name__)
MAX_BODY_BYTES = 32 * 2**20
OFFERED = "models, chat/completions, completions, files, batches, receipts, jobs"
_ASKED = (400, 401, 402, 403, 404, 409, 413, 422, 429, 500, 502, 503, 504)
_LOOKED = (400, 401, 404, 500, 503)
Id = Annotated[str, Path(min_length=1, max_length=128)]


def make_app(gateway: Gateway) -> FastAPI:
    """The application. Every `/v1` call needs an API key; health, readiness, metrics and the description do not."""
    app = FastAPI(
        title="Headrace gateway",
        version="1",
        description="An OpenAI-compatible endpoint that is paid from its owner's wallet. Money is in base units of the token.",
        docs_url=None,
        redoc_url=None,
    )
    gateway.metrics.registry.mount(app)
    _answer_errors(app)
    _add_completions(app, gateway)
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


def mount_pages(app: FastAPI, gateway: Gateway) -> bool:
    """The dashboard, if this installation has it."""
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("client.dashboard") is None:
        return False
    mount = getattr(import_module("client.dashboard"), "mount", None)
    if not callable(mount):
        return False
    mount(app, gateway)
    return True


async def authenticate(gateway: Gateway, request: Request, *, reserves: bool = False) -> ApiKey:
    """Whose request this is; one that `reserves` looks at the key again when it does. Raises KeyRefused."""
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


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body. Raises TooLarge while it arrives."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > limit:
            raise TooLarge("the request is too large", f"at most {limit} bytes are taken")
    return bytes(received)


# --- completions ---


def _add_completions(app: FastAPI, gateway: Gateway) -> None:
    async def answer(request: Request, endpoint: Endpoint) -> Response:
        key = await authenticate(gateway, request, reserves=True)
        data = await read_body(request)
        try:
            exchange = await take(gateway, key, endpoint, data, request.headers)
        except HeadraceError as error:
            log.info("request refused", code=error.code, who=key.key_id)
            gateway.metrics.requests.labels("", error.api_code).inc()
            return failed(error, headers=gateway.limiter.headers(key))
        return FollowingResponse(gateway.exchanges, exchange)

    answered = schemas.responses(schemas.COMPLETION, *_ASKED)
    answered[200]["content"]["text/event-stream"] = {"schema": {"type": "string"}}

    @app.post(
        CHAT,
        tags=["completions"],
        openapi_extra=schemas.body_of(schemas.CHAT_BODY),
        responses=answered,
        response_class=Response,
    )
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        return await answer(request, CHAT)

    @app.post(
        COMPLETIONS,
        tags=["completions"],
        openapi_extra=schemas.body_of(schemas.COMPLETION_BODY),
        responses=answered,
        response_class=Response,
    )
    async def completions(request: Request) -> Response:
        """Go on from text or token ids."""
        return await answer(request, COMPLETIONS)


# --- models ---


def _add_models(app: FastAPI, gateway: Gateway) -> None:
    network = gateway.settings.network

    def shown(offer: Any) -> dict[str, Any]:
        created = int(gateway.started_at)
        return offer_json(offer, created, network.token_symbol, network.token_decimals)

    @app.get("/v1/models", tags=["models"], responses=schemas.responses(schemas.LIST, *_LOOKED))
    async def models(request: Request) -> Response:
        """Models, with price, context, precision, weights hash and how many miners serve them."""
        key = await authenticate(gateway, request)
        offers = await gateway.catalogue.ls()
        allowed = key.limits.models
        data = [shown(o) for o in offers if not allowed or o.model.name in allowed]
        return json_response({"object": "list", "data": data})

    @app.get(
        "/v1/models/{model:path}",
        tags=["models"],
        responses=schemas.responses(schemas.object_of("model"), *_LOOKED),
    )
    async def model(model: Id, request: Request) -> Response:
        """One model."""
        await authenticate(gateway, request)
        offers = {offer.model.name: offer for offer in await gateway.catalogue.ls()}
        if model not in offers:
            raise unknown(model, offers)
        return json_response(shown(offers[model]))


# --- files ---


def _add_files(app: FastAPI, gateway: Gateway) -> None:
    files = gateway.files

    @app.post(
        "/v1/files",
        tags=["files"],
        openapi_extra=schemas.body_of(schemas.FILE_BODY, "multipart/form-data"),
        responses=schemas.responses(schemas.object_of("file"), 400, 401, 413, 500),
        response_class=Response,
    )
    async def upload(request: Request) -> Response:
        """Keep a file, as `multipart/form-data` with `file` and `purpose`."""
        key = await authenticate(gateway, request)
        try:
            form = await request.form(max_files=1, max_fields=16)
        except MultiPartException as error:
            raise UsageError("the upload is malformed", error.message) from None
        except HTTPException as error:
            raise UsageError("the upload is malformed", str(error.detail)) from None
        try:
            purpose, file = form.get("purpose"), form.get("file")
            if purpose not in PURPOSES:
                raise BadParameter("purpose", f"it must be one of {', '.join(PURPOSES)}")
            if not isinstance(file, UploadFile):
                raise BadParameter("file", "it must be a file")
            name = file.filename or "file"
            row = await files.save(key.key_id, name, str(purpose), _chunks(file))
        finally:
            await form.close()
        return json_response(file_json(row))

    @app.get("/v1/files", tags=["files"], responses=schemas.responses(schemas.LIST, *_LOOKED))
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

    @app.get(
        "/v1/files/{file_id}",
        tags=["files"],
        responses=schemas.responses(schemas.object_of("file"), *_LOOKED),
    )
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

    @app.delete(
        "/v1/files/{file_id}",
        tags=["files"],
        responses=schemas.responses(schemas.object_of("file"), 409, *_LOOKED),
    )
    async def delete(file_id: Id, request: Request) -> Response:
        """Forget a file that no unfinished batch reads."""
        key = await authenticate(gateway, request)
        await files.delete(file_id, _own(key))
        return json_response({"id": file_id, "object": "file", "deleted": True})


# --- batches ---


def _add_batches(app: FastAPI, gateway: Gateway) -> None:
    batches = gateway.batches

    def shown(row: Any) -> dict[str, Any]:
        return batch_json(row, gateway.show(row.cost_units))

    one = schemas.object_of("batch")

    @app.post(
        "/v1/batches",
        tags=["batches"],
        openapi_extra=schemas.body_of(schemas.BATCH_BODY),
        responses=schemas.responses(one, 400, 401, 404, 413, 500),
        response_class=Response,
    )
    async def create(request: Request) -> Response:
        """Run a file of requests as one order."""
        key = await authenticate(gateway, request)
        body = read_json(await read_body(request))
        terms = terms_of(request.headers, gateway.settings)
        return json_response(shown(await batches.create(key, body, terms)))

    @app.get("/v1/batches", tags=["batches"], responses=schemas.responses(schemas.LIST, *_LOOKED))
    async def ls(
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Response:
        """Batches of this key, newest first."""
        key = await authenticate(gateway, request)
        rows = await batches.ls(_own(key), after, limit)
        return _page([shown(row) for row in rows], limit)

    @app.get("/v1/batches/{batch_id}", tags=["batches"], responses=schemas.responses(one, *_LOOKED))
    async def get(batch_id: Id, request: Request) -> Response:
        """How far a batch is."""
        key = await authenticate(gateway, request)
        return json_response(shown(await batches.get(batch_id, _own(key))))

    @app.post(
        "/v1/batches/{batch_id}/cancel",
        tags=["batches"],
        responses=schemas.responses(one, 409, *_LOOKED),
        response_class=Response,
    )
    async def cancel(batch_id: Id, request: Request) -> Response:
        """Stop a batch; finished lines are kept and paid."""
        key = await authenticate(gateway, request)
        return json_response(shown(await batches.cancel(batch_id, _own(key))))


# --- receipts and jobs ---


def _add_records(app: FastAPI, gateway: Gateway) -> None:
    @app.get(
        "/v1/receipts/{receipt}",
        tags=["records"],
        responses=schemas.responses(schemas.object_of("receipt"), *_LOOKED),
    )
    async def receipt(receipt: Id, request: Request) -> Response:
        """What a request cost and who signed for it; by its own id, the receipt's, or a stage receipt's."""
        key = await authenticate(gateway, request)
        return json_response(await receipts.receipt(gateway, receipt, _own(key)))

    @app.get(
        "/v1/jobs/{job}",
        tags=["records"],
        responses=schemas.responses(schemas.object_of("job"), *_LOOKED),
    )
    async def job(job: Id, request: Request) -> Response:
        """A job, and this key's requests that it answered."""
        key = await authenticate(gateway, request)
        return json_response(await receipts.job(gateway, job, _own(key)))


# --- health ---


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


# --- errors and description ---


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
            return failed(
                NotAllowedMethod(what, "the endpoint has other methods"), headers=error.headers
            )
        if error.status_code == 404:
            return failed(NotOffered(what, f"offered are {OFFERED}"))
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
                        CHAT,
                        COMPLETIONS,
                    ):  # the framework's own, which we answer with 400
                        operation["responses"].pop("422", None)
                    if path.startswith("/v1"):
                        operation["security"] = [{"key": []}]
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


class _Timing:
    """The name of each call of the API, in its log lines and as `x-request-id`; and `openai-processing-ms`."""

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


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(2**20):
        yield chunk
