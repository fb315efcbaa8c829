"""What does each page read, and from which source, before a view is made of it?"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from client.commands.ask.job_list import keeper_pid
from client.dashboard import present
from client.dashboard.page import PageRequest, page
from client.dashboard.sources.cached import Dated
from client.dashboard.sources.chain_log import ChainLog, LoggedEvent, LogProgress
from client.dashboard.sources.history import History
from client.dashboard.sources.sources import PageSources
from client.dashboard.views import (
    connect,
    disputes,
    earnings,
    explorer,
    history,
    jobs,
    keys,
    models,
    network,
    overview,
    planner,
    receipts,
    wallet,
)
from client.dashboard.views.activity import SLICES, SPAN, SPANS_MS, Activity, activity
from client.dashboard.views.common import RequestLine, request_line
from client.records.store import ClientStore, JobRow, match_of
from client.wallet import Balances, dues
from core.money import pricing
from core.protocol import ids
from core.protocol.errors import HeadraceError, IdInvalid
from core.protocol.types import ZERO_ADDRESS
from core.protocol.units import covering_units, price_of_nano

PAGE = 25
RECENT = 300
#: Requests that the charts of a longer span are drawn from at most.
MOST_IN_SPAN = 5_000
UPTIME_DAYS = 30
MAX_ANSWERS = 500
EVENT_KINDS = (
    "JobMatched",
    "JobDelivered",
    "JobSettled",
    "JobDisputed",
    "Deposited",
    "MinerRegistered",
    "MachineRegistered",
    "ModelRegistered",
    "DisputeOpened",
    "GameOpened",
    "Slashed",
)


async def recent_requests(sources: PageSources, limit: int = RECENT) -> list[RequestLine]:
    """Paid requests, newest first; the route of the first few only, as no page shows more."""
    ledger = sources.gateway.ledger
    return [
        request_line(row, await ledger.answers(row.request_id) if position < PAGE else ())
        for position, row in enumerate(await ledger.requests(limit=limit))
    ]


async def model_names(sources: PageSources) -> tuple[str, ...]:
    """Models that can be asked, served ones first."""
    try:
        offers = await sources.gateway.catalogue.ls()
    except HeadraceError:
        return ()
    ordered = sorted(offers, key=lambda offer: (not offer.is_covered, offer.model.name))
    return tuple(offer.model.name for offer in ordered)


async def locks_of(sources: PageSources) -> list[wallet.Lock]:
    """What unfinished jobs hold, by the log."""
    if sources.log is None:
        return []
    return [
        wallet.Lock(str(event.args["job"]), covering_units(nano), event.block, event.at_s)
        for event in await sources.log.open_locks(sources.gateway.payer, limit=PAGE)
        if (nano := int(event.args["maxNano"]))
    ]


async def _back_by_s(sources: PageSources, job: str) -> int | None:
    """When a job's lock ends at the latest: a closing session's by the chain, else by its order."""
    if sources.log is None:
        return None
    closing = await sources.log.about(job, names=("JobClosing",), limit=1)
    if closing:
        return int(closing[0].args["until"])
    rules = (await sources.parameters.get()).value or {}
    delay_s = (rules.get("TaskRegistry", {}).get("params") or {}).get("closeDelaySeconds")
    store = sources.gateway.store
    if store is None or delay_s is None:
        return None
    try:
        row = await asyncio.to_thread(store.find_job, job)
    except IdInvalid:  # of another program's records
        return None
    order = match_of(row).signed.order
    return int(order.deadline) + int(order.window) + int(delay_s)


def _job_line(sources: PageSources, store: ClientStore, row: JobRow) -> jobs.OrderLine:
    """Waits for files; not for the loop."""
    submitted = store.submission(row.submission)
    runs = row.state == "open" and keeper_pid(sources.settings, submitted) is not None
    return jobs.job_line(row, store.requests(row.job_id), submitted, is_running=runs)


def _running_jobs(sources: PageSources, store: ClientStore) -> list[jobs.OrderLine]:
    """Files that a program on this machine is submitting. Waits for files."""
    rows = store.jobs(state="open")[:PAGE]
    return [line for line in (_job_line(sources, store, row) for row in rows) if line.is_running]


async def _progress(sources: PageSources) -> LogProgress:
    if sources.log is None:
        return LogProgress(None, 0, 0, "no chain is configured")
    return await sources.log.progress()


def _next_before(events: list[LoggedEvent], size: int) -> int | None:
    return events[-1].id if len(events) == size else None


@page("/", "Overview", "live/overview.html")
async def load_overview(sources: PageSources, asked: PageRequest) -> overview.Overview:
    status, offered, miners, routes, held = await asyncio.gather(
        sources.status.get(),
        sources.models.get(),
        sources.miners.get(),
        sources.routes.get(),
        sources.balances.get(),
    )
    batches, store = await sources.gateway.batches.ls(limit=20), sources.gateway.store
    submitted = await asyncio.to_thread(_running_jobs, sources, store) if store else []
    card, now_ms = overview.network_card(status, offered, miners), sources.now_ms()
    money = await _wallet_card(sources, held, await locks_of(sources))
    seen = offered.value or [], miners.value or []
    requests = await recent_requests(sources)
    span = asked.query.get("span", SPAN)
    span = span if span in SPANS_MS else SPAN
    return overview.Overview(
        network=card,
        wallet=money,
        running=tuple(overview.running_batch(b) for b in batches if b.status not in jobs.ENDED),
        submitted=tuple(submitted),
        chats=tuple(line for line in requests if line.state == "running"),
        receipts=tuple(line for line in requests if line.state != "running")[:8],
        way=overview.fastest_way(
            routes.value or [], miners.value or [], sources.name_of, present.size
        ),
        activity=await _activity(sources, span, requests, now_ms),
        span=span,
        spans=tuple(SPANS_MS),
        warnings=tuple(overview.warnings(card, money, *seen, sources.name_of)),
        at_ms=now_ms,
    )


async def _activity(
    sources: PageSources, span: str, recent: list[RequestLine], now_ms: int
) -> Activity:
    """Of a longer span it is added up again only once something could be seen to have moved."""
    if span == SPAN:
        return activity(recent, now_ms)

    async def add_up() -> Activity:
        lines = await recent_requests(sources, MOST_IN_SPAN)
        return activity(lines, sources.now_ms(), SPANS_MS[span])

    slice_s = SPANS_MS[span] / SLICES / 1000
    found = await sources.kept(f"activity {span}", add_up, fresh_s=slice_s / 10).get()
    return found.value or activity([], now_ms, SPANS_MS[span])


@page(
    "/models",
    "Models",
    "live/models.html",
    lead="Everything that is registered, with its price, its speed and who serves it now.",
)
async def load_models(sources: PageSources, asked: PageRequest) -> models.Models:
    found, routes, miners = await asyncio.gather(
        sources.models.get(), sources.routes.get(), sources.miners.get()
    )
    requests, uptimes = await recent_requests(sources), await sources.uptimes(UPTIME_DAYS)
    known = [str(model["modelId"]) for model in found.value or []]
    facts = dict(zip(known, await asyncio.gather(*map(sources.facts, known)), strict=True))
    return models.models(found, routes, miners, requests, uptimes, sources.name_of, facts)


@page("/models/{model:path}", "Model", "live/model.html", here="/models")
async def load_model(sources: PageSources, asked: PageRequest) -> models.ModelPage:
    found, routes, miners = await asyncio.gather(
        sources.models.get(), sources.routes.get(), sources.miners.get()
    )
    known = {str(model["modelId"]): model for model in found.value or []}
    typed = asked.path["model"]
    by_name = {sources.name_of(model_id): model_id for model_id in known}
    model_id = by_name.get(typed) or ids.find(ids.Kind.MODEL, typed, known, lambda one: one)
    requests, uptimes = await recent_requests(sources), await sources.uptimes(UPTIME_DAYS)
    facts, name_of = await sources.facts(model_id), sources.name_of
    return models.model_page(known[model_id], routes, miners, requests, uptimes, name_of, facts)


@dataclass(frozen=True)
class Chat:
    """The chat's form."""

    models: tuple[str, ...]
    chosen: str


