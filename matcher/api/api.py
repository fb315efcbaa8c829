"""How do others talk to the matcher over HTTP?

Reading needs no key; an order and an acknowledgement carry their own signatures. Every failure is
`{"error": …}` in the shape of `HeadraceError.to_dict()` with that error's status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from core.money.audit_report import SignedReport
from core.money.paid_audits import MAX_ASK_BYTES, SignedAsk, SignedFinding
from core.protocol import ids
from core.protocol.errors import HeadraceError, IdInvalid, ModelUnknown, UsageError
from core.protocol.foreign import MOST_NAME_CHARACTERS, refuse_deep
from core.protocol.types import Ack, Address, Hash32, Order, Signature, SignedOrder, Terms, Value
from core.runtime import origin
from core.runtime.http_server import while_asked
from core.runtime.logs import get_logger
from matcher.api import views
from matcher.matching.matching import Continuation
from matcher.planning.planning import MAX_PLAN_BODY_BYTES, PlanBody, PlanDesk, fleet_document
from matcher.records.jobs import ENDED, Job, SignedAck

if TYPE_CHECKING:
    from core.runtime.clock import Clock
    from core.runtime.metrics import Metrics
    from matcher.audits.audit_desk import AuditDesk
    from matcher.audits.reports import Reports
    from matcher.matching.matching import Matchmaker
    from matcher.records.store import Store
    from matcher.settling.settler import Settler
    from matcher.world import MatcherWorld

MAX_BODY_BYTES = 64 * 1024
RETRY_AFTER_S = 2
T = TypeVar("T")
log = get_logger(__name__)


class AckBody(Value, frozen=True):
    """What `POST /v1/jobs/{id}/ack` takes."""

    ack: Ack
    signature: Signature
    closing: bool = False  # of an open order: it is the last one


class OrderBody(Value, frozen=True):
    """What `POST /v1/orders` takes: a signed order, and what it goes on with if a chain broke."""

    order: Order
    signature: Signature
    terms: Terms | None = None
    continues: Hash32 | None = None
    lost: Annotated[frozenset[Address], msgspec.Meta(max_length=64)] = frozenset()

    @property
    def signed(self) -> SignedOrder:
        return SignedOrder(self.order, self.signature, self.terms)

    @property
    def goes_on(self) -> Continuation | None:
        """Raises IdInvalid for operators that are no addresses."""
        if self.continues is None:
            return None
        return Continuation(self.continues, frozenset(ids.address(one) for one in self.lost))


class BodyTooLarge(Exception):
    """A body above the limit, cut off while it arrived."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes


