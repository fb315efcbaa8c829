"""On a real chain a withdrawn order is void, and one that was opened before is left as it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from client.jobs.withdrawal import withdraw
from client.records.store import ClientStore
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import ContractRefused
from tests.twins.test_session_chain import Town, town

__all__ = ["town"]
#: `revokeNonce`, of the first nonce of a storage word and of another one.
MOST_GAS = 48_000, 31_000

pytestmark = pytest.mark.chain


@pytest.fixture
def store(tmp_path: Path) -> ClientStore:
    return ClientStore(tmp_path / "client.sqlite")


async def signed_order(town: Town, nonce: int) -> t.SignedOrder:
    opened = await town.session(town.requester)
    now = await town.chain.now()
    order = msgspec.structs.replace(opened.order, nonce=nonce, deadline=now + 500)
    return t.SignedOrder(order, signing.sign(town.requester, town.chain.domain, order))


async def test_a_withdrawn_order_is_opened_by_nobody_any_more(
    town: Town, store: ClientStore
) -> None:
    signed = await signed_order(town, 700)
    job_id = signing.job_id(town.chain.domain, signed.order)
    store.add_order("", job_id, signed, 1)
    assert not await withdraw(town.chain, town.spender, store, [signed]), (
        "a spender revokes nothing"
    )
    assert store.orders()
    assert await withdraw(town.chain, town.requester, store, [signed])
    assert not store.orders()
    with pytest.raises(ContractRefused, match="NonceUsedAlready"):
        await town.chain.transact(
            town.matcher, "TaskRegistry", "openMatched", signed.order, signed.signature, town.plan
        )
    assert await withdraw(town.chain, town.requester, store, [signed]), "it is void all the same"


async def test_an_order_that_was_opened_before_is_known_to_be(
    town: Town, store: ClientStore
) -> None:
    signed = await signed_order(town, 900)
    job_id = signing.job_id(town.chain.domain, signed.order)
    store.add_order("", job_id, signed, 1)
    await town.chain.transact(
        town.matcher, "TaskRegistry", "openMatched", signed.order, signed.signature, town.plan
    )
    assert await withdraw(town.chain, town.requester, store, [signed])
    assert [row.job_id for row in store.orders()] == [job_id], "its lock is looked for"
    job = await town.chain.read("TaskRegistry", "jobOf", job_id, signing.plan_hash(town.plan))
    assert job["state"] == t.JobState.MATCHED


async def test_a_revocation_costs_what_the_documents_say(town: Town) -> None:
    for nonce, most in zip((2048, 2049), MOST_GAS, strict=True):
        sent = await town.chain.transact(town.requester, "TaskRegistry", "revokeNonce", nonce)
        assert most - 4_000 < sent.gas_used <= most