@page("/chat", "Chat", content="parts/chat.html", script="chat.js")
async def load_chat(sources: PageSources, asked: PageRequest) -> Chat:
    return Chat(await model_names(sources), asked.query.get("model", ""))


@page(
    "/network",
    "Network",
    "live/network.html",
    lead="Who holds which layers, how the chains run, and how long a row of numbers takes "
    "from one machine to the next.",
)
async def load_network(sources: PageSources, asked: PageRequest) -> network.NetworkPage:
    found = await asyncio.gather(
        sources.status.get(),
        sources.models.get(),
        sources.miners.get(),
        sources.routes.get(),
        sources.allocations.get(),
    )
    return network.network(*found, sources.name_of)


@page(
    "/history",
    "History",
    "live/history.html",
    lead="What the whole network did, by the events of its contracts, and how its machines did.",
)
async def load_history(sources: PageSources, asked: PageRequest) -> history.HistoryPage:
    days = history.range_of(asked.query.get("days", ""))
    log = sources.require_log()
    found, miners = await asyncio.gather(
        sources.kept(f"history {days}", lambda: log.history(days), fresh_s=10.0).get(),
        sources.miners.get(),
    )
    progress = await log.progress()
    return history.history_page(
        found.value or History((), ()),
        miners,
        await sources.uptimes(days),
        sources.name_of,
        days,
        found.at_ms,
        found.problem or progress.problem,
    )


