"""The matcher's answers are read or refused; its errors keep their class and words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from client.audit.evidence import AuditCase
from client.commands.judge.watch_service import _Work, tell_matcher
from client.orders.matcher_api import MatcherApi
from client.orders.matchers import Matchers
from client.orders.orders import PromptBatch
from client.watch.watch_book import RequestVerdict, StageVerdict, WatchBook
from core.money.audit_report import SignedReport, is_its_authors
from core.money.paid_audits import (
    MAX_ASK_BYTES,
    MOST_RECEIPTS,
    AuditEnd,
    AuditFinding,
    SignedAsk,
    SignedFinding,
    is_its_auditors,
)
from core.protocol import signing
from core.protocol.errors import (
    CheckFailed,
    ConfigError,
    DepositShort,
    HeadraceError,
    MatcherUnreachable,
    NoCapacity,
    UsageError,
)
from tests.town.orders import DOMAIN, key, prompts, signed_order
from tests.town.stages import Stages

JOB = "0x" + "0b" * 32
Serve = Callable[[int, Any], Awaitable[MatcherApi]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(status, document)` answers every request; str and bytes go as they are."""
    closing: list[Any] = []

    async def start(status: int, document: Any) -> MatcherApi:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next(
                (
                    int(x.split(":")[1])
                    for x in head.split("\r\n")
                    if x.startswith("content-length")
                ),
                0,
            )
            requests.append((head.split("\r\n")[0], await reader.readexactly(length)))
            writer.write(
                f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
            writer.close()

        requests: list[tuple[str, bytes]] = []
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        api = MatcherApi(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", timeout_s=5.0)
        api.requests = requests  # type: ignore[attr-defined]
        closing.append((server, api))
        return api

    yield start
    for server, api in closing:
        await api.close()
        server.close()


def opened(stages: Stages, batch: PromptBatch, **changes: Any) -> dict[str, Any]:
    signed = signed_order(batch)
    plan = [msgspec.to_builtins(stage) for stage in stages.plan]
    document = {
        "jobId": signing.job_id(DOMAIN, signed.order),
        "plan": plan,
        "endpoints": ["a:1", "b:2", "c:3"],
        "txHash": "0xab",
        "newerField": 1,
    }
    return document | changes


async def test_order_is_sent_signed_and_read_back_as_a_match(serve: Serve) -> None:
    stages, batch = Stages(), PromptBatch.of(prompts(2))
    api = await serve(201, opened(stages, batch))
    match = await api.open_job(signed_order(batch), DOMAIN)
    assert match.plan == stages.plan
    assert match.endpoints == ("a:1", "b:2", "c:3")
    ((line, body),) = api.requests  # type: ignore[attr-defined]
    assert line.startswith("post /v1/orders ")
    assert msgspec.json.decode(body, type=type(signed_order(batch))) == signed_order(batch)


@pytest.mark.parametrize(
    "changes",
    [{"jobId": "0x" + "00" * 32}, {"endpoints": ["a:1", "b:2"]}],
    ids=["job", "endpoints"],
)
async def test_answer_about_another_job_is_refused(serve: Serve, changes: dict[str, Any]) -> None:
    stages, batch = Stages(), PromptBatch.of(prompts(2))
    api = await serve(201, opened(stages, batch, **changes))
    with pytest.raises(CheckFailed):
        await api.open_job(signed_order(batch), DOMAIN)


async def test_auditor_tells_all_it_has_found_signed(tmp_path: Path, serve: Serve) -> None:
    api = await serve(200, {"operators": 2})
    book = WatchBook(tmp_path / "watch.sqlite")
    good, bad = key(101).address, key(102).address
    book.keep([StageVerdict("0x01", 0, good, AuditEnd.CLEAN, 1, 0, 0.1, 1.0, "")], 5.0)
    book.keep([StageVerdict("0x01", 1, bad, AuditEnd.FAULT, 1, 1, 2.0, 1.0, "off")], 6.0)
    context: Any = SimpleNamespace(
        matcher=lambda: Matchers([(api, None)]), chain=SimpleNamespace(domain=DOMAIN)
    )
    await tell_matcher(context, key(77), book.standings())
    book.close()
    ((line, body),) = api.requests  # type: ignore[attr-defined]
    assert line.startswith("post /v1/audits ")
    signed = msgspec.json.decode(body, type=SignedReport)
    assert is_its_authors(signed, DOMAIN)
    first, second = signed.report.operators
    assert (first.operator, first.faults, first.last_fault_at) == (bad.lower(), 1, 6)
    assert (second.operator, second.faults, second.clean) == (good.lower(), 0, 1)


async def test_auditor_asks_for_lots_and_answers_signed(serve: Serve) -> None:
    stages, batch = Stages(), PromptBatch.of(prompts(2))
    signed = signed_order(batch)
    stages.match(batch, signed)
    answers = {0: stages.answer(0)}
    pipelines = [[stages.receipt(stage, answers) for stage in range(3)]]
    case = AuditCase(JOB, signed.order, stages.plan)
    auditor = key(77)

    def work_of(api: MatcherApi) -> _Work:
        known = Matchers([(api, signed.order.matcher)])
        context: Any = SimpleNamespace(matcher=lambda: known, chain=SimpleNamespace(domain=DOMAIN))
        return _Work(SimpleNamespace(), context, auditor, {})  # type: ignore[arg-type]

    api = await serve(200, {"requests": [0]})
    assert await work_of(api).paid_lots(case, pipelines) == {0}
    ((line, body),) = api.requests  # type: ignore[attr-defined]
    asked = msgspec.json.decode(body, type=SignedAsk)
    assert line.startswith("post /v1/audits/lots ")
    assert is_its_auditors(asked, DOMAIN)
    assert asked.asked.receipts == (pipelines[0][-1],)

    other = msgspec.structs.replace(signed.order, matcher=key(41).address)
    elsewhere = AuditCase(JOB, other, stages.plan)
    assert await work_of(api).paid_lots(elsewhere, pipelines) == ()
    assert len(api.requests) == 1, "it is another matcher's job"  # type: ignore[attr-defined]

    api = await serve(200, {"requests": [0]})
    many = [pipelines[0]] * (MOST_RECEIPTS + 1)
    assert await work_of(api).paid_lots(case, many) == {0}
    shown = [
        len(msgspec.json.decode(body, type=SignedAsk).asked.receipts)
        for _, body in api.requests  # type: ignore[attr-defined]
    ]
    assert shown == [MOST_RECEIPTS, 1]
    assert max(len(body) for _, body in api.requests) < MAX_ASK_BYTES  # type: ignore[attr-defined]

    api = await serve(200, {"taken": True})
    await work_of(api).hand_in(case, RequestVerdict(0, AuditEnd.FAULT, 2))
    ((line, body),) = api.requests  # type: ignore[attr-defined]
    said = msgspec.json.decode(body, type=SignedFinding)
    assert line.startswith("post /v1/audits/findings ")
    assert is_its_auditors(said, DOMAIN)
    assert said.finding == AuditFinding(auditor.address, JOB, 0, AuditEnd.FAULT, 2)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        [],
        {},
        {"jobId": 3},
        {"jobId": "0x" + "00" * 32, "plan": [], "endpoints": ["a:1"]},
        {"jobId": "0x" + "00" * 32, "plan": [{"operator": "x"}], "endpoints": ["a:1"]},
        b"[" * 200_000,
    ],
)
async def test_answer_that_is_none_is_unreachable(serve: Serve, document: Any) -> None:
    batch = PromptBatch.of(prompts(1))
    api = await serve(200, document)
    with pytest.raises(MatcherUnreachable, match="does not answer like a matcher"):
        await api.open_job(signed_order(batch), DOMAIN)