def make_app(
    world: MatcherWorld,
    store: Store,
    matchmaker: Matchmaker,
    settler: Settler,
    reports: Reports,
    audits: AuditDesk,
    metrics: Metrics,
    clock: Clock,
    identity: dict[str, Any],
) -> FastAPI:
    """The application. `identity` is what `/v1/status` says of the matcher itself."""
    app = FastAPI(title="Headrace matcher", version="1", docs_url=None, redoc_url=None)
    orders = metrics.counter("headrace_orders_total", "Orders by outcome", ["outcome"])
    orders.labels("opened")
    started, desk = clock.monotonic(), PlanDesk()
    metrics.mount(app)
    _answer_errors(app)
    app.add_middleware(origin.FollowRequest, names={"/v1/orders": "match an order"})

    def now_ms() -> int:
        return int(clock.now() * 1000)

    def model_of(typed: str) -> str:
        if typed in world.models:
            return typed
        try:
            return ids.find(ids.Kind.MODEL, typed, world.models, lambda model_id: model_id)
        except IdInvalid as error:
            raise ModelUnknown(f"no model '{typed}'", why=error.why) from None

    async def job_of(typed: str) -> Job:
        found = await store.off_loop(store.job, typed)
        if found is None:
            known = await store.off_loop(store.jobs, limit=1000)
            found = ids.find(ids.Kind.JOB, typed, known, lambda job: job.job_id)
        return found

    @app.get("/v1/status")
    async def status() -> Response:
        """Who this matcher is, what it sees of chain and swarm, and how much it has to do."""
        return _json(
            {
                **identity,
                "ready": world.ready,
                "uptimeS": round(clock.monotonic() - started, 1),
                "chain": {
                    "ok": world.chain.ok,
                    "block": world.chain.block,
                    "time": world.chain.time_s,
                    "error": world.chain.error or None,
                },
                "lastLook": {
                    "ok": world.swarm.ok,
                    "ageMs": max(0, now_ms() - world.swarm.looked_at_ms),
                    "records": world.swarm.records,
                    "refusedTotal": world.swarm.refused_total,
                    "error": world.swarm.error or None,
                },
                "models": len(world.models),
                "machines": sum(s.alive(now_ms()) for s in world.sightings.values()),
                "jobs": await store.off_loop(store.counts),
                "reservations": world.reservations,
                "waiting": world.waiting,
            }
        )

    @app.get("/v1/models")
    async def models() -> Response:
        """Registered models, whether machines serve all of their layers, and at which price."""
        found = [views.model_json(world, model_id, now_ms()) for model_id in sorted(world.models)]
        return _json({"models": found})

    @app.get("/v1/models/{model}")
    async def model(model: str) -> Response:
        """One model, by its id or a short form of it."""
        return _json(views.model_json(world, model_of(model), now_ms()))

    @app.get("/v1/miners")
    async def miners() -> Response:
        """Every machine that is known, with the age of what is known of it."""
        ordered = [sighting for _, sighting in sorted(world.sightings.items())]
        return _json({"miners": [views.miner_json(world, s, now_ms()) for s in ordered]})

    @app.get("/v1/allocation")
    async def allocation(model: str | None = None) -> Response:
        """Which layers the machines of each model were told to hold."""
        wanted = sorted(world.placements) if model is None else [model_of(model)]
        found = [
            views.placement_json(model_id, world.placements[model_id])
            for model_id in wanted
            if model_id in world.placements
        ]
        return _json({"allocations": found})

    @app.get("/v1/routes")
    async def routes(model: str | None = None) -> Response:
        """Chains that serve now, fastest first, and how busy they are."""
        wanted = sorted(world.models) if model is None else [model_of(model)]
        found = [views.routes_json(world, model_id, now_ms()) for model_id in wanted]
        return _json({"routes": [route for of_model in found for route in of_model]})

    @app.get("/v1/fleet")
    async def fleet(model: str) -> Response:
        """The machines of a model as they are now, as a document that `POST /v1/plan` takes."""
        found = model_of(model)
        if found not in world.shapes:
            what, why = f"model {found} cannot be planned", "its dtype is not known here"
            raise ModelUnknown(what, why=why)
        present = world.present(found, now_ms())
        name = ids.short(ids.Kind.MODEL, found)
        return _json({"document": fleet_document(name, world.shapes[found], present)})

    @app.post("/v1/plan")
    async def plan(request: Request) -> Response:
        """Who would hold which layers of such a fleet? Nothing is changed by it."""
        body = await _body(request, PlanBody, MAX_PLAN_BODY_BYTES)
        return _json(await while_asked(request.receive, desk.plan(body)))

    @app.get("/v1/quote")
    async def quote(
        model: str,
        tokens_in: int = Query(ge=1, le=2**32 - 1),
        tokens_out: int = Query(ge=0, le=2**32 - 1),
        trusted: Annotated[list[str], Query(max_length=256)] = [],  # noqa: B006 - FastAPI copies it
        avoided: Annotated[list[str], Query(max_length=256)] = [],  # noqa: B006
    ) -> Response:
        """What these tokens would cost now, on the chain that an order would get."""
        terms = Terms.of(1, map(ids.address, trusted), map(ids.address, avoided))
        found = views.quote_json(world, model_of(model), tokens_in, tokens_out, now_ms(), terms)
        if isinstance(found, HeadraceError):
            raise found
        ours = {name: identity[name] for name in ("matcher", "feeBps", "openingFee")}
        return _json({**found, **ours, "audits": audits.offer()})

    @app.post("/v1/orders")
    async def order(request: Request) -> Response:
        """Take a signed order: choose a chain, collect acceptances, open the job on chain."""
        body = await _body(request, OrderBody)
        try:
            job = await matchmaker.open(body.signed, body.goes_on)
        except HeadraceError as error:
            orders.labels(error.api_code).inc()
            raise
        orders.labels("opened").inc()
        return _json(views.opened_json(job), status=201)

    @app.get("/v1/jobs")
    async def jobs(
        limit: int = Query(default=100, ge=1, le=1000), state: str | None = None
    ) -> Response:
        """Jobs that this matcher opened, newest first."""
        found = await store.off_loop(store.jobs, limit=limit, state=state)
        return _json({"jobs": [views.job_json(job) for job in found]})

    @app.get("/v1/jobs/{job}")
    async def job(job: str) -> Response:
        """One job: its plan, its stages and where they can be reached."""
        found = world.reachable(await job_of(job), now_ms())
        return _json(views.job_detail_json(found))

    @app.post("/v1/jobs/{job}/ack")
    async def ack(job: str, request: Request) -> Response:
        """Take an acknowledgement; 200 when it is settled on chain, 202 when that comes later."""
        body = await _body(request, AckBody)
        known = await job_of(job)
        signed = SignedAck(body.ack, body.signature)
        done = await settler.receive_ack(known.job_id, signed, closing=body.closing)
        settled = done.state in ENDED  # else it is stored and settled when the chain allows
        answer = {**views.job_json(done), "txHash": done.end_tx}
        return _json(answer, status=200 if settled else 202)

    @app.post("/v1/audits")
    async def report(request: Request) -> Response:
        """Take a signed report of an auditor that this matcher goes by."""
        signed = await _body(request, SignedReport)
        await reports.take(signed)
        return _json({"operators": len(signed.report.operators)})

    @app.post("/v1/audits/lots")
    async def lots(request: Request) -> Response:
        """Tell an order's auditor which of the requests that it shows receipts for were drawn."""
        return _json(await audits.draw(await _body(request, SignedAsk, MAX_ASK_BYTES)))

    @app.post("/v1/audits/findings")
    async def finding(request: Request) -> Response:
        """Take an auditor's signed finding of a drawn request: the fee is owed in any case."""
        await audits.take(await _body(request, SignedFinding))
        return _json({"taken": True})

    @app.get("/health")
    @app.head("/health", include_in_schema=False)
    async def health() -> Response:
        """The process answers."""
        return _json({"ok": True})

    @app.get("/ready")
    @app.head("/ready", include_in_schema=False)
    async def ready() -> Response:
        """Orders can be taken: chain and swarm answer."""
        state = {"ready": world.ready, "chain": world.chain.ok, "swarm": world.swarm.ok}
        return _json(state, status=200 if world.ready else 503)

    _describe(app)
    return app