@page("/miners/{miner}", "Machine", "live/miner.html", here="/network")
async def load_miner(sources: PageSources, asked: PageRequest) -> network.MinerPage:
    found, offered = await asyncio.gather(sources.miners.get(), sources.models.get())
    operators = {str(m["operator"]): m for m in found.value or []}
    typed = asked.path["miner"]
    try:
        operator = ids.find(ids.Kind.MINER, typed, operators, lambda one: one)
    except IdInvalid:
        operator = await _operator_on_chain(sources, typed)
    specs = {str(model["modelId"]): model for model in offered.value or []}
    miner = operators.get(operator)
    line = None
    if miner is not None:
        line = network.miner_line(
            miner, specs.get(str(miner.get("modelId"))), sources.name_of, found.at_ms
        )
    return await _miner_page(sources, operator, line, asked)


async def _operator_on_chain(sources: PageSources, typed: str) -> str:
    if typed.startswith("0x") and len(typed) == 42:
        return ids.address(typed)
    log = sources.require_log()
    known = await log.subjects(("MinerRegistered",), "operator", 200)
    return ids.find(ids.Kind.MINER, typed, known, lambda one: one)


async def _miner_page(
    sources: PageSources, operator: str, line: network.MachineLine | None, asked: PageRequest
) -> network.MinerPage:
    owner, standing, events = None, {}, []
    jobs_matched = disputed = 0
    if sources.log is not None:
        owner = str(await sources.read("MinerRegistry", "ownerOf", operator))
        owner = None if owner == ZERO_ADDRESS else owner
        standing = await sources.read("MinerRegistry", "minerOf", owner) if owner else {}
        events = await sources.log.about(operator, before=asked.before, limit=PAGE)
        jobs_matched = await sources.log.count(operator, ("JobMatched",))
        if owner is not None:  # who is accused and whose stake is taken is the owner
            of_owner = await sources.log.about(
                owner, names=network.OF_OWNER, before=asked.before, limit=PAGE
            )
            both = {event.id: event for event in (*events, *of_owner)}
            events = [both[number] for number in sorted(both, reverse=True)][:PAGE]
            disputed = await sources.log.count(owner, network.ACCUSED)
    return network.MinerPage(
        miner=line,
        operator=operator,
        owner=owner,
        jailed_until=int(standing.get("jailUntil", 0)),
        strikes=int(standing.get("strikes", 0)),
        open_disputes=int(standing.get("openDisputes", 0)),
        stake_units=standing.get("stake"),
        leaving_units=int(standing.get("leaving", 0)),
        leave_at=int(standing.get("leaveAt", 0)),
        jobs_matched=jobs_matched,
        disputes=disputed,
        events=tuple(explorer.event_line(event) for event in events),
        next_before=_next_before(events, PAGE),
        at_ms=(await _progress(sources)).at_ms,
    )


