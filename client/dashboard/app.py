"""The dashboard's addresses: every page with its JSON twin and its live part, the few changes, the static files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from client.dashboard import pages
from client.dashboard.checks import Checks, ReceiptCheck
from client.dashboard.forward import Forwarded, target_of
from client.dashboard.guard import (
    COOKIE,
    CSRF_HEADER,
    SECURITY_HEADERS,
    Guard,
)
from client.dashboard.pages import PageRequest
from client.dashboard.render import Renderer
from client.dashboard.sources.sources import PageSources
from client.dashboard.views import earnings, jobs, planner, receipts
from client.dashboard.views.explorer import Explorer
from client.dashboard.views.wallet import MOVES, movement, movements_csv
from client.gateway.money.keyring import limits_of
from core.money.break_even import Earning, HourlyCost
from core.protocol import ids
from core.protocol.errors import HeadraceError, IdInvalid, UsageError
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

    from client.gateway.gateway import Gateway

log = get_logger(__name__)
LIVE_EVERY_S = 2.0
MAX_LIVE = 64
MAX_FORM_BYTES = 1024 * 1024
EXPORT_PAGES = 50


@dataclass(frozen=True)
class Page:
    """One address. `live` is the template that is sent again and again, `content` one that is sent once."""

    path: str
    name: str
    load: pages.Load
    live: str = ""
    content: str = ""
    form: str = ""
    script: str = ""
    lead: str = ""
    here: str = ""


PAGES = (
    Page("/", "Overview", pages.load_overview, "live/overview.html"),
    Page("/models", "Models", pages.load_models, "live/models.html", lead="Everything that is registered, with its price, its speed and who serves it now."),
    Page("/models/{model:path}", "Model", pages.load_model, "live/model.html", here="/models"),
    Page("/chat", "Chat", pages.load_chat, content="parts/chat.html", script="chat.js"),
    Page("/jobs", "Jobs", pages.load_jobs, "live/jobs.html", form="parts/jobs_form.html"),
    Page("/jobs/{job}", "Job", pages.load_job, "live/job.html", here="/jobs"),
    Page("/receipts/{receipt}", "Receipt", pages.load_receipt, "live/receipt.html", here="/jobs"),
    Page("/keys", "Keys", pages.load_keys, "live/keys.html", form="parts/keys_form.html", lead="A key lets a program spend from your wallet, as far as its budget goes."),
    Page("/wallet", "Wallet", pages.load_wallet, "live/wallet.html"),
    Page("/network", "Network", pages.load_network, "live/network.html", lead="Who holds which layers, how the chains run, and how long a row of numbers takes from one machine to the next."),
    Page("/miners/{miner}", "Machine", pages.load_miner, "live/miner.html", here="/network"),
    Page("/earnings", "Earnings", pages.load_earnings, "live/earnings.html", form="parts/earnings_form.html"),
    Page("/planner", "Planner", pages.load_planner, content="parts/planner.html", lead="What each method would do with a fleet: the live one, or one that you make up."),
    Page("/disputes", "Disputes", pages.load_disputes, "live/disputes.html", lead="Whoever signed for wrong work loses stake. Here is every accusation and where it stands."),
    Page("/disputes/{dispute}", "Dispute", pages.load_dispute, "live/dispute.html", here="/disputes"),
    Page("/explorer", "Explorer", pages.load_explorer, "live/explorer.html", form="parts/explorer_form.html"),
    Page("/addresses/{address}", "Address", pages.load_address, "live/explorer.html", here="/explorer"),
    Page("/transactions/{tx}", "Transaction", pages.load_transaction, "live/explorer.html", here="/explorer"),
    Page("/blocks/{block}", "Block", pages.load_block, "live/explorer.html", here="/explorer"),
    Page("/things/{thing}", "On chain", pages.load_thing, "live/explorer.html", here="/explorer"),
    Page("/connect", "Connect", pages.load_connect, content="parts/connect.html", lead="Change a base URL, keep your program."),
)  # fmt: skip


class Dashboard:
    """The pages of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.settings = gateway, gateway.settings
        self.guard = Guard(gateway.local_token)
        self.sources = PageSources(gateway)
        self.checks = Checks(self.sources)
        self.renderer = Renderer(gateway.settings)
        self._live = 0
        self._closing = asyncio.Event()

    def mount(self, app: FastAPI) -> None:
        """Add every address. The application's own stay as they are."""
        for page in PAGES:
            for path, handler in (
                (page.path, self._page(page)),
                (f"/api{page.path}".rstrip("/") if page.path != "/" else "/api/overview", self._twin(page)),
                (f"/live{page.path}".rstrip("/") if page.path != "/" else "/live/overview", self._follow(page)),
            ):  # fmt: skip
                _add(app, "GET", path, handler)
        for method, path, handler in (
            ("GET", "/login", self._login),
            ("GET", "/static/{name}", self._static),
            ("GET", "/favicon.ico", self._favicon),
            ("GET", "/search", self._reading(self._search)),
            ("GET", "/chat/models/{model:path}", self._reading(self._chat_model, as_json=True)),
            ("GET", "/wallet.csv", self._reading(self._export)),
            ("GET", "/earnings/break-even", self._reading(self._break_even)),
            ("GET", "/receipts/{receipt}/line", self._reading(self._receipt_line)),
            ("GET", "/receipts/{receipt}/check", self._reading(self._check_now)),
            ("POST", "/receipts/{receipt}/check", self._changing(self._check)),
            ("POST", "/jobs/{job}/check", self._changing(self._check_job)),
            ("POST", "/jobs/{job}/cancel", self._changing(self._cancel)),
            ("POST", "/keys", self._changing(self._new_key)),
            ("POST", "/keys/{key}/revoke", self._changing(self._revoke)),
            ("POST", "/planner", self._changing(self._plan)),
            ("GET", "/api/v1/{rest:path}", self._forward(app)),
            ("POST", "/api/v1/{rest:path}", self._forward(app)),
        ):
            _add(app, method, path, handler)
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(of: Any) -> AsyncIterator[Any]:
            async with inner(of) as state:
                self.sources.start()
                try:
                    yield state
                finally:
                    await self.close()

        app.router.lifespan_context = lifespan

    def end_live(self) -> None:
        """Let go of open pages, so that the server need not wait for them."""
        self._closing.set()

    async def close(self) -> None:
        """End live connections, checks and the log."""
        self.end_live()
        await self.checks.close()
        await self.sources.close()

    # --- reading ---

    def _page(self, page: Page) -> Handler:
        async def handler(request: Request) -> Response:
            if _wants_json(request):
                return _json(await page.load(self.sources, self._asked(request)))
            view = await page.load(self.sources, self._asked(request))
            values = await self._values(request, page, view)
            return HTMLResponse(self.renderer.render("page.html", values))

        return self._reading(handler)

    def _twin(self, page: Page) -> Handler:
        async def handler(request: Request) -> Response:
            return _json(await page.load(self.sources, self._asked(request)))

        return self._reading(handler, as_json=True)

    def _follow(self, page: Page) -> Handler:
        async def handler(request: Request) -> Response:
            if not page.live or self._live >= MAX_LIVE:
                return Response(status_code=204)
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            events = self._events(request, page)
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)

        return self._reading(handler)

    async def _events(self, request: Request, page: Page) -> AsyncIterator[str]:
        """The live part, again and again until somebody leaves."""
        self._live += 1
        try:
            while True:
                if await self._is_over(request):
                    return
                try:
                    view = await page.load(self.sources, self._asked(request))
                    values = await self._values(request, page, view)
                    html = self.renderer.render(values["live"], values)
                except HeadraceError as error:
                    html = self.renderer.render("parts/problem.html", {"error": error.to_dict()})
                yield (
                    "".join(f"data: {line}\n" for line in html.splitlines() if line.strip()) + "\n"
                )
        finally:
            self._live -= 1

    async def _is_over(self, request: Request) -> bool:
        try:
            async with asyncio.timeout(LIVE_EVERY_S):
                await self._closing.wait()
                return True
        except TimeoutError:
            return await request.is_disconnected()

    async def _values(self, request: Request, page: Page, view: Any) -> dict[str, Any]:
        """What a page's template is given."""
        live = template_of(page, view)
        query = urlencode({k: v for k, v in request.query_params.items() if k != "accept"})
        suffix = f"?{query}" if query else ""
        path = request.url.path.removeprefix("/live").removeprefix("/api")
        path = "/" if path in ("/overview", "") else path
        plain = quote(path, safe="/:")
        named = "/overview" if plain == "/" else plain
        values = {
            "view": view,
            "now_ms": self.sources.now_ms(),
            "page_title": _title(page, view),
            "lead": page.lead,
            "here": page.here or page.path,
            "csrf": self.guard.csrf_token if self.guard.has_session(request.cookies) else "",
            "twin": f"/api{named}{suffix}",
            "live_url": f"/live{named}{suffix}",
            "live": live,
            "content": page.content,
            "form": page.form,
            "script": page.script,
            "older_url": _without_before(plain, request.query_params),
            "check": self._check_of(view),
        }
        if page.path == "/earnings":
            values["owners"] = await pages.owners(self.sources)
            values["paper"] = earnings.paper_table(10**self.settings.network.token_decimals)
        return values

    def _check_of(self, view: Any) -> ReceiptCheck | None:
        """The check of what a page shows, running or over."""
        match view:
            case receipts.ReceiptPage():
                return self.checks.get(view.line.receipt_id)
            case jobs.JobPage():
                return self.checks.get(view.job.job_id)
            case _:
                return None

    # --- the session ---

    async def _login(self, request: Request) -> Response:
        session = self.guard.session_for(request.query_params.get("token", ""))
        if session is None:
            error = UsageError(
                "this link opens nothing",
                "its token is of another start of the gateway",
                next_step="use the link that the running gateway printed",
            )
            return self._failed(request, error, 403)
        answer = RedirectResponse(
            "/", 303, headers=SECURITY_HEADERS | {"cache-control": "no-store"}
        )
        secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, session, httponly=True, samesite="strict", secure=secure, path="/"
        )
        return answer

    def _reading(self, handler: Handler, *, as_json: bool = False) -> Handler:
        async def guarded(request: Request) -> Response:
            self.sources.start()
            peer = request.client.host if request.client else None
            host = request.headers.get("host", "")
            try:
                if not self.guard.may_read(request.cookies, peer, host):
                    raise HTTPException(403)
                answer = await handler(request)
            except HTTPException:
                error = UsageError(
                    "these pages are for their owner",
                    "you are on another machine, or came by another name",
                    next_step="open the link that was printed when the gateway started",
                )
                answer = self._failed(request, error, 403, as_json=as_json)
            except HeadraceError as error:
                answer = self._failed(request, error, error.http_status, as_json=as_json)
            answer.headers.update(SECURITY_HEADERS)
            answer.headers.setdefault("cache-control", "no-store")
            return answer

        return guarded

    def _changing(self, handler: Handler) -> Handler:
        """Only with a session, and only from our own pages."""

        async def guarded(request: Request) -> Response:
            why = self._why_not(request)
            if why:
                return self._problem(UsageError("nothing was changed", why), 403)
            try:
                return await handler(request)
            except HeadraceError as error:
                return self._problem(error, 200)  # htmx shows it where the answer would be

        return self._reading(guarded)

    def _why_not(self, request: Request) -> str:
        csrf = request.headers.get(CSRF_HEADER, "")
        return self.guard.why_not_change(request.cookies, request.headers, csrf)

    def _problem(self, error: HeadraceError, status: int) -> Response:
        html = self.renderer.render("parts/problem.html", {"error": error.to_dict()})
        return HTMLResponse(html, status)

    def _failed(
        self, request: Request, error: HeadraceError, status: int, *, as_json: bool = False
    ) -> Response:
        if as_json or _wants_json(request):
            return _json({"error": error.to_dict()}, status)
        values = {
            "error": error.to_dict(),
            "now_ms": self.sources.now_ms(),
            "page_title": "That did not work",
            "lead": "",
            "twin": "",
            "here": "",
            "csrf": self.guard.csrf_token if self.guard.has_session(request.cookies) else "",
        }
        html = self.renderer.render("error.html", values)
        return HTMLResponse(html, status, headers=SECURITY_HEADERS | {"cache-control": "no-store"})

    # --- changes ---

    def _forward(self, app: FastAPI) -> Handler:
        async def handler(request: Request) -> Response:
            target = target_of(request.method, request.url.path)
            if target is None:
                return _json({"error": {"message": "pages do not pass this on"}}, 404)
            # Reading a file is a navigation, which cannot carry the token; the session is enough for it.
            reading = request.method == "GET" and self.guard.has_session(request.cookies)
            why = "" if reading else self._why_not(request)
            if why:
                return _json({"error": {"message": f"nothing was done: {why}"}}, 403)
            found: Any = Forwarded(app, target, self.gateway.local_token)
            return found  # type: ignore[no-any-return]

        async def guarded(request: Request) -> Response:
            peer = request.client.host if request.client else None
            if not self.guard.may_read(request.cookies, peer, request.headers.get("host", "")):
                return _json({"error": {"message": "these pages are for their owner"}}, 403)
            return await handler(request)

        return guarded

    async def _new_key(self, request: Request) -> Response:
        form = await _form(request)
        name = form.get("name", "").strip()
        if not 0 < len(name) <= 100:
            raise UsageError("the key has no usable name", "a name has 1 to 100 characters")
        limits = limits_of(
            self.settings,
            self.gateway.clock.now(),
            budget=form.get("budget") or None,
            expires=form.get("expires") or None,
            models=[form["models"]] if form.get("models") else [],
            rate=form.get("rate") or None,
        )
        key, secret = await self.gateway.keys.new(name, limits)
        values = {"name": key.name, "secret": secret}
        return HTMLResponse(self.renderer.render("parts/new_key.html", values), 201)

    async def _revoke(self, request: Request) -> Response:
        await self.gateway.keys.revoke(request.path_params["key"])
        return Response(status_code=204)

    async def _cancel(self, request: Request) -> Response:
        await self.gateway.batches.cancel(request.path_params["job"])
        return Response(status_code=204)

    async def _plan(self, request: Request) -> Response:
        form = await _form(request)
        methods, limit = form.get_all("methods"), form.get("limit_s", "10")
        try:
            limit_s = float(limit)
        except ValueError:
            raise UsageError(f"'{limit}' is not a number of seconds") from None
        if not methods:
            raise UsageError("no method is chosen", next_step="choose at least one")
        matcher, model = self.sources.matcher(), form.get("model", "")
        document = await matcher.fleet(model) if model else _document(form.get("document", ""))
        question = {
            "document": document,
            "methods": methods,
            "limitS": min(60.0, max(1.0, limit_s)),
        }
        fleet = self.sources.name_of(model) if model else str(document.get("id", ""))
        view = planner.plans(document, await matcher.plan(question), fleet, self.sources.now_ms())
        values = {"view": view, "now_ms": self.sources.now_ms()}
        return HTMLResponse(self.renderer.render("parts/plans.html", values))

    # --- checks ---

    async def _check(self, request: Request) -> Response:
        view = await pages.load_receipt(self.sources, self._asked(request))
        if not isinstance(view, receipts.ReceiptPage) or not view.line.job_ids:
            raise IdInvalid("nothing was delivered for this receipt", "there is nothing to check")
        line = view.line
        return self._check_line(self.checks.start(line.receipt_id, line.job_ids, line.request_id))

    async def _check_job(self, request: Request) -> Response:
        view = await pages.load_job(self.sources, self._asked(request))
        if not isinstance(view, jobs.JobPage):
            raise IdInvalid("only an order can be checked", "a batch is checked order by order")
        job_id = view.job.job_id
        return self._check_line(self.checks.start(job_id, [job_id]))

    async def _check_now(self, request: Request) -> Response:
        check = self.checks.get(request.path_params["receipt"])
        if check is None:
            raise IdInvalid(
                "no check runs for this receipt", "none was started since the gateway did"
            )
        return self._check_line(check)

    def _check_line(self, check: ReceiptCheck) -> Response:
        return HTMLResponse(self.renderer.render("parts/check.html", {"check": check}))

    async def _receipt_line(self, request: Request) -> Response:
        view = await pages.load_receipt(self.sources, self._asked(request))
        if not isinstance(view, receipts.ReceiptPage):
            raise IdInvalid("this is a stage's receipt", "a request's own is asked for")
        csrf = self.guard.csrf_token if self.guard.has_session(request.cookies) else ""
        values = {"line": view.line, "csrf": csrf}
        return HTMLResponse(self.renderer.render("parts/receipt_line.html", values))

    # --- small things ---

    async def _search(self, request: Request) -> Response:
        path = await pages.where_is(self.sources, request.query_params.get("q", ""))
        return RedirectResponse(quote(path, safe="/"), 303)

    async def _chat_model(self, request: Request) -> Response:
        """Whether a model takes conversations, or is a base model, which goes on from a text. Reads its tokenizer, once."""
        served = await self.gateway.catalogue.find(request.path_params["model"])
        return _json({"model": served.name, "can_chat": served.tokenizer.can_chat})

    async def _export(self, request: Request) -> Response:
        """All movements, at most `EXPORT_PAGES` pages of them."""
        chain_log, before = self.sources.require_log(), None
        found = []
        for _ in range(EXPORT_PAGES):
            events = await chain_log.about(
                self.gateway.payer, names=tuple(MOVES), before=before, limit=200
            )
            found += [movement(event) for event in events]
            if len(events) < 200:
                break
            before = events[-1].id
        headers = {"content-disposition": 'attachment; filename="movements.csv"'}
        return Response(movements_csv(found), media_type="text/csv", headers=headers)

    async def _break_even(self, request: Request) -> Response:
        given = request.query_params
        settings = self.settings
        cost = HourlyCost(
            rent_units_per_hour=settings.token(given.get("rent", "")),
            power_watts=int(_number(given, "watts", "0", 10**6)),
            energy_units_per_kwh=settings.token(given.get("energy", "")),
        )
        earning = Earning(
            price_in=settings.price(given.get("price_in", "")),
            price_out=settings.price(given.get("price_out", "")),
            prompt_tokens_per_answer_token=Fraction(_number(given, "prompt_ratio", "0", 10**6)),
        )
        rate = _number(given, "rate", "0", 10**9) if given.get("rate") else None
        busy = _number(given, "busy", "100", 100) / 100
        found = earnings.break_even(cost, earning, rate, busy)
        if _wants_json(request):
            return _json(found)
        return HTMLResponse(self.renderer.render("parts/break_even.html", {"found": found}))

    async def _static(self, request: Request) -> Response:
        file = self.renderer.static.get(request.path_params["name"])
        if file is None:
            return Response(status_code=404)
        if request.headers.get("if-none-match") == f'"{file.tag}"':
            return Response(status_code=304)
        headers = {
            "cache-control": "public, max-age=31536000, immutable",
            "etag": f'"{file.tag}"',
            "x-content-type-options": "nosniff",
        }
        return Response(file.content, media_type=file.media_type, headers=headers)

    async def _favicon(self, request: Request) -> Response:
        icon = self.renderer.static["icon.svg"]
        return Response(icon.content, media_type=icon.media_type)

    def _asked(self, request: Request) -> PageRequest:
        return PageRequest(
            path=request.path_params,
            query=request.query_params,
            has_session=self.guard.has_session(request.cookies),
            url=f"{request.url.scheme}://{request.headers.get('host', '')}",
        )


