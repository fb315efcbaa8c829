"""What did this miner earn: settled, delivered, disputed, lost; by job, by day, by model?

The chain is the book: every figure is a sum of its events. Only what is not settled yet is reckoned
from the orders that this machine keeps, as the contract would split them.
"""

from __future__ import annotations

import asyncio
import csv
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from core.chain.chain import Chain, ChainEvent, history
from core.chain.earned import earned_by
from core.chain.rpc import RpcChain
from core.money import pricing
from core.protocol import ids, units
from core.protocol.errors import UsageError
from core.protocol.types import ZERO_ADDRESS, ModelSpec
from core.runtime.commands.console import Run
from core.runtime.settings import Settings
from miner.commands.facts import require_operator
from miner.commands.results import EarnedRow, Earnings

By = Literal["job", "day", "model"]
TIMES_AT_ONCE = 20
TO_OPERATOR = 0  # of Escrow's payees
_ENDS = {"JobSettled": "settled", "JobCancelled": "ended", "JobExpired": "ended"}


@dataclass
class Served:
    """One job that this owner's machines had a part in, as far as its events tell."""

    job: str
    model: str
    stages: list[int]
    state: str = "running"
    paid_nano: int = 0
    pending_nano: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    block: int = 0


@dataclass
class Books:
    """Everything that the events say about one owner."""

    operators: set[str] = field(default_factory=set)
    jobs: dict[str, Served] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    payments: list[tuple[int, int]] = field(default_factory=list)  # block, nano units
    collected_units: int = 0
    slashed_units: int = 0


def take_in(books: Books, events: Iterable[ChainEvent], owner: str) -> None:
    """Add events, in chain order. Pure but for `books`."""
    for event in events:
        args, job = event.args, str(event.args.get("job", "")).lower()
        match event.name:
            case "MinerRegistered" if str(args["owner"]).lower() == owner:
                books.operators.add(str(args["operator"]).lower())
            case "OperatorRotated" if str(args["owner"]).lower() == owner:
                books.operators.add(str(args["newOperator"]).lower())
            case "JobOpened":
                books.models[job] = str(args["modelId"]).lower()
            case "JobMatched":
                mine = [
                    number
                    for number, stage in enumerate(args["plan"])
                    if str(stage["operator"]).lower() in books.operators
                ]
                if mine:
                    model = books.models.get(job, "")
                    books.jobs[job] = Served(job, model, mine, block=event.block_number)
            case "Slashed" if args["owner"].lower() == owner:
                books.slashed_units += int(args["amount"])
            case "Paid":
                nano = sum(
                    int(pay)
                    for operator, pay in zip(args["operators"], args["payNano"], strict=True)
                    if str(operator).lower() in books.operators
                )
                if nano:
                    books.payments.append((event.block_number, nano))
                    if job in books.jobs:
                        books.jobs[job].paid_nano += nano
            case "Collected" if int(args["payee"]) == TO_OPERATOR:
                if str(args["account"]).lower() in books.operators:
                    books.collected_units += int(args["amount"])
            case _ if job in books.jobs:
                _move(books.jobs[job], event)


def _move(served: Served, event: ChainEvent) -> None:
    if event.name == "JobDelivered":
        served.state = "delivered"
        served.tokens_in, served.tokens_out = event.args["tokensIn"], event.args["tokensOut"]
    elif event.name == "JobDisputed":
        served.state = "disputed"
    elif event.name == "JobResolved":
        served.state = "delivered"
    elif event.name in _ENDS:
        served.state = _ENDS[event.name]


def rows_of(
    books: Books,
    by: By,
    day_of: Mapping[int, str],
    name_of: Callable[[str], str],
    show: Callable[[int], str],
) -> list[EarnedRow]:
    """The table, newest first. A day has what was paid and the jobs that began on it."""
    groups: dict[str, list[Served]] = {}
    paid: dict[str, int] = {}
    for served in books.jobs.values():
        key = {
            "job": lambda s: ids.short(ids.Kind.JOB, s.job),
            "day": lambda s: day_of.get(s.block, "?"),
            "model": lambda s: name_of(s.model),
        }[by](served)
        groups.setdefault(key, []).append(served)
        if by != "day":
            paid[key] = paid.get(key, 0) + served.paid_nano
    if by == "day":
        for block, nano in books.payments:
            day = day_of.get(block, "?")
            groups.setdefault(day, [])
            paid[day] = paid.get(day, 0) + nano
    order = sorted(groups, reverse=True) if by == "day" else list(reversed(groups))
    return [_row(key, groups[key], paid.get(key, 0), show) for key in order]


def _row(key: str, jobs: Sequence[Served], paid: int, show: Callable[[int], str]) -> EarnedRow:
    def count(state: str) -> int:
        return sum(job.state == state for job in jobs)

    pending = sum(job.pending_nano for job in jobs if job.state == "delivered")
    return EarnedRow(
        key=key,
        jobs=len(jobs),
        settled=count("settled"),
        delivered=count("delivered"),
        disputed=count("disputed"),
        running=count("running"),
        ended=count("ended"),
        paid=show(units.whole_units(paid)),
        pending=show(units.whole_units(pending)),
    )