@page("/jobs", "Jobs", "live/jobs.html", form="parts/jobs_form.html")
async def load_jobs(sources: PageSources, asked: PageRequest) -> jobs.Jobs:
    gateway, now_ms = sources.gateway, sources.now_ms()
    batches = await gateway.batches.ls(limit=PAGE)
    orders = []
    if gateway.store is not None:
        for row in (await asyncio.to_thread(gateway.store.jobs))[:PAGE]:
            orders.append(await asyncio.to_thread(_job_line, sources, gateway.store, row))
    return jobs.Jobs(
        batches=tuple(jobs.batch_line(row, now_ms / 1000) for row in batches[:PAGE]),
        jobs=tuple(orders),
        requests=tuple(await recent_requests(sources, PAGE)),
        models=await model_names(sources),
        at_ms=now_ms,
    )


@page("/jobs/{job}", "Job", "live/job.html", here="/jobs")
async def load_job(
    sources: PageSources, asked: PageRequest
) -> jobs.BatchPage | jobs.JobPage | explorer.Explorer:
    """A batch, an order of ours, or what the chain says of another requester's."""
    typed = asked.path["job"]
    if typed.startswith("batch_"):
        return await _batch_page(sources, typed, asked)
    try:
        return await _job_page(sources, typed, asked)
    except IdInvalid:
        if sources.log is None:
            raise
        known = await sources.log.subjects(("JobMatched",), "job", 200)
        found = typed if _is_hash(typed) else ids.find(ids.Kind.JOB, typed, known, lambda one: one)
        return await _thing(sources, found, asked, "A job of another requester")


async def _batch_page(sources: PageSources, batch_id: str, asked: PageRequest) -> jobs.BatchPage:
    gateway = sources.gateway
    row = await gateway.batches.get(batch_id)
    answers = await gateway.batches.answers.first(batch_id, MAX_ANSWERS)
    read = await sources.reader(row.model) if asked.has_session else None
    lines = tuple(jobs.answer_line(row, read, index=row.line_number) for row in answers)
    now_ms = sources.now_ms()
    return jobs.BatchPage(
        batch=jobs.batch_line(row, now_ms / 1000),
        answers=lines,
        failures=await _failures(sources, row.error_file_id) if asked.has_session else (),
        job_ids=tuple(dict.fromkeys(answer.job_id for answer in answers if answer.job_id)),
        may_see_texts=read is not None,
        at_ms=now_ms,
    )


async def _failures(sources: PageSources, file_id: str | None) -> tuple[jobs.FailedLine, ...]:
    """The first lines of a batch's error file; none once it is deleted."""
    if file_id is None:
        return ()
    path = sources.gateway.files.path(file_id)

    def read() -> tuple[jobs.FailedLine, ...]:
        with path.open(encoding="utf-8") as file:
            return tuple(jobs.failed_line(line) for line in islice(file, PAGE))

    try:
        return await asyncio.to_thread(read)
    except FileNotFoundError:
        return ()


