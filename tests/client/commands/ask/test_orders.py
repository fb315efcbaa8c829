"""An order that nobody answered is listed, revoked or taken back, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.commands.ask import orders
from client.context import open_store
from core.protocol.errors import IdInvalid, UsageError
from core.protocol.types import ZERO_HASH, JobState
from core.protocol.units import whole_units
from core.runtime.commands.console import DryRunEnds
from core.runtime.commands.results import plain
from tests.client.commands.ask.test_job_follow import run_of
from tests.client.commands.ask.test_job_list import Desk
from tests.clocks import ManualClock
from tests.town.chain import CLOSE_DELAY_S
from tests.town.orders import NOW_S, REQUESTER, SPEC, key


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """One order was handed in, and its matcher said nothing."""
    desk = Desk(tmp_path)
    desk.open_for(monkeypatch, orders)
    desk.chain.models = {desk.job.signed.order.model_id: SPEC}
    desk.change(lambda store: store.add_order("", desk.job.job_id, desk.job.signed, NOW_S))
    desk.chain.jobs.clear()
    desk.chain.used_nonces.clear()
    return desk


def kept(desk: Desk) -> int:
    store = open_store(desk.settings)
    count = len(store.orders())
    store.close()
    return count


async def test_an_order_is_listed_with_what_it_may_lock_and_until_when(desk: Desk) -> None:
    (line,) = plain(await orders.list_orders(desk.settings))
    locks = desk.settings.show_token(-(-desk.locked_nano // 10**9))
    assert (line["order"], line["locks"], line["state"]) == (desk.typed, locks, "may be opened")
    order = desk.job.signed.order
    desk.chain.clock = ManualClock(order.deadline + 1)
    assert plain(await orders.list_orders(desk.settings))[0]["state"] == "void"
    desk.chain.used_nonces.add((order.requester, order.nonce))
    assert plain(await orders.list_orders(desk.settings))[0]["state"] == "opened or revoked"


@pytest.mark.parametrize("by_nonce", [False, True])
async def test_a_revoked_order_is_void_and_a_dry_run_sends_nothing(
    desk: Desk, by_nonce: bool
) -> None:
    order = desk.job.signed.order
    typed = str(order.nonce) if by_nonce else desk.typed
    with pytest.raises(DryRunEnds):
        await orders.revoke_order(run_of(desk, dry_run=True), typed)
    assert desk.chain.simulated == ["revokeNonce"] and desk.chain.sent == []
    found = plain(await orders.revoke_order(run_of(desk), typed))
    assert desk.chain.sent == [("TaskRegistry", "revokeNonce", order.nonce)]
    assert (found["nonce"], found["order"]) == (order.nonce, "" if by_nonce else desk.typed)
    assert kept(desk) == by_nonce, "by the nonce alone no record is looked up"
    with pytest.raises(UsageError if by_nonce else IdInvalid):
        await orders.revoke_order(run_of(desk), typed)
    assert len(desk.chain.sent) == 1


async def test_who_is_not_the_requester_revokes_nothing(desk: Desk) -> None:
    run = run_of(desk)
    run.unlock = lambda *_, **__: key(77)  # type: ignore[method-assign, assignment]
    with pytest.raises(UsageError, match="only its requester"):
        await orders.revoke_order(run, desk.typed)
    assert desk.chain.sent == [] and kept(desk)


async def test_an_order_that_was_opened_is_not_revoked(desk: Desk) -> None:
    order = desk.job.signed.order
    desk.chain.used_nonces.add((order.requester, order.nonce))
    with pytest.raises(UsageError, match="is used already"):
        await orders.revoke_order(run_of(desk), desk.typed)
    assert kept(desk)


async def test_an_order_without_machines_gives_its_lock_back_at_once(desk: Desk) -> None:
    order = desk.job.signed.order
    desk.chain.used_nonces.add((order.requester, order.nonce))
    desk.chain.jobs[desk.job.job_id] = desk.on_chain
    desk.on_chain.state, desk.on_chain.plan_hash = JobState.OPEN, ZERO_HASH
    found = plain(await orders.cancel_order(run_of(desk), desk.typed))
    assert desk.chain.sent == [("TaskRegistry", "cancel", order)]
    assert found["refunded"] == desk.settings.show_token(whole_units(desk.locked_nano))
    assert not kept(desk)


async def test_an_order_that_its_matcher_opened_gives_it_back_after_its_deadline(
    desk: Desk,
) -> None:
    order = desk.job.signed.order
    desk.chain.match(order, desk.job.plan, desk.job.job_id)
    with pytest.raises(UsageError, match="cannot be cancelled yet"):
        await orders.cancel_order(run_of(desk), desk.typed)
    assert desk.chain.sent == [] and kept(desk)
    desk.chain.clock = ManualClock(order.deadline + CLOSE_DELAY_S + 1)
    await orders.cancel_order(run_of(desk), desk.typed)
    assert desk.chain.sent == [("TaskRegistry", "expire", order, list(desk.job.plan))]
    assert not kept(desk)


async def test_an_order_that_nobody_opened_has_nothing_to_take_back(desk: Desk) -> None:
    with pytest.raises(UsageError, match="was not opened on chain"):
        await orders.cancel_order(run_of(desk), desk.typed)
    assert desk.chain.sent == [] and kept(desk)
    assert REQUESTER.address == desk.job.signed.order.requester
