"""Audits that a matcher pays: who is drawn, what is owed for it, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import pytest

from core.keys.signer import Signer
from core.money.lottery import commitment, is_drawn
from core.money.paid_audits import (
    AuditEnd,
    AuditFinding,
    AuditOffer,
    LotsAsked,
    SignedAsk,
    SignedFinding,
    sign_ask,
    sign_finding,
)
from core.protocol import signing
from core.protocol.errors import CheckFailed, IdInvalid, MatcherUnreachable, UsageError
from core.runtime.metrics import Metrics
from matcher.audits.audit_book import DAY_S, AuditBook
from matcher.audits.audit_desk import Pays
from matcher.records.jobs import Job
from tests.matcher.settling.test_settler import SPLIT, finish, opened, result_root
from tests.town.fleet import MODEL_ID, machine_key, make_ack, make_order, make_receipt
from tests.town.matcher import Net, asking
from tests.town.orders import DOMAIN, key, sign_order

AUDITOR, OTHER = key(60), key(61)
FEE, WITHIN_S = 10_000, 3600
EVERYTHING = Pays((AUDITOR.address,), 10_000, FEE, 100 * FEE, WITHIN_S)


async def paying(net: Net, pays: Pays = EVERYTHING) -> Net:
    """A matcher that pays `AUDITOR`."""
    net.rules = replace(net.rules, pays=pays)
    await net.restarted().prepare()
    return net


async def settled(net: Net, **changes: Any) -> Job:
    """A job whose order names the auditor, acknowledged and paid."""
    job = await opened(net, **{"auditor": AUDITOR.address} | changes)
    finish(net, 0, 1)
    await net.daemon.settler.receive_ack(job.job_id, make_ack(job, 20, 60, result_root(job)))
    await net.tick()
    return job


def ask(
    job: Job,
    *requests: int,
    by: Signer = AUDITOR,
    stage: int = 2,
    signer: Signer | None = None,
    domain: signing.Domain = DOMAIN,
) -> SignedAsk:
    receipt = make_receipt(
        job.signed.order, job.plan, stage, requests, signer or machine_key(stage + 1)
    )
    return sign_ask(LotsAsked(by.address, job.job_id, (receipt,)), by, domain)


def finding(
    job: Job,
    request: int,
    found: AuditEnd = AuditEnd.CLEAN,
    stage: int = 0,
    *,
    by: Signer = AUDITOR,
) -> SignedFinding:
    return sign_finding(AuditFinding(by.address, job.job_id, request, found, stage), by, DOMAIN)


def book(net: Net) -> AuditBook:
    return AuditBook(net.daemon.store.engine)


def owed(net: Net) -> list[tuple[str, int]]:
    return [(line.auditor, line.amount_units) for line in book(net).owed()]


async def test_lots_fall_by_secret_and_block_and_stay(net: Net) -> None:
    await paying(net, replace(EVERYTHING, rate_bps=3_000))
    job = await settled(net, requests=40, max_tokens_in=400, max_tokens_out=1280)
    secret, beacon = book(net).secret(), net.chain.hashes[-1]
    drawn = (await net.daemon.audits.draw(ask(job, *range(40)))).requests
    expected = tuple(r for r in range(40) if is_drawn(secret, beacon, job.job_id, r, 3_000))
    assert drawn == expected
    assert 0 < len(drawn) < 40
    await paying(net)  # a restart, at a rate that would draw everything
    assert (await net.daemon.audits.draw(ask(job, *range(40)))).requests == drawn
    assert book(net).secret() == secret, "made once"


async def test_every_finding_earns_the_same_fee_once_whatever_it_says(net: Net) -> None:
    await paying(net)
    job = await settled(net)
    assert (await net.daemon.audits.draw(ask(job, 0, 1))).requests == (0, 1)
    assert owed(net) == [], "nothing is owed for a draw"
    await net.daemon.audits.take(finding(job, 0))
    assert owed(net) == [(AUDITOR.address.lower(), FEE)]
    await net.daemon.audits.take(finding(job, 1, AuditEnd.FAULT, 2))
    for again in (finding(job, 0), finding(job, 1, AuditEnd.FAULT, 2)):
        await net.daemon.audits.take(again)
    assert owed(net) == [(AUDITOR.address.lower(), 2 * FEE)]
    for otherwise in (finding(job, 0, AuditEnd.FAULT), finding(job, 1, AuditEnd.FAULT, 1)):
        with pytest.raises(UsageError, match="answered for already"):
            await net.daemon.audits.take(otherwise)
    await paying(net, replace(EVERYTHING, fee_units=5 * FEE))
    assert owed(net) == [(AUDITOR.address.lower(), 2 * FEE)], "the fee is what was promised"


async def test_what_was_not_drawn_earns_nothing(net: Net) -> None:
    await paying(net)
    job = await settled(net)
    with pytest.raises(UsageError, match="not drawn for this auditor"):
        await net.daemon.audits.take(finding(job, 0))
    await net.daemon.audits.draw(ask(job, 0))
    for foreign in (finding(job, 1), finding(job, 0, by=OTHER)):
        with pytest.raises(UsageError, match="not drawn for this auditor"):
            await net.daemon.audits.take(foreign)
    with pytest.raises(CheckFailed, match="no stage"):
        await net.daemon.audits.take(finding(job, 0, AuditEnd.FAULT, 3))
    stolen = finding(job, 0, by=OTHER)
    forged = SignedFinding(finding(job, 0).finding, stolen.signature)
    with pytest.raises(CheckFailed, match="not signed by its auditor"):
        await net.daemon.audits.take(forged)
    assert owed(net) == []


async def test_a_finding_that_comes_too_late_earns_nothing(net: Net) -> None:
    await paying(net)
    job = await settled(net)
    await net.daemon.audits.draw(ask(job, 0, 1))
    await net.clock.advance(WITHIN_S)
    await net.daemon.audits.take(finding(job, 0))
    await net.clock.advance(1)
    with pytest.raises(UsageError, match="too late"):
        await net.daemon.audits.take(finding(job, 1))
    await net.daemon.audits.take(finding(job, 0))  # what came in time may be said again
    assert owed(net) == [(AUDITOR.address.lower(), FEE)]


async def test_lots_do_not_fall_before_the_chain_shows_that_receipts_are_signed(net: Net) -> None:
    await paying(net)
    job = await opened(net, auditor=AUDITOR.address)
    with pytest.raises(MatcherUnreachable, match="not fallen yet"):
        await net.daemon.audits.draw(ask(job, 0))
    assert book(net).lots() == []


async def test_receipts_that_no_stage_signed_draw_nothing(net: Net) -> None:
    await paying(net)
    job = await settled(net)
    twice = make_receipt(job.signed.order, job.plan, 2, (0,), machine_key(3))
    for bad, why in (
        (ask(job, 0, signer=machine_key(1)), "not signed by"),
        (ask(job, 0, stage=1), "another order, plan or stage"),
        (ask(job, 2), "the order of 2 does not have"),
        (
            sign_ask(LotsAsked(AUDITOR.address, job.job_id, (twice, twice)), AUDITOR, DOMAIN),
            "another one covers",
        ),
    ):
        with pytest.raises(CheckFailed) as caught:
            await net.daemon.audits.draw(bad)
        assert why in caught.value.why
    assert book(net).lots() == []


async def test_only_the_orders_auditor_that_is_paid_here_is_told(net: Net) -> None:
    await paying(net)
    job = await settled(net)
    elsewhere = signing.Domain(1, DOMAIN.verifying_contract)
    with pytest.raises(UsageError, match="another auditor"):
        await net.daemon.audits.draw(ask(job, 0, by=OTHER))
    with pytest.raises(CheckFailed):
        await net.daemon.audits.draw(ask(job, 0, domain=elsewhere))
    unknown = replace(job, job_id="0x" + "77" * 32)
    with pytest.raises(IdInvalid):
        await net.daemon.audits.draw(ask(unknown, 0))
    await paying(net, Pays())
    with pytest.raises(UsageError, match="does not pay"):
        await net.daemon.audits.draw(ask(job, 0))


async def test_promises_outlive_the_auditors_place_in_the_settings(net: Net) -> None:
    await paying(net)
    job = await settled(net)
    await net.daemon.audits.draw(ask(job, 0))
    await paying(net, Pays())
    assert (await net.daemon.audits.draw(ask(job, 0, 1))).requests == (0,), "nothing new"
    await net.daemon.audits.take(finding(job, 0))
    assert owed(net) == [(AUDITOR.address.lower(), FEE)]


async def test_no_more_is_promised_in_a_day_than_the_owner_allows(net: Net) -> None:
    await paying(net, replace(EVERYTHING, cap_units=4 * FEE - 1))
    first, second = await settled(net), await settled(net, nonce=8)
    assert (await net.daemon.audits.draw(ask(first, 0, 1))).requests == (0, 1)
    assert (await net.daemon.audits.draw(ask(second, 0, 1))).requests == (0,)
    await net.clock.advance(DAY_S)
    assert (await net.daemon.audits.draw(ask(second, 0, 1))).requests == (0,), "not drawn later"
    third = await settled(net, nonce=9, deadline=int(net.clock.now()) + 600)
    assert len((await net.daemon.audits.draw(ask(third, 0, 1))).requests) == 2


async def test_lots_of_what_is_shown_later_fall_later(net: Net) -> None:
    await paying(net)
    job = await settled(net)
    assert (await net.daemon.audits.draw(ask(job, 0))).requests == (0,)
    assert (await net.daemon.audits.draw(ask(job, 1))).requests == (0, 1)
    assert [(lot.request, lot.found) for lot in book(net).lots()] == [(0, ""), (1, "")]


# --- over HTTP ---


@pytest.fixture
async def http(net: Net) -> AsyncIterator[httpx2.AsyncClient]:
    await paying(net)
    net.serve(*SPLIT)
    await net.tick()
    async with asking(net) as client:
        yield client


QUOTE = f"/v1/quote?model={MODEL_ID}&tokens_in=10&tokens_out=10"


async def test_the_offer_travels_with_the_quote(net: Net, http: httpx2.AsyncClient) -> None:
    offer = msgspec.convert((await http.get(QUOTE)).json()["audits"], AuditOffer)
    assert offer == AuditOffer(AUDITOR.address, 10_000, FEE, commitment(book(net).secret()))


async def test_lots_and_findings_over_http(net: Net, http: httpx2.AsyncClient) -> None:
    job = await net.daemon.matchmaker.open(sign_order(make_order(auditor=AUDITOR.address)))

    async def post(path: str, body: object) -> tuple[int, Any]:
        answer = await http.post(f"/v1/audits/{path}", content=msgspec.json.encode(body))
        return answer.status_code, answer.json()

    status, body = await post("lots", ask(job, 0, 1))
    assert (status, body["error"]["code"]) == (503, "E-NET-02")
    finish(net, 0, 1)
    await net.daemon.settler.receive_ack(job.job_id, make_ack(job, 20, 60, result_root(job)))
    assert await post("lots", ask(job, 0, 1)) == (200, {"requests": [0, 1]})
    assert await post("findings", finding(job, 0)) == (200, {"taken": True})
    assert (await post("findings", finding(job, 0, AuditEnd.FAULT)))[0] == 400
    assert (await post("findings", {"finding": 1}))[0] == 400
    assert owed(net) == [(AUDITOR.address.lower(), FEE)]


async def test_a_matcher_that_pays_nobody_offers_nothing(net: Net) -> None:
    await net.daemon.prepare()
    assert net.daemon.audits.offer() is None


async def test_what_is_owed_is_measured(net: Net) -> None:
    await paying(net)
    metrics = Metrics()
    desk = type(net.daemon.audits)(DOMAIN, net.daemon.store, net.clock, metrics, EVERYTHING)
    await desk.prepare()
    job = await settled(net)
    await desk.draw(ask(job, 0, 1))
    await desk.take(finding(job, 1, AuditEnd.WITHHELD, 1))
    await desk.take_stock()
    text = metrics.render()[0].decode()
    assert 'headrace_audit_lots_total{outcome="drawn"} 2.0' in text
    assert 'headrace_audit_findings_total{result="withheld"} 1.0' in text
    assert f"headrace_audit_owed_units {float(FEE)}" in text
    assert AUDITOR.address not in text
