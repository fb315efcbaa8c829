"""Which addresses have pages, their JSON twins and live parts, changes and static files?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from client.dashboard import pages
from client.dashboard.checks import Checks, ReceiptCheck
from client.dashboard.forward import Forwarded, target_of
from client.dashboard.guard import COOKIE, CSRF_HEADER, OPEN_THEM, SECURITY_HEADERS, Guard, host_of
from client.dashboard.page import PAGES, Page, PageRequest
from client.dashboard.render import Renderer
from client.dashboard.sources.sources import PageSources
from client.dashboard.views import earnings, jobs, planner, receipts
from client.dashboard.views.explorer import Explorer
from client.dashboard.views.wallet import MOVES, movement, movements_csv
from client.gateway.app import read_body
from client.gateway.money.keyring import changes_of, days_of_use, limits_of, usage_csv
from core.money.break_even import Earning, HourlyCost
from core.protocol import ids
from core.protocol.errors import HeadraceError, IdInvalid, UsageError
from core.protocol.foreign import refuse_deep

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

    from client.gateway.gateway import Gateway

LIVE_EVERY_S = 2.0
MAX_LIVE = 64
MAX_FORM_BYTES = 1024 * 1024
EXPORT_PAGES = 50
#: A day of which nothing is known costs nothing.
USAGE_DAYS = 3660
_PRIVATE = SECURITY_HEADERS | {"cache-control": "no-store"}


class Dashboard:
    """The pages of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.settings = gateway, gateway.settings
        self.guard = Guard(gateway.settings.gateway.local_reading)
        self.sources = PageSources(gateway)
        self.checks = Checks(self.sources)
        self.renderer = Renderer(gateway.settings)
        self._live = 0
        self._closing = asyncio.Event()

    def mount(self, app: FastAPI) -> None:
        """Add every address. The application's own stay as they are."""
        for page in PAGES:
            name = "/overview" if page.path == "/" else page.path
            _add(app, "GET", page.path, self._page(page))
            _add(app, "GET", f"/api{name}", self._page(page, as_json=True))
            _add(app, "GET", f"/live{name}", self._follow(page))
        for method, path, handler in (
            ("GET", "/login", self._login),
            ("GET", "/static/{name}", self._static),
            ("GET", "/favicon.ico", self._favicon),
            ("GET", "/search", self._reading(self._search)),
            ("GET", "/chat/models/{model:path}", self._reading(self._chat_model, as_json=True)),
            ("GET", "/wallet.csv", self._reading(self._export)),
            ("GET", "/keys.csv", self._reading(self._export_usage)),
            ("GET", "/earnings/break-even", self._reading(self._break_even)),
            ("GET", "/receipts/{receipt}/line", self._reading(self._receipt_line)),
            ("GET", "/receipts/{receipt}/check", self._reading(self._check_now)),
            ("POST", "/receipts/{receipt}/check", self._changing(self._check)),
            ("POST", "/jobs/{job}/check", self._changing(self._check_job)),
            ("POST", "/jobs/{job}/cancel", self._changing(self._cancel)),
            ("POST", "/keys", self._changing(self._new_key)),
            ("POST", "/keys/limits", self._changing(self._change_key)),
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

    def _page(self, page: Page, *, as_json: bool = False) -> Handler:
        async def handler(request: Request) -> Response:
            view = await page.load(self.sources, self._asked(request))
            if as_json or _wants_json(request):
                return _json(view)
            values = await self._values(request, page, view)
            return HTMLResponse(self.renderer.render("page.html", values))

        return self._reading(handler, as_json=as_json)

    def _follow(self, page: Page) -> Handler:
        async def handler(request: Request) -> Response:
            if not page.live or self._live >= MAX_LIVE:
                return Response(status_code=204)
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            events = self._events(request, page)
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)

        return self._reading(handler)

    async def _events(self, request: Request, page: Page) -> AsyncIterator[str]:
        """The live part, again and again until its reader leaves."""
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
                lines = [f"data: {line}\n" for line in html.splitlines() if line.strip()]
                yield "".join([*lines, "\n"])
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
            "csrf": self._csrf(request),
            "twin": f"/api{named}{suffix}",
            "live_url": f"/live{named}{suffix}",
            "live": template_of(page, view),
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

    def _csrf(self, request: Request) -> str:
        """The token that pages send with a change; "" without a session."""
        return self.guard.csrf_token if self.guard.has_session(request.cookies) else ""

    def _may_read(self, request: Request) -> bool:
        peer = request.client.host if request.client else None
        return self.guard.may_read(request.cookies, request.headers, peer)

    async def _login(self, request: Request) -> Response:
        answer = RedirectResponse("/", 303, headers=_PRIVATE)
        if self.guard.has_session(request.cookies):
            return answer
        if not await self.gateway.logins.spend(request.query_params.get("token", "")):
            why = "it was used, it is older than ten minutes, or it is of another gateway"
            error = UsageError("this link opens nothing", why, next_step=OPEN_THEM)
            return self._failed(request, error, 403)
        secure = self._url(request).startswith("https:")
        session = self.guard.session
        answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure)
        return answer

    def _url(self, request: Request) -> str:
        """The address that its browser has for us, of which a proxy may keep the scheme."""
        public, host = self.settings.gateway.public_url, request.headers.get("host", "")
        return public if host_of(public) == host else f"{request.url.scheme}://{host}"

    def _reading(self, handler: Handler, *, as_json: bool = False) -> Handler:
        async def guarded(request: Request) -> Response:
            self.sources.start()
            try:
                if self._may_read(request):
                    answer = await handler(request)
                else:
                    what = "these pages are for their owner"
                    error = UsageError(what, "there is no session", next_step=OPEN_THEM)
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
            "csrf": self._csrf(request),
        }
        html = self.renderer.render("error.html", values)
        return HTMLResponse(html, status, headers=_PRIVATE)

    def _forward(self, app: FastAPI) -> Handler:
        async def handler(request: Request) -> Response:
            if not self._may_read(request):
                why = f"these pages are for their owner: {OPEN_THEM}"
                return _json({"error": {"message": why}}, 403)
            target = target_of(request.method, request.url.path)
            if target is None:
                return _json({"error": {"message": "pages do not pass this on"}}, 404)
            # Reading a file is a navigation, which cannot carry the token: the session is enough.
            reading = request.method == "GET" and self.guard.has_session(request.cookies)
            why = "" if reading else self._why_not(request)
            if why:
                return _json({"error": {"message": f"nothing was done: {why}"}}, 403)
            found: Any = Forwarded(app, target, self.gateway.local_token)
            return found  # type: ignore[no-any-return]

        return handler

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
            tags=_words(form.get("tags", "")),
        )
        key, secret = await self.gateway.keys.new(name, limits)
        values = {"name": key.name, "secret": secret}
        return HTMLResponse(self.renderer.render("parts/new_key.html", values), 201)

    async def _change_key(self, request: Request) -> Response:
        form = await _form(request)
        typed = {name: form.get(name, "").strip() or None for name in ("budget", "expires", "rate")}
        lists = {name: _words(form.get(name, "")) for name in ("models", "tags")}
        changes = changes_of(self.settings, self.gateway.clock.now(), typed | lists)
        if not changes:
            raise UsageError("there is nothing to change", "all fields are empty")
        key = await self.gateway.keys.change(form.get("key", ""), changes)
        values = {"name": key.name}
        return HTMLResponse(self.renderer.render("parts/changed_key.html", values))

    async def _revoke(self, request: Request) -> Response:
        await self.gateway.keys.revoke(request.path_params["key"])
        return Response(status_code=204)

    async def _cancel(self, request: Request) -> Response:
        await self.gateway.batches.cancel(request.path_params["job"])
        return Response(status_code=204)

    async def _plan(self, request: Request) -> Response:
        form = await _form(request)
        methods, limit = form.getlist("methods"), form.get("limit_s", "10")
        try:
            limit_s = float(limit)
        except ValueError:
            raise UsageError(f"'{limit}' is not a number of seconds") from None
        if not methods:
            raise UsageError("no method is chosen", next_step="choose at least one")
        matcher, model = self.sources.matcher(), form.get("model", "")
        if model:
            document = await matcher.ask(lambda api: api.fleet(model))
        else:
            document = _document(form.get("document", ""))
        limit_s = min(60.0, max(1.0, limit_s))
        question = {"document": document, "methods": methods, "limitS": limit_s}
        fleet = self.sources.name_of(model) if model else str(document.get("id", ""))
        plans = await matcher.ask(lambda api: api.plan(question))
        view = planner.plans(document, plans, fleet, self.sources.now_ms())
        values = {"view": view, "now_ms": self.sources.now_ms()}
        return HTMLResponse(self.renderer.render("parts/plans.html", values))

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
            why = "none was started since the gateway did"
            raise IdInvalid("no check runs for this receipt", why)
        return self._check_line(check)

    def _check_line(self, check: ReceiptCheck) -> Response:
        return HTMLResponse(self.renderer.render("parts/check.html", {"check": check}))

    async def _receipt_line(self, request: Request) -> Response:
        view = await pages.load_receipt(self.sources, self._asked(request))
        if not isinstance(view, receipts.ReceiptPage):
            raise IdInvalid("this is a stage's receipt", "a request's own is asked for")
        values = {"line": view.line, "csrf": self._csrf(request)}
        return HTMLResponse(self.renderer.render("parts/receipt_line.html", values))

    async def _search(self, request: Request) -> Response:
        path = await pages.where_is(self.sources, request.query_params.get("q", ""))
        return RedirectResponse(quote(path, safe="/"), 303)

    async def _chat_model(self, request: Request) -> Response:
        """Whether a model takes conversations, or is a base model, which goes on from a text."""
        served = await self.gateway.catalogue.find(request.path_params["model"])
        return _json({"model": served.name, "can_chat": served.tokenizer.can_chat})

    async def _export(self, request: Request) -> Response:
        """All movements, at most `EXPORT_PAGES` pages of them."""
        chain_log, before = self.sources.require_log(), None
        found = []
        for _ in range(EXPORT_PAGES):
            payer = self.gateway.payer
            events = await chain_log.movements(payer, tuple(MOVES), before=before, limit=200)
            found += [movement(event) for event in events]
            if len(events) < 200:
                break
            before = events[-1].id
        headers = {"content-disposition": 'attachment; filename="movements.csv"'}
        return Response(movements_csv(found), media_type="text/csv", headers=headers)

    async def _export_usage(self, request: Request) -> Response:
        """What keys used, day by day, as far back as it is known."""
        ring = self.gateway.keys
        text = usage_csv(days_of_use(await ring.ls(), await ring.usage(days=USAGE_DAYS)))
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        return Response(text, media_type="text/csv", headers=headers)

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
            url=self._url(request),
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


async def _form(request: Request) -> ImmutableMultiDict[str, str]:
    """A small form. Raises UsageError for one that is too large or malformed."""
    received = await read_body(request, MAX_FORM_BYTES)
    try:
        pairs = parse_qsl(received.decode(), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise UsageError("the form is malformed", str(error)) from None
    return ImmutableMultiDict(pairs)


def _document(text: str) -> dict[str, Any]:
    try:
        data = text.encode()
        refuse_deep(data)
        found = msgspec.json.decode(data)
    except ValueError as error:  # msgspec's and Unicode's are ValueErrors
        raise UsageError("the fleet is not JSON", str(error)) from None
    if not isinstance(found, dict):
        raise UsageError("the fleet is not a table", "it is a list or a single value")
    return found


def _words(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(given: Mapping[str, str], name: str, default: str, most: float) -> float:
    text = given.get(name) or default
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a number", f"in {name.replace('_', ' ')}") from None
    if not 0 <= value <= most:
        raise UsageError(f"{name.replace('_', ' ')} is {text}", f"it must be from 0 to {most:g}")
    return value