async def _job_page(sources: PageSources, typed: str, asked: PageRequest) -> jobs.JobPage:
    store = sources.gateway.store
    if store is None:
        raise IdInvalid(f"no job '{typed}'", "this gateway keeps no records")
    row = await asyncio.to_thread(store.find_job, typed)
    line = await asyncio.to_thread(_job_line, sources, store, row)
    requests = await asyncio.to_thread(store.requests, row.job_id)
    held = await asyncio.to_thread(store.receipts, row.job_id)
    match, order = match_of(row), match_of(row).signed.order
    on_chain, locked, spec_units = "unknown", 0, 1
    if sources.chain is not None:
        state = await sources.read("TaskRegistry", "jobOf", row.job_id, match.plan_hash)
        on_chain = jobs.state_name(int(state["state"]))
        locked = covering_units(pricing.locked_nano(order, state))
        spec_units = await _layer_units(sources, order.model_id)
    read = await sources.reader(sources.name_of(order.model_id)) if asked.has_session else None
    events = await sources.log.about(row.job_id, limit=PAGE) if sources.log else []
    answers = tuple(
        jobs.answer_line(
            request,
            read,
            index=request.request_index,
            custom_id=request.custom_id,
            tokens_in=len(json.loads(request.prompt_ids)),
        )
        for request in requests[:MAX_ANSWERS]
    )
    return jobs.JobPage(
        job=line,
        on_chain=on_chain,
        locked_units=locked,
        model_id=order.model_id,
        model=sources.name_of(order.model_id),
        disputes=tuple(
            str(event.args[disputes.OPENED[event.name]])
            for event in events
            if event.name in disputes.OPENED
        ),
        requester=order.requester,
        deadline=order.deadline,
        window=order.window,
        price_in=price_of_nano(order.price_in, spec_units),
        price_out=price_of_nano(order.price_out, spec_units),
        max_tokens_in=order.max_tokens_in,
        max_tokens_out=order.max_tokens_out,
        transaction=row.tx_hash,
        stages=jobs.stage_lines(match.plan, held),
        answers=answers,
        receipts=jobs.receipt_lines(held[:MAX_ANSWERS]),
        events=tuple(explorer.event_line(event) for event in events),
        batch_ids=(line.batch_id,) if line.batch_id else (),
        may_see_texts=read is not None,
        at_ms=sources.now_ms(),
    )


async def _layer_units(sources: PageSources, model_id: str) -> int:
    return pricing.model_units(await sources.read("ModelRegistry", "shapeOf", model_id))


@page("/receipts/{receipt}", "Receipt", "live/receipt.html", here="/jobs")
async def load_receipt(
    sources: PageSources, asked: PageRequest
) -> receipts.ReceiptPage | receipts.StageReceiptPage:
    gateway, typed = sources.gateway, asked.path["receipt"]
    row = await gateway.ledger.request(typed)
    if row is not None:
        answers = await gateway.ledger.answers(row.request_id)
        held = []
        if gateway.store is not None:
            wanted = {(answer.job_id, answer.job_request) for answer in answers}
            for job_id in dict.fromkeys(job for job, _ in wanted):
                held += [
                    (kept, signed)
                    for kept, signed in await asyncio.to_thread(gateway.store.receipts, job_id)
                    if any((job_id, leaf.request_index) in wanted for leaf in signed.leaves)
                ]
        return receipts.receipt_page(row, answers, held[:MAX_ANSWERS], sources.now_ms())
    if gateway.store is None:
        raise IdInvalid(f"no receipt '{typed}'", "this gateway has none that starts with it")
    kept, signed = await asyncio.to_thread(gateway.store.find_receipt, typed)
    job = await asyncio.to_thread(gateway.store.find_job, kept.job_id)
    operator = match_of(job).plan[kept.stage].operator
    return receipts.stage_receipt_page(kept, signed, operator)


@page(
    "/keys",
    "Keys",
    "live/keys.html",
    form="parts/keys_form.html",
    lead="A key lets a program spend from your wallet, as far as its budget goes.",
)
async def load_keys(sources: PageSources, asked: PageRequest) -> keys.Keys:
    ring = sources.gateway.keys
    return keys.keys(
        await ring.ls(), await ring.usage(days=30), await model_names(sources), sources.now_ms()
    )


@page("/wallet", "Wallet", "live/wallet.html")
async def load_wallet(sources: PageSources, asked: PageRequest) -> wallet.WalletPage:
    payer, progress = sources.gateway.payer, await _progress(sources)
    events: list[LoggedEvent] = []
    if sources.log is not None:
        events = await sources.log.movements(
            payer, tuple(wallet.MOVES), before=asked.before, limit=PAGE
        )
    held, locks = await sources.balances.get(), await locks_of(sources)
    dated = [replace(one, back_by_s=await _back_by_s(sources, one.job_id)) for one in locks]
    found = held.value
    return wallet.WalletPage(
        card=await _wallet_card(sources, held, locks),
        thawing_units=None if found is None else found.thawing,
        thaw_ready_at=0 if found is None else found.thaw_ready_at,
        credit_units=None if found is None else found.credit,
        locks=tuple(dated),
        movements=tuple(map(wallet.movement, events)),
        next_before=_next_before(events, PAGE),
        escrow=sources.chain.addresses["Escrow"] if sources.chain else "",
        at_ms=progress.at_ms or sources.now_ms(),
        problem=held.problem or progress.problem,
    )


