"""How is a gateway put together from settings, and taken apart again?"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.context import Context, open_context
from client.gateway.app import make_app
from client.gateway.balance_watch import EVENTS, BalanceWatch
from client.gateway.batches.batches import Batches
from client.gateway.batches.files import Files
from client.gateway.batches.offline import BatchRunner
from client.gateway.bodies import Bodies
from client.gateway.exchange import Exchanges
from client.gateway.gateway import Gateway
from client.gateway.identity import identity_in, sole_gateway
from client.gateway.logins import Logins
from client.gateway.metrics import GatewayMetrics
from client.gateway.money.keyring import Keyring
from client.gateway.money.ledger import Ledger
from client.gateway.money.limits import Limiter
from client.gateway.money.prices import ModelPrices
from client.gateway.openai.models import Catalogue
from client.gateway.records.database import Database, database_url
from client.gateway.stored_responses import StoredResponses
from client.gateway.workers import Workers
from client.records.store import match_of
from client.sessions.answering import Answered, Answerer
from client.sessions.pool import SessionPool
from core.runtime.alerts import Alerts
from core.runtime.clock import SystemClock
from core.runtime.folders import make_private
from core.runtime.http_server import HttpServer
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.gateway.records.tables import PaidRequestRow
    from client.orders.matchers import Matchers
    from client.records.store import ClientStore, JobRow
    from client.records.store import RequestRow as StoredRow
    from core.protocol.signing import DigestSigner
    from core.runtime.clock import Clock
    from core.runtime.settings import Settings

log = get_logger(__name__)
TIDY_EVERY_S = 20.0
#: The gateway serves after so long at the latest, whatever an earlier life has left to pay.
RECOVERED_WITHIN_S = 8.0


def assemble(
    settings: Settings,
    *,
    answerer: Answerer,
    catalogue: Catalogue,
    offline: BatchRunner,
    folder: Path,
    database: Database,
    payer: str,
    clock: Clock | None = None,
    context: Context | None = None,
    matcher: Matchers | None = None,
    store: ClientStore | None = None,
    local_token: str | None = None,
    metrics: GatewayMetrics | None = None,
    signer: DigestSigner | None = None,
) -> Gateway:
    """A gateway of these parts, not yet begun. Raises ConfigError (its name cannot be read)."""
    clock, metrics, ours = clock or SystemClock(), metrics or GatewayMetrics(), settings.gateway
    budget = settings.token(ours.daily_budget) if ours.daily_budget else None
    gateway_id = identity_in(folder)
    alerts = Alerts.of(
        settings, metrics.registry, clock, daemon="gateway", account=payer, events=EVENTS
    )
    keys, prices = Keyring(database, clock), ModelPrices(answerer, clock)
    files = Files(database, clock, make_private(folder) / "files", ours)
    ledger = Ledger(
        database, clock, gateway_id, daily_budget_units=budget, show=settings.show_token
    )
    shared: dict[str, Any] = {
        "settings": settings,
        "clock": clock,
        "metrics": metrics,
        "keys": keys,
        "ledger": ledger,
    }
    limiter = Limiter(clock)
    of_batches: dict[str, Any] = {
        "database": database,
        "files": files,
        "catalogue": catalogue,
        "prices": prices,
        "gateway_id": gateway_id,
        "limiter": limiter,
        "store": store,
    }
    batches = Batches(offline=offline, **shared, **of_batches)
    balance_watch = BalanceWatch(
        chain=context.chain if context is not None else None,
        payer=payer,
        batches=batches,
        alerts=alerts,
        low_units=settings.token(ours.low_balance),
        **shared,
    )
    return Gateway(
        context=context,
        answerer=answerer,
        matcher=matcher,
        logins=Logins(database, clock),
        responses=StoredResponses(database, clock),
        bodies=Bodies(),
        workers=Workers(),
        exchanges=Exchanges(),
        batches=batches,
        balance_watch=balance_watch,
        alerts=alerts,
        local_token=local_token or secrets.token_urlsafe(32),
        payer=payer,
        folder=folder,
        started_at=clock.now(),
        signer=signer,
        **shared,
        **of_batches,
    )


@asynccontextmanager
async def serving(gateway: Gateway, host: str, port: int) -> AsyncIterator[Gateway]:
    """The gateway at work; after the block, all that was delivered is paid and written down.

    Raises ConfigError (another process serves from the same folder, the port is taken).
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(sole_gateway(gateway.folder))
        stack.callback(gateway.workers.close)
        gateway.files.forget_drafts()
        await gateway.keys.claim_local(gateway.local_token)
        recovery = asyncio.create_task(recover(gateway), name="recovery")
        stack.push_async_callback(_end, recovery)
        await asyncio.wait({recovery}, timeout=RECOVERED_WITHIN_S)
        if recovery.done():
            recovery.result()
        else:
            recovery.add_done_callback(_tell_failure)
        ours, counts = gateway.settings.gateway, gateway.metrics.registry
        await counts.serve_while(stack, ours.metrics_port, ours.metrics_host)
        app = make_app(gateway)
        server = HttpServer(app, host, port)
        await server.start()
        stack.push_async_callback(server.stop)
        if hasattr(app.state, "dashboard"):
            stack.callback(app.state.dashboard.end_live)
        stack.push_async_callback(gateway.alerts.close)
        stack.push_async_callback(gateway.batches.close)
        stack.push_async_callback(gateway.exchanges.close)
        gateway.url = server.url
        await gateway.batches.start()
        for work in (gateway.balance_watch.watch(), keep_tidy(gateway)):
            stack.push_async_callback(_end, asyncio.create_task(work))
        yield gateway


