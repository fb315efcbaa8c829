"""The API over HTTP: shapes that programs rely on, and mistakes answered with what to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from core.protocol import signing
from core.protocol.types import SignedOrder, Stage
from matcher.api.api import MAX_BODY_BYTES
from matcher.cli import _miner_row
from scheduler.routing.reservations import Need
from tests.matcher.settling.test_settler import SPLIT, finish, result_root
from tests.town.fleet import MODEL_ID, machine_key, make_ack, make_order
from tests.town.matcher import Net, asking
from tests.town.orders import DOMAIN, MATCHER, REQUESTER, sign_order


@pytest.fixture
async def http(net: Net) -> AsyncIterator[httpx2.AsyncClient]:
    await net.daemon.prepare()
    net.chain.list_machine("cuda", 24 * 2**10)
    net.serve(*SPLIT)
    await net.tick()
    async with asking(net, swarm=net.swarm.addresses()) as client:
        yield client


async def post_order(http: httpx2.AsyncClient, signed: SignedOrder) -> httpx2.Response:
    return await http.post("/v1/orders", content=msgspec.json.encode(signed))


def error(response: httpx2.Response) -> dict[str, Any]:
    found = response.json()["error"]
    assert set(found) >= {"code", "what", "why", "state", "next", "details"}
    return dict(found)


async def test_an_order_is_answered_with_what_its_requester_checks(
    net: Net, http: httpx2.AsyncClient
) -> None:
    signed = sign_order(make_order())
    response = await post_order(http, signed)
    assert response.status_code == 201
    found = response.json()
    plan = msgspec.convert(found["plan"], list[Stage])
    assert found["jobId"] == signing.job_id(DOMAIN, signed.order)
    assert found["planHash"] == signing.plan_hash(tuple(plan))
    assert found["endpoints"] == [f"127.0.0.1:{9000 + n}" for n in (1, 2, 3)]
    assert len(found["acceptances"]) == 3
    assert found["txHash"].startswith("0x")
    again = await post_order(http, signed)
    assert again.json() == found
    assert net.chain.called == ["openMatched"]


async def test_an_acknowledgement_settles_the_job(net: Net, http: httpx2.AsyncClient) -> None:
    opened = (await post_order(http, sign_order(make_order()))).json()
    job = net.daemon.store.job(opened["jobId"])
    finish(net, 0, 1)
    ack = make_ack(job, 20, 60, result_root(job))
    body = msgspec.json.encode({"ack": ack.ack, "signature": ack.signature})
    response = await http.post(f"/v1/jobs/{opened['jobId']}/ack", content=body)
    assert response.status_code == 200
    found = response.json()
    assert (found["state"], found["acknowledged"]) == ("Settled", True)
    # In whole units: what is locked is rounded up, what is paid and returned is rounded down.
    assert found["paidUnits"] + found["refundedUnits"] + 1 == found["lockedUnits"]
    assert found["txHash"].startswith("0x")


async def test_a_job_is_found_by_its_short_id(http: httpx2.AsyncClient) -> None:
    opened = (await post_order(http, sign_order(make_order()))).json()
    for name in (opened["jobId"], opened["shortId"], opened["jobId"][:14]):
        found = (await http.get(f"/v1/jobs/{name}")).json()
        assert found["jobId"] == opened["jobId"]
        assert found["transactions"]["opened"] == opened["txHash"]
        assert found["signedOrder"]["order"]["requester"] == REQUESTER.address
    listed = (await http.get("/v1/jobs", params={"state": "Matched"})).json()["jobs"]
    assert [job["jobId"] for job in listed] == [opened["jobId"]]
    missing = await http.get("/v1/jobs/job_ZZZZ")
    assert (missing.status_code, error(missing)["code"]) == (404, "E-ID-01")


async def test_models_say_coverage_price_and_context(http: httpx2.AsyncClient) -> None:
    (found,) = (await http.get("/v1/models")).json()["models"]
    assert (found["modelId"], found["covered"], found["coveredTo"]) == (MODEL_ID, True, 30)
    assert (found["context"], found["serving"], found["copies"]) == (2048, 3, 1)
    assert found["lowestPrice"]["priceInShown"] == "0.1usd/Mtok"
    one = (await http.get(f"/v1/models/{found['shortId']}")).json()
    assert one == found
    missing = await http.get("/v1/models/0x" + "99" * 32)
    assert (missing.status_code, error(missing)["code"]) == (404, "E-MODEL-01")


async def test_a_quote_is_a_price_that_an_order_can_be_signed_with(
    http: httpx2.AsyncClient,
) -> None:
    params = {"model": MODEL_ID, "tokens_in": 20, "tokens_out": 64}
    found = (await http.get("/v1/quote", params=params)).json()
    assert found["feeBps"] == 200
    assert [stage["operator"] for stage in found["route"]] == [
        machine_key(n).address for n in (1, 2, 3)
    ]
    order = make_order(price_in=found["priceIn"], price_out=found["priceOut"])
    assert (await post_order(http, sign_order(order))).status_code == 201
    lower = make_order(price_in=found["priceIn"] - 1, price_out=found["priceOut"], nonce=2)
    refused = await post_order(http, sign_order(lower))
    assert refused.status_code == 503
    assert error(refused)["reason"] == "no_route"
    assert error(refused)["details"]["nearest_offer"]
    assert refused.headers["retry-after"]


async def test_where_every_machine_is_busy_a_quote_is_what_an_order_waits_with(
    net: Net, http: httpx2.AsyncClient
) -> None:
    params = {"model": MODEL_ID, "tokens_in": 20, "tokens_out": 64}
    free = (await http.get("/v1/quote", params=params)).json()
    book = net.daemon.world.routes[MODEL_ID].book
    now_ms = int(net.clock.now() * 1000)
    room = {
        machine_key(n).address: Need(book.free(machine_key(n).address).slots) for n in (1, 2, 3)
    }
    assert book.hold("others", room, now_ms, now_ms + 10_000)
    busy = (await http.get("/v1/quote", params=params)).json()
    assert (busy["priceIn"], busy["priceOut"]) == (free["priceIn"], free["priceOut"])
    assert free["route"] and busy["route"] == []


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"model": MODEL_ID, "tokens_in": 0, "tokens_out": 1}, "tokens_in"),
        ({"model": MODEL_ID, "tokens_in": 1, "tokens_out": -1}, "tokens_out"),
        ({"model": MODEL_ID, "tokens_in": "many", "tokens_out": 1}, "tokens_in"),
        ({"tokens_in": 1, "tokens_out": 1}, "model"),
    ],
)
async def test_a_malformed_question_names_the_parameter(
    http: httpx2.AsyncClient, params: dict[str, Any], field: str
) -> None:
    response = await http.get("/v1/quote", params=params)
    assert response.status_code == 400
    assert error(response)["details"]["field"] == field


def broken_orders() -> list[tuple[bytes, str]]:
    good = json.loads(msgspec.json.encode(sign_order(make_order())))

    def with_order(**changes: Any) -> bytes:
        return json.dumps({**good, "order": {**good["order"], **changes}}).encode()

    without = {k: v for k, v in good["order"].items() if k != "deadline"}
    return [
        (b"", "the body"),
        (b"{", "the body"),
        (b"\xff\xfe", "the body"),
        (b"[]", "the body"),
        (json.dumps({**good, "signature": "0x12"}).encode(), "signature"),
        (json.dumps({"order": without, "signature": good["signature"]}).encode(), "order"),
        (with_order(priceIn=-1), "order.priceIn"),
        (with_order(priceIn=2**70), "order.priceIn"),
        (with_order(requester="0xzz"), "order.requester"),
        (with_order(surprise=1), "order"),
    ]


@pytest.mark.parametrize(("body", "field"), broken_orders())
async def test_a_malformed_order_names_the_field(
    http: httpx2.AsyncClient, body: bytes, field: str
) -> None:
    response = await http.post("/v1/orders", content=body)
    assert response.status_code == 400
    assert error(response)["details"]["field"] == field


async def test_a_body_above_the_limit_is_cut_off(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/orders", content=b" " * (MAX_BODY_BYTES + 1))
    assert response.status_code == 413
    assert error(response)["code"] == "E-USAGE-01"


async def test_money_and_signature_errors_have_their_own_status(
    net: Net, http: httpx2.AsyncClient
) -> None:
    net.chain.prepaid[REQUESTER.address] = 0
    poor = await post_order(http, sign_order(make_order()))
    assert poor.status_code == 402
    assert {"have", "need", "short_by", "fix"} <= set(error(poor)["details"])
    forged = await post_order(http, sign_order(make_order(), signer=machine_key(1)))
    assert (forged.status_code, error(forged)["code"]) == (422, "E-CHECK-01")
    unknown = await post_order(http, sign_order(make_order(model_id="0x" + "99" * 32)))
    assert unknown.status_code == 404


async def test_miners_are_shown_as_they_and_the_chain_and_we_see_them(
    http: httpx2.AsyncClient,
) -> None:
    await post_order(http, sign_order(make_order()))
    found = {m["operator"]: m for m in (await http.get("/v1/miners")).json()["miners"]}
    one = found[machine_key(1).address]
    assert (one["state"], one["layers"], one["assigned"]) == ("SERVING", [0, 10], [0, 10])
    assert (one["canWork"], one["alive"], one["reservedRequests"]) == (True, True, 1)
    assert one["stake"] == "500usd"
    assert one["registered"] == [{"class": "cuda", "memoryBytes": 24 * 2**30}]
    assert _miner_row(one)["registered"] == "cuda, 24.0 GiB", "as `registry ls` prints it"


async def test_routes_and_allocation_are_shown(http: httpx2.AsyncClient) -> None:
    (route,) = (await http.get("/v1/routes")).json()["routes"]
    assert [stage["layerFrom"] for stage in route["stages"]] == [0, 10, 20]
    (allocation,) = (await http.get("/v1/allocation")).json()["allocations"]
    assert allocation["assignments"][machine_key(2).address] == [10, 20]
    assert allocation["reason"]


async def test_ready_follows_chain_and_swarm_and_health_does_not(
    net: Net, http: httpx2.AsyncClient
) -> None:
    assert (await http.get("/ready")).status_code == 200
    net.chain.is_down = True
    await net.pass_time(1)
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/health")).status_code == 200
    assert (await http.head("/health")).status_code == 200
    status = (await http.get("/v1/status")).json()
    assert (status["ready"], status["chain"]["ok"], status["lastLook"]["ok"]) == (
        False,
        False,
        True,
    )
    assert (status["matcher"], status["feeBps"]) == (MATCHER.address, 200)
    lost = await post_order(http, sign_order(make_order()))
    assert (lost.status_code, error(lost)["code"]) == (503, "E-NET-01")


async def test_what_is_not_offered_is_said_in_the_same_shape(http: httpx2.AsyncClient) -> None:
    missing = await http.get("/v1/nothing")
    assert missing.status_code == 404
    assert error(missing)["what"] == "GET /v1/nothing is not offered"
    assert (await http.delete("/v1/jobs")).status_code == 405


async def test_metrics_are_served(http: httpx2.AsyncClient) -> None:
    await post_order(http, sign_order(make_order()))
    text = (await http.get("/metrics")).text
    assert 'headrace_orders_total{outcome="opened"} 1.0' in text


async def test_a_bug_is_answered_without_its_insides(net: Net, http: httpx2.AsyncClient) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    net.daemon.store.counts = broken  # type: ignore[method-assign]
    response = await http.get("/v1/status")
    assert response.status_code == 500
    assert error(response)["code"] == "E-BUG-01"
    assert "secret" not in response.text


DEEP = b"[" * 30_000 + b"]" * 30_000


@pytest.mark.parametrize(
    "path", ["/v1/plan", "/v1/orders", "/v1/audits", "/v1/audits/lots", "/v1/audits/findings"]
)
@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b'{"a":' * 10_000,
        b'{"document": {"a": ' + DEEP + b'}, "methods": ["even"]}',
        b'{"document": ' + b'{"a":' * 400 + b"1" + b"}" * 400 + b', "methods": ["even"]}',
        b'{"' + b"x" * 60_000 + b'": 1}',
        b"{" + b",".join(b'"f%d": 1' % i for i in range(5_000)) + b"}",
        b"\xff\xfe",
    ],
)
async def test_deep_or_strange_json_is_refused_in_few_words(
    http: httpx2.AsyncClient, path: str, body: bytes
) -> None:
    response = await http.post(path, content=body)
    assert (response.status_code, error(response)["code"]) == (400, "E-USAGE-01")
    assert len(response.content) < 2_000


async def test_a_deep_acknowledgement_is_refused(http: httpx2.AsyncClient) -> None:
    opened = (await post_order(http, sign_order(make_order()))).json()
    response = await http.post(f"/v1/jobs/{opened['jobId']}/ack", content=DEEP)
    assert (response.status_code, error(response)["code"]) == (400, "E-USAGE-01")
