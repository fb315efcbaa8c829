"""What auditors say decides which machine gets work: if believed, over restarts, for a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import msgspec
import pytest

from core.keys.signer import Signer
from core.money.audit_report import OperatorAudits, SignedReport, report_of, sign_report
from core.protocol import signing
from matcher.api.views import quote_json
from tests.matcher.matching.test_matching import SPLIT
from tests.town.fleet import MODEL_ID, PRICE_IN, PRICE_OUT, machine_key, make_order
from tests.town.matcher import Net, asking
from tests.town.orders import DOMAIN, NOW_S, key, sign_order

AUDITOR, STRANGER = key(50), key(51)
MEMORY_S = 3600
TWO, FOUR = machine_key(2).address, machine_key(4).address


@pytest.fixture
async def listening(net: Net) -> Net:
    """A matcher that believes `AUDITOR`, over three stages, the middle one with a stand-in."""
    net.rules = replace(net.rules, auditors=frozenset({AUDITOR.address.lower()}), memory_s=MEMORY_S)
    await net.restarted().prepare()
    net.chain.owners = {machine_key(n).address: key(200 + n).address for n in (1, 2, 3, 4)}
    net.serve(*SPLIT, (4, 10, 20))
    await net.tick()
    return net


def report(
    operator: str,
    *,
    faults: int = 1,
    withheld: int = 0,
    sequence: int = 1,
    by: Signer = AUDITOR,
    domain: signing.Domain = DOMAIN,
) -> SignedReport:
    at = NOW_S
    audits = OperatorAudits(
        operator.lower(), 3, 2, faults, withheld, 0, at * bool(faults), at * bool(withheld)
    )
    return sign_report(report_of(by.address, sequence, [audits]), by, domain)


async def middle_of(net: Net, nonce: int) -> str:
    job = await net.daemon.matchmaker.open(sign_order(make_order(nonce=nonce)))
    return job.plan[1].operator


async def test_whom_a_believed_auditor_found_at_fault_gets_no_work(listening: Net) -> None:
    net = listening
    taken = {await middle_of(net, nonce) for nonce in (1, 2)}
    assert taken == {TWO, FOUR}
    await net.daemon.reports.take(report(TWO))
    await net.tick()
    assert {await middle_of(net, nonce) for nonce in range(3, 7)} == {FOUR}
    assert net.daemon.world.marks.of(TWO)[0] == "left out"
    told = net.daemon.world.placements[MODEL_ID]
    assert TWO not in {*told.assignments, *told.standby}


async def test_its_layers_go_unserved_rather_than_to_it(listening: Net) -> None:
    net = listening
    for sequence, operator in enumerate((TWO, FOUR), 1):
        await net.daemon.reports.take(report(operator, sequence=sequence))
    await net.tick()
    assert net.daemon.world.marks.of(TWO)[0] == "good", "a later report replaces the one before"
    assert {await middle_of(net, nonce) for nonce in (1, 2)} == {TWO}


async def test_restart_forgives_nothing_and_time_does(listening: Net) -> None:
    net = listening
    await net.daemon.reports.take(report(TWO))
    await net.restarted().prepare()
    await net.tick()
    assert net.daemon.world.marks.of(TWO)[0] == "left out"
    await net.clock.advance(MEMORY_S + 1)
    await net.tick()
    assert net.daemon.world.marks.of(TWO)[0] == "good"


async def test_auditor_that_is_not_believed_any_more_is_not_heard(listening: Net) -> None:
    net = listening
    await net.daemon.reports.take(report(TWO))
    net.rules = replace(net.rules, auditors=frozenset())
    await net.restarted().prepare()
    await net.tick()
    assert net.daemon.world.marks.of(TWO)[0] == "good"


async def test_withheld_rows_and_strikes_put_last_where_somebody_else_can_do_it(
    listening: Net,
) -> None:
    net = listening
    await net.daemon.reports.take(report(TWO, faults=0, withheld=1))
    await net.tick()
    assert net.daemon.world.marks.of(TWO)[0] == "last"
    net.serve((2, 10, 20), (4, 10, 20), max_requests=1)
    await net.tick()
    picked = [await middle_of(net, nonce) for nonce in (1, 2)]
    assert picked == [FOUR, TWO], "after the other is full it is better than nobody"


async def test_owner_that_was_slashed_comes_last(listening: Net) -> None:
    net = listening
    net.chain.strikes = 1
    net.daemon._standing_at.clear()
    await net.tick()
    assert set(net.daemon.world.marks.last) == {machine_key(n).address for n in (1, 2, 3, 4)}
    assert await middle_of(net, 1) in (TWO, FOUR), "where all were slashed before, they still serve"


async def test_quote_is_of_the_blameless_while_they_can_serve(listening: Net) -> None:
    net = listening
    net.serve((4, 10, 20), price_in=2 * PRICE_IN, price_out=2 * PRICE_OUT)
    await net.tick()

    def quoted() -> int:
        now_ms = int(net.clock.now() * 1000)
        found = quote_json(net.daemon.world, MODEL_ID, 10, 10, now_ms)
        assert isinstance(found, dict), found
        return int(found["priceIn"])

    before = quoted()
    await net.daemon.reports.take(report(TWO, faults=0, withheld=1))
    await net.tick()
    assert quoted() > before, "the cheap one is not reckoned with"
    net.daemon.world.marks = replace(net.daemon.world.marks, last={TWO: "", FOUR: ""})
    assert quoted() == before


@pytest.fixture
async def http(listening: Net) -> AsyncIterator[httpx2.AsyncClient]:
    async with asking(listening) as client:
        yield client


async def test_strangers_forgeries_and_old_reports_are_refused(
    http: httpx2.AsyncClient, listening: Net
) -> None:
    async def tell(signed: SignedReport) -> int:
        answer = await http.post("/v1/audits", content=msgspec.json.encode(signed))
        return answer.status_code

    other = signing.Domain(1, DOMAIN.verifying_contract)
    good = report(TWO, sequence=5)
    forged = SignedReport(good.report, report(FOUR, sequence=5).signature)
    assert await tell(report(TWO, by=STRANGER)) == 400
    assert await tell(forged) == 422
    assert await tell(report(TWO, domain=other)) == 422
    assert listening.daemon.world.reports == {}
    assert [await tell(good), await tell(good), await tell(report(FOUR, sequence=4))] == [
        200,
        400,
        400,
    ]
    await listening.tick()
    shown = {m["operator"]: m for m in (await http.get("/v1/miners")).json()["miners"]}
    assert shown[TWO]["standing"] == "left out"
    assert AUDITOR.address in shown[TWO]["standingWhy"]
    assert shown[FOUR]["standing"] == "good"