async def recover(gateway: Gateway) -> list[PaidRequestRow]:
    """Pay for what an earlier life left running, and charge it as the requester's records say."""
    left = await gateway.ledger.left()
    await gateway.answerer.recover()
    known = await _paid(gateway, left)
    names = [row.request_id for row in left]
    found = await gateway.ledger.recover(names, lambda row: known.get(row.request_id))
    if found:
        log.warning("requests of an earlier start were broken off", count=len(found))
    return found


async def keep_tidy(gateway: Gateway) -> None:
    """Tidy up forever."""
    while True:
        try:
            await tidy(gateway)
        except Exception:  # such as a database that is away: tidied in a moment
            log.exception("nothing was tidied")
        await gateway.clock.sleep(TIDY_EVERY_S)


async def tidy(gateway: Gateway) -> None:
    """Forget answers too old for a retry, and end what gateways over this database have left.

    Another gateway may have been asked to cancel a batch that runs here, or be gone for good.
    """
    await gateway.ledger.forget_answers()
    await gateway.batches.heed_cancels()
    requests = await gateway.ledger.end_abandoned()
    batches = await gateway.batches.end_abandoned()
    if requests or batches:
        log.warning(
            "what a gateway left that is gone was ended",
            requests=len(requests),
            batches=len(batches),
            gateways=sorted({row.gateway_id for row in (*requests, *batches)}),
        )


@asynccontextmanager
async def running(settings: Settings, signer: DigestSigner) -> AsyncIterator[Gateway]:
    """`client serve`: a gateway over the configured network.

    Raises ConfigError (no network, port taken, database), ChainUnreachable.
    """
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(open_context(settings))
        database = Database.open(database_url(settings))
        stack.callback(database.close)
        matcher, store = context.matcher(), context.store()
        stack.push_async_callback(matcher.close)
        stack.callback(store.close)
        metrics = GatewayMetrics()
        answerer = SessionPool(context, signer, on_reroute=metrics.rerouted)
        stack.push_async_callback(answerer.close)
        gateway = assemble(
            settings,
            answerer=answerer,
            catalogue=Catalogue(context, matcher, SystemClock()),
            offline=BatchRunner(context, matcher, store, signer),
            folder=settings.folders.state / f"gateway-{settings.network.name}",
            database=database,
            payer=signer.address,
            context=context,
            matcher=matcher,
            store=store,
            metrics=metrics,
            signer=signer,
        )
        ours = settings.gateway
        yield await stack.enter_async_context(serving(gateway, ours.host, ours.port))


async def _paid(gateway: Gateway, left: Sequence[PaidRequestRow]) -> dict[str, list[Answered]]:
    """What was paid for requests, by the requester's records; nothing is known without these."""
    if gateway.store is None or not left:
        return {}
    found: dict[str, list[Answered]] = {row.request_id: [] for row in left}
    for job in await asyncio.to_thread(gateway.store.jobs):
        charges = await asyncio.to_thread(gateway.store.charges, job.job_id)
        rows = await asyncio.to_thread(gateway.store.requests, job.job_id) if charges else ()
        for request in rows:
            name = request.custom_id.partition(".")[0]
            cost_units = charges.get(request.request_index, 0)
            if name in found and cost_units:
                found[name].append(_answered(job, request, cost_units))
    return found


def _answered(job: JobRow, request: StoredRow, cost_units: int) -> Answered:
    operators = tuple(stage.operator for stage in match_of(job).plan)
    tokens_in, tokens_out = len(json.loads(request.prompt_ids)), len(json.loads(request.tokens))
    place, finish = (job.job_id, request.request_index), request.finish
    is_partial = not finish
    return Answered(*place, operators, tokens_in, tokens_out, finish, cost_units, is_partial)


def _tell_failure(recovery: asyncio.Task[Any]) -> None:
    if not recovery.cancelled() and (error := recovery.exception()) is not None:
        log.error("what an earlier start left is not all paid", exc_info=error)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