async def _wallet_card(
    sources: PageSources, held: Dated[Balances], locks: list[wallet.Lock]
) -> overview.WalletCard:
    per_day = overview.spent_per_day(await sources.gateway.keys.usage(days=7))
    locked = sum(lock.amount_units for lock in locks)
    return overview.wallet_card(held, sources.gateway.payer, locked, per_day)


@page("/earnings", "Earnings", "live/earnings.html", form="parts/earnings_form.html")
async def load_earnings(sources: PageSources, asked: PageRequest) -> earnings.EarningsPage:
    typed, now_ms = asked.query.get("owner", "").strip(), sources.now_ms()
    progress = await _progress(sources)
    nobody = earnings.EarningsPage(
        "", "", None, None, 0, 0, 0, earnings.counts(()), (), (), (), None, now_ms, progress.problem
    )
    if not typed:
        return nobody
    owner = ids.address(typed)
    log = sources.require_log()
    standing = await sources.read("MinerRegistry", "minerOf", owner)
    operator = str(standing["operator"])
    matched = await log.about(operator, names=("JobMatched",), before=asked.before, limit=PAGE)
    mine = [event for event in matched if operator != ZERO_ADDRESS]
    states = await asyncio.gather(
        *(
            sources.read("TaskRegistry", "jobOf", event.args["job"], event.args["planHash"])
            for event in mine
        )
    )
    income = await log.income_of_jobs(owner, [str(event.args["job"]) for event in mine])
    paid, per_day = await log.income(owner)
    payouts = tuple(
        earnings.payout(event, int(state["state"]), income)
        for event, state in zip(mine, states, strict=True)
    )
    slashes = await log.about(owner, names=("Slashed",), limit=PAGE)
    lost = [s for s in slashes if str(s.args["owner"]).lower() == owner.lower()]
    return earnings.EarningsPage(
        owner=owner,
        operator=operator,
        credit_units=(await dues(sources.read, owner)).total,
        stake_units=int(standing["stake"]),
        leaving_units=int(standing["leaving"]),
        paid_units=paid,
        slashed_units=sum(int(s.args["amount"]) for s in lost),
        counts=earnings.counts(payouts),
        days=earnings.days(per_day),
        payouts=payouts,
        slashes=tuple(lost),
        next_before=_next_before(matched, PAGE),
        at_ms=progress.at_ms,
        problem=progress.problem,
    )


@page(
    "/planner",
    "Planner",
    content="parts/planner.html",
    lead="What each method would do with a fleet: the live one, or one that you make up.",
)
async def load_planner(sources: PageSources, asked: PageRequest) -> planner.Planner:
    found: Dated[list[dict[str, Any]]] = await sources.models.get()
    offered = tuple(
        (str(model["modelId"]), sources.name_of(str(model["modelId"])))
        for model in found.value or []
    )
    return planner.Planner(
        offered, planner.METHODS, planner.CHOSEN, planner.EXAMPLE, sources.now_ms()
    )


@page(
    "/disputes",
    "Disputes",
    "live/disputes.html",
    lead="Whoever signed for wrong work loses stake. Here is every accusation and where it stands.",
)
async def load_disputes(sources: PageSources, asked: PageRequest) -> disputes.Disputes:
    progress = await _progress(sources)
    opened: list[LoggedEvent] = []
    if sources.log is not None:
        opened = await sources.log.named(*disputes.OPENED, before=asked.before, limit=PAGE)
    states = await asyncio.gather(*(_dispute_state(sources, event) for event in opened))
    lines = tuple(
        disputes.dispute_line(event, state) for event, state in zip(opened, states, strict=True)
    )
    return disputes.Disputes(lines, _next_before(opened, PAGE), progress.at_ms, progress.problem)