#: What the calls with a body read, for the description alone: bodies are decoded by `_body`.
_BODIES = {
    "/v1/plan": PlanBody,
    "/v1/orders": OrderBody,
    "/v1/jobs/{job}/ack": AckBody,
    "/v1/audits": SignedReport,
    "/v1/audits/lots": SignedAsk,
    "/v1/audits/findings": SignedFinding,
}


_FAILURE = {
    "description": "`error` says what failed, why, what state things are in, and what to do next.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}


def _describe(app: FastAPI) -> None:
    """Say in `/openapi.json` which bodies are read, and that failures are our documents."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas, parts = msgspec.json.schema_components(
                _BODIES.values(), ref_template="#/components/schemas/{name}"
            )
            found.setdefault("components", {})["schemas"] = dict(parts)
            for path, schema in zip(_BODIES, schemas, strict=True):
                content = {"application/json": {"schema": schema}}
                found["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
            for path, operations in found["paths"].items():
                for operation in operations.values():
                    answers = operation["responses"]
                    answers.pop("422", None)
                    answers["200"]["description"] = "Done."
                    if path.startswith("/v1"):
                        answers["default"] = _FAILURE
                    if path == "/v1/orders":
                        answers["201"] = answers.pop("200")
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


async def _body(request: Request, kind: type[T], limit_bytes: int = MAX_BODY_BYTES) -> T:
    """The body as a value. Raises BodyTooLarge, or UsageError naming the field."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
    try:
        refuse_deep(bytes(received))
        return msgspec.json.decode(bytes(received), type=kind)
    except msgspec.ValidationError as error:
        text, _, field = str(error).partition(" - at ")
        text = text[: 2 * MOST_NAME_CHARACTERS]  # it repeats the name of an unknown field
        name = field.strip("`").removeprefix("$").removeprefix(".") or "the body"
        raise UsageError("the request is malformed", why=f"{name}: {text}", field=name) from None
    except ValueError as error:  # msgspec's and Unicode's are ValueErrors
        why = f"it is not JSON: {error}"
        raise UsageError("the request is malformed", why=why, field="the body") from None


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(value), status, headers=headers, media_type="application/json"
    )


def _failed(error: HeadraceError, status: int | None = None) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if error.retryable else None
    return _json({"error": error.to_dict()}, status=status or error.http_status, headers=headers)


def _answer_errors(app: FastAPI) -> None:
    def handler(kind: type[Exception]) -> Callable[[Any], Any]:
        return app.exception_handler(kind)

    @handler(HeadraceError)
    async def ours(_: Request, error: HeadraceError) -> Response:
        return _failed(error)

    @handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody reads it

    @handler(BodyTooLarge)
    async def too_large(_: Request, error: BodyTooLarge) -> Response:
        why = f"the limit is {error.limit_bytes} bytes"
        return _failed(UsageError("the request is too large", why=why), 413)

    @handler(RequestValidationError)
    async def bad_parameter(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        why = f"{field}: {first['msg']}"
        return _failed(UsageError("the request is malformed", why=why, field=field))

    @handler(HTTPException)
    async def not_offered(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path} is not offered"
        return _failed(UsageError(what, why=str(error.detail)), error.status_code)

    @handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        log.exception("request failed", path=request.url.path, exc_info=error)
        return _failed(HeadraceError("a bug on the matcher's side", why=type(error).__name__))