async def test_quote_is_read_and_its_fee_bounded(serve: Serve) -> None:
    document = {
        "priceIn": 5,
        "priceOut": 7,
        "matcher": "0x" + "12" * 20,
        "feeBps": 100,
        "openingFee": 3,
        "route": [{"operator": "0x" + "34" * 20, "layerFrom": 0, "layerTo": 6, "endpoint": "a:1"}],
    }
    quote = await (await serve(200, document)).quote("0x" + "00" * 32, 1, 2)
    assert (quote.price_in, quote.price_out, quote.fee_bps) == (5, 7, 100)
    assert quote.opening_fee == 3
    assert str(quote.plan[0].layers) == "0-5"
    greedy = await serve(200, document | {"feeBps": 501})
    with pytest.raises(MatcherUnreachable):
        await greedy.quote("0x" + "00" * 32, 1, 2)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoCapacity("no pipeline", "all busy", next_step="wait", covered_to=3), 503),
        (MatcherUnreachable("elsewhere", "gone"), 503),
        (UsageError("wrong", "bad field"), 400),
        (
            DepositShort("short", have=1, need=3, address="0x" + "00" * 20, fix="deposit 2"),
            402,
        ),
        (CheckFailed("not signed", "by nobody"), 422),
    ],
)
async def test_errors_of_the_matcher_keep_their_class_and_words(
    serve: Serve, error: HeadraceError, status: int
) -> None:
    api = await serve(status, {"error": error.to_dict()})
    with pytest.raises(type(error)) as caught:
        await api.status()
    got = caught.value
    assert got.to_dict() == error.to_dict()
    assert (got.exit_code, got.retryable) == (error.exit_code, error.retryable)


@pytest.mark.parametrize(
    "document",
    [b"<html>", [], {"error": "no"}, {"detail": "x"}, {"error": {"code": 5}}, b"[" * 200_000],
)
@pytest.mark.parametrize(("status", "kind"), [(502, MatcherUnreachable), (404, UsageError)])
async def test_refusals_without_our_words_are_named_by_status(
    serve: Serve, document: Any, status: int, kind: type[HeadraceError]
) -> None:
    api = await serve(status, document)
    with pytest.raises(kind) as caught:
        await api.miners()
    assert caught.value.why == f"HTTP {status}"


async def test_nobody_there_is_unreachable(free_port: Callable[[], int]) -> None:
    api = MatcherApi(f"http://127.0.0.1:{free_port()}", timeout_s=2.0)
    with pytest.raises(MatcherUnreachable, match="no answer"):
        await api.status()
    await api.close()


@pytest.mark.parametrize("url", ["", "matcher", "http://x:port"])
async def test_url_that_is_none_is_an_error_of_ours(url: str) -> None:
    with pytest.raises((ConfigError, MatcherUnreachable)):
        api = MatcherApi(url)
        await api.status()