async def _dispute_state(sources: PageSources, opened: LoggedEvent) -> dict[str, Any]:
    dispute = opened.args[disputes.OPENED[opened.name]]
    function = "disputeOf" if opened.name == "DisputeOpened" else "gameOf"
    found: dict[str, Any] = await sources.read(opened.contract, function, dispute)
    return found


@page("/disputes/{dispute}", "Dispute", "live/dispute.html", here="/disputes")
async def load_dispute(sources: PageSources, asked: PageRequest) -> disputes.DisputePage:
    log, typed = sources.require_log(), asked.path["dispute"]
    opened = await log.named(*disputes.OPENED, limit=200)
    event = ids.find(
        ids.Kind.DISPUTE, typed, opened, lambda one: str(one.args[disputes.OPENED[one.name]])
    )
    dispute = str(event.args[disputes.OPENED[event.name]])
    panel: list[str] = []
    if event.name == "DisputeOpened":
        panel = list(await sources.read("JuryArbitrator", "panelOf", dispute))
    moves = list(reversed(await log.about(dispute, limit=200)))
    is_ruled = any(one.name == "GameRuled" for one in moves)
    matched = await log.about(str(event.args["job"]), names=("JobMatched",), limit=1)
    return disputes.dispute_page(
        event,
        await _dispute_state(sources, event),
        moves,
        panel,
        trial=await sources.trial(event) if is_ruled else None,
        operator=disputes.accused_operator(event, matched[0]) if matched else "",
        chain_now_s=await sources.require_chain().now(),
        now_ms=sources.now_ms(),
    )


@page("/explorer", "Explorer", "live/explorer.html", form="parts/explorer_form.html")
async def load_explorer(sources: PageSources, asked: PageRequest) -> explorer.Explorer:
    chosen = asked.query.get("name", "")
    names = (chosen,) if chosen else ()
    events: list[LoggedEvent] = []
    if sources.log is not None:
        events = await sources.log.named(*names, before=asked.before, limit=PAGE)
    more: dict[str, Any] = {"names": EVENT_KINDS, "chosen": chosen}
    if sources.chain is not None:
        more["contracts"] = sources.chain.addresses
        more["parameters"] = explorer.rules((await sources.parameters.get()).value)
    return await _explorer(sources, events, "Latest events", **more)


@page("/addresses/{address}", "Address", "live/explorer.html", here="/explorer")
async def load_address(sources: PageSources, asked: PageRequest) -> explorer.Explorer:
    address = ids.address(asked.path["address"])
    events = await sources.require_log().about(address, before=asked.before, limit=PAGE)
    facts: list[tuple[str, str]] = [("address", address)]
    names = {where.lower(): name for name, where in sources.require_chain().addresses.items()}
    if address.lower() in names:
        facts.append(("contract", names[address.lower()]))
    else:
        show = sources.settings.show_token
        for label, contract in (("in the wallet", "TestUSD"), ("prepaid", "Escrow")):
            facts.append((label, show(await sources.read(contract, "balanceOf", address))))
        fees = (await sources.read("Escrow", "feesOf", address))["ofMatcher"]
        facts.append(
            ("pay as an operator", show(await sources.read("Escrow", "earnedOf", address)))
        )
        facts.append(("fees as a matcher", show(fees)))
    about = {"subject": address, "subject_kind": "address", "facts": tuple(facts)}
    return await _explorer(sources, events, "Events with this address", **about)


@page("/transactions/{tx}", "Transaction", "live/explorer.html", here="/explorer")
async def load_transaction(sources: PageSources, asked: PageRequest) -> explorer.Explorer:
    tx = "0x" + ids.raw_id(asked.path["tx"]).hex()
    events = await sources.require_log().of_transaction(tx)
    call = await sources.require_chain().call_of(tx) if events else None
    facts = [("transaction", tx)]
    if call is not None:
        facts += [("from", call.sender), ("calls", f"{call.contract}.{call.function}")]
    about = {"subject": tx, "subject_kind": "transaction", "facts": tuple(facts)}
    return await _explorer(sources, events, "Events of this transaction", **about)