async def read_earnings(run: Run, by: By, since: str | None, csv_file: Path | None) -> Earnings:
    """From the chain, and what is to come from this machine's orders. Raises UsageError."""
    from miner.commands.registration import REGISTRY, open_chain

    settings, show = run.settings, run.settings.show_token
    operator = require_operator(settings, "whose earnings?")
    async with open_chain(settings) as chain:
        owner = str(await chain.read(REGISTRY, "ownerOf", operator))
        if owner == ZERO_ADDRESS:
            raise UsageError(
                f"operator {operator} is not registered",
                f"no miner on chain {chain.chain_id} names it",
                next_step="miner register --stake AMOUNT",
            )
        first = await _first_block(chain, settings, since)
        books = await _read(run, chain, owner.lower(), settings.network.deploy_block, first)
        await _reckon_pending(chain, settings, books)
        blocks = {block for block, _ in books.payments} | {j.block for j in books.jobs.values()}
        days = await _days(chain, sorted(blocks)) if by == "day" else {}
        to_claim = int(await chain.read(REGISTRY, "creditOf", owner))
        to_claim += sum((await earned_by(chain.read, owner)).values())
    names = {known.lower(): name for name, known in settings.network.models.items()}
    rows = rows_of(books, by, days, lambda m: names.get(m, m[:10] or "?"), show)

    def pending(state: str) -> int:
        jobs = books.jobs.values()
        return units.whole_units(sum(job.pending_nano for job in jobs if job.state == state))

    if csv_file is not None:
        _write_csv(csv_file, rows)
    return Earnings(
        owner=owner,
        operator=operator,
        since=since,
        by=by,
        rows=rows,
        paid=show(units.whole_units(sum(nano for _, nano in books.payments))),
        collected=show(books.collected_units),
        pending=show(pending("delivered")),
        disputed=show(pending("disputed")),
        slashed=show(books.slashed_units),
        to_claim=show(to_claim),
    )


async def _read(run: Run, chain: Chain, owner: str, deploy_block: int, first: int) -> Books:
    """Events from `first` on count; the owner's operators are read from the beginning."""
    head = await chain.block_number()
    books, before = Books(), Books()
    with run.stage(
        1, 1, "reading the chain", total=head + 1 - deploy_block, unit="blocks"
    ) as stage:
        async for end, events in history(chain, deploy_block, head):
            take_in(before, [e for e in events if e.block_number < first], owner)
            books.operators |= before.operators
            books.models |= before.models
            take_in(books, [e for e in events if e.block_number >= first], owner)
            stage.set(end + 1 - deploy_block)
    return books


async def _first_block(chain: RpcChain, settings: Settings, since: str | None) -> int:
    """The first block that is not older than `since` before the newest, by bisection."""
    low, high = settings.network.deploy_block, await chain.block_number()
    if since is None:
        return low
    wanted_s = await chain.now() - units.parse_duration(since)
    while low < high:
        middle = (low + high) // 2
        if await _time_of(chain, middle) < wanted_s:
            low = middle + 1
        else:
            high = middle
    return low


async def _time_of(chain: RpcChain, block: int) -> int:
    found: Any = await chain.rpc("eth_getBlockByNumber", hex(block), False)
    stamp = found["timestamp"]
    return int(stamp, 16) if isinstance(stamp, str) else int(stamp)


async def _days(chain: RpcChain, blocks: Sequence[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for at in range(0, len(blocks), TIMES_AT_ONCE):
        some = blocks[at : at + TIMES_AT_ONCE]
        times = await asyncio.gather(*(_time_of(chain, block) for block in some))
        for block, at_s in zip(some, times, strict=True):
            found[block] = time.strftime("%Y-%m-%d", time.gmtime(at_s))
    return found


async def _reckon_pending(chain: Chain, settings: Settings, books: Books) -> None:
    """What delivered and disputed jobs will bring, from the orders in this machine's store."""
    open_jobs = [job for job in books.jobs.values() if job.state in ("delivered", "disputed")]
    if not open_jobs:
        return
    kept = await asyncio.to_thread(_kept_orders, settings)
    protocol_fee_bps = int((await chain.read("TaskRegistry", "params"))["protocolFeeBps"])
    specs: dict[str, ModelSpec] = {}
    for job in open_jobs:
        stored = kept.get(job.job)
        if stored is None:
            continue
        order, plan = stored
        if order.model_id not in specs:
            raw = await chain.read("ModelRegistry", "specOf", order.model_id)
            specs[order.model_id] = msgspec.convert(raw, ModelSpec)
        share = pricing.split(
            order,
            plan,
            specs[order.model_id],
            job.tokens_in,
            job.tokens_out,
            protocol_fee_bps=protocol_fee_bps,
        )
        job.pending_nano = sum(share.pays[stage] for stage in job.stages)


def _kept_orders(settings: Settings) -> dict[str, tuple[Any, Any]]:
    from miner.records.home import Home
    from miner.records.store import MinerStore

    database = Home.of(settings).database
    if not database.is_file():
        return {}
    store = MinerStore(database)
    try:
        return {job.job_id.lower(): (job.order, job.plan) for job in store.live_jobs()}
    finally:
        store.close()


def _write_csv(file: Path, rows: Sequence[EarnedRow]) -> None:
    names = list(EarnedRow.__struct_fields__)
    try:
        with file.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            writer.writerow(names)
            writer.writerows([getattr(row, name) for name in names] for row in rows)
    except OSError as error:
        raise UsageError(f"cannot write {file}", error.strerror or str(error)) from None