Handler = Callable[["Request"], Awaitable[Response]]


def _add(app: FastAPI, method: str, path: str, handler: Handler) -> None:
    app.add_route(path, handler, methods=[method], include_in_schema=False)


def template_of(page: Page, view: Any) -> str:
    """The live template; an id may turn out to be of another kind than most under its address."""
    match view:
        case jobs.BatchPage():
            return "live/batch.html"
        case receipts.StageReceiptPage():
            return "live/stage_receipt.html"
        case Explorer():
            return "live/explorer.html"
        case _:
            return page.live


def _title(page: Page, view: Any) -> str:
    match view:
        case jobs.BatchPage():
            return f"Job {view.batch.batch_id[:14]}…"
        case jobs.JobPage():
            return f"Job {view.job.name or ids.short(ids.Kind.JOB, view.job.job_id)}"
        case _ if page.path.startswith("/models/"):
            return str(view.model.name)
        case _:
            return page.name


def _without_before(path: str, query: Mapping[str, str]) -> str:
    kept = urlencode({key: value for key, value in query.items() if key != "before"})
    return f"{path}?{kept}&" if kept else f"{path}?"


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class _Fields(dict[str, str]):
    """A form's fields; of one that is named several times the last counts, and all can be had."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def get_all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]


async def _form(request: Request) -> _Fields:
    """A small form. Raises UsageError for one that is too large or malformed."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MAX_FORM_BYTES:
            raise UsageError("the form is too large", f"the limit is {MAX_FORM_BYTES} bytes")
    from urllib.parse import parse_qsl

    try:
        pairs = parse_qsl(received.decode(), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise UsageError("the form is malformed", str(error)) from None
    return _Fields(pairs)


def _document(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text.encode())
    except msgspec.DecodeError as error:
        raise UsageError("the fleet is not JSON", str(error)) from None
    if not isinstance(found, dict):
        raise UsageError("the fleet is not a table", "it is a list or a single value")
    return found


def _number(given: Mapping[str, str], name: str, default: str, most: float) -> float:
    text = given.get(name) or default
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a number", f"in {name.replace('_', ' ')}") from None
    if not 0 <= value <= most:
        raise UsageError(f"{name.replace('_', ' ')} is {text}", f"it must be from 0 to {most:g}")
    return value