@page("/blocks/{block}", "Block", "live/explorer.html", here="/explorer")
async def load_block(sources: PageSources, asked: PageRequest) -> explorer.Explorer:
    text = asked.path["block"]
    if not (text.isascii() and text.isdigit() and len(text) < 18):
        raise IdInvalid(f"'{text}' is not a block", "a block is a number")
    events = await sources.require_log().of_block(int(text))
    facts = [("block", text)]
    if events and events[0].at_s is not None:
        facts.append(("time", f"{events[0].at_s} s since 1970"))
    about = {"subject": text, "subject_kind": "block", "facts": tuple(facts)}
    return await _explorer(sources, events, "Events of this block", **about)


async def _explorer(
    sources: PageSources, events: list[LoggedEvent], title: str, **more: Any
) -> explorer.Explorer:
    progress = await _progress(sources)
    return explorer.Explorer(
        title=title,
        events=tuple(explorer.event_line(event) for event in events),
        next_before=_next_before(events, PAGE),
        chain_id=sources.chain.chain_id if sources.chain else None,
        block=progress.block,
        total_events=progress.events,
        at_ms=progress.at_ms,
        problem=progress.problem,
        **more,
    )


@page(
    "/connect",
    "Connect",
    content="parts/connect.html",
    lead="Change a base URL, keep your program.",
)
async def load_connect(sources: PageSources, asked: PageRequest) -> connect.Connect:
    names = await model_names(sources)
    return connect.connect(asked.url, names, sources.now_ms(), asked.query.get("model", ""))


async def owners(sources: PageSources) -> tuple[str, ...]:
    """Owners of the machines that are there, to choose from."""
    found = (await sources.miners.get()).value or []
    return tuple(dict.fromkeys(str(m["owner"]) for m in found if m.get("owner")))[:8]


async def where_is(sources: PageSources, typed: str) -> str:
    """The path of the page of what a person typed. Raises IdInvalid."""
    text = typed.strip()
    prefixes = {f"{kind.value}_": name for kind, name in present.PAGES.items()}
    for prefix, name in (prefixes | {"batch_": "jobs"}).items():
        if text.lower().startswith(prefix):
            return f"/{name}/{text}"
    if text.isascii() and text.isdigit():
        return f"/blocks/{text}"
    if text.startswith("0x") and len(text) == 42:
        return f"/addresses/{text}"
    if text.startswith("0x") and len(text) == 66:
        return await _where_is_hash(sources, text.lower())
    if text in await model_names(sources):
        return f"/models/{text}"
    raise IdInvalid(
        f"'{text[:80]}' is nothing that is known here",
        "an id starts with job_, rcpt_, mnr_, disp_ or model_; an address or hash with 0x",
    )


async def _where_is_hash(sources: PageSources, text: str) -> str:
    log: ChainLog = sources.require_log()
    if await log.of_transaction(text):
        return f"/transactions/{text}"
    for event in await log.about(text, limit=10):
        if str(event.args.get("job", "")).lower() == text:
            return f"/jobs/{text}"
        if event.name in disputes.OPENED:
            return f"/disputes/{text}"
        if event.name == "ModelRegistered":
            return f"/models/{text}"
    raise IdInvalid(f"no event names {text}", "the chain log has none with this hash")


@page("/things/{thing}", "On chain", "live/explorer.html", here="/explorer")
async def load_thing(sources: PageSources, asked: PageRequest) -> explorer.Explorer:
    """Events about any 32-byte id."""
    return await _thing(sources, asked.path["thing"], asked, "Events with this id")


async def _thing(
    sources: PageSources, typed: str, asked: PageRequest, title: str
) -> explorer.Explorer:
    thing = "0x" + ids.raw_id(typed).hex()
    events = await sources.require_log().about(thing, before=asked.before, limit=PAGE)
    if not events:
        raise IdInvalid(f"no event names {typed[:80]}", "the chain log has none with this id")
    about = {"subject": thing, "subject_kind": "thing", "facts": (("id", thing),)}
    return await _explorer(sources, events, title, **about)


def _is_hash(text: str) -> bool:
    return text.startswith("0x") and len(text) == 66
