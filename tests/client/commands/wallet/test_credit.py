"""A wallet is shown, and takes, all that disputes and jobs owe it, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client.commands.wallet import credit as credit_module
from client.commands.wallet.credit import withdraw_credits
from core.protocol.errors import ContractRefused, UsageError
from core.protocol.types import ZERO_ADDRESS
from core.protocol.units import NANO
from core.runtime.commands.console import DryRunEnds
from core.runtime.commands.results import plain
from tests.client.commands.ask.test_job_follow import run_of
from tests.client.commands.ask.test_job_list import Desk
from tests.town.chain import FakeChain
from tests.town.orders import REQUESTER, key

ME = REQUESTER.address
OPERATOR, STRANGER = key(70).address, key(71).address
USD = 10**6


class Debtors(FakeChain):
    """A chain on which every contract pays out what it owes, unless the token refuses to."""

    token_refuses = False

    def _apply(self, sender: str, function: str, args: tuple[Any, ...]) -> Any:
        if function == "withdrawCredit":
            return function, {}
        if function in ("collect", "collectFees"):
            ((account,),) = args
            book = self.earned if function == "collect" else self.fees
            units, book[account] = divmod(book[account], NANO)
            if self.token_refuses:
                return "Transfer", {}
            return "Collected", {"to": sender, "account": account, "payee": 0, "amount": units}
        return super()._apply(sender, function, args)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(tmp_path)
    desk.chain = Debtors()
    desk.chain.addresses |= {"MinerRegistry": "0x" + "aa" * 20}
    desk.open_for(monkeypatch, credit_module)
    owes(desk, jury=0, registry=0)
    has_operator(desk, ZERO_ADDRESS)
    return desk


def owes(desk: Desk, **credits: int) -> None:
    names = {"jury": "JuryArbitrator", "registry": "MinerRegistry"}
    for name, units in credits.items():
        answer = {ME: units}.get
        desk.chain.answers[f"{names[name]}.creditOf"] = answer


def has_operator(desk: Desk, operator: str) -> None:
    named = [] if operator == ZERO_ADDRESS else [operator]
    desk.chain.answers["MinerRegistry.operatorsOf"] = {ME: named}.get


async def test_everything_that_is_owed_is_taken_from_who_owes_it(desk: Desk) -> None:
    owes(desk, jury=USD, registry=2 * USD)
    has_operator(desk, OPERATOR)
    desk.chain.earned[OPERATOR] = 3 * USD * NANO + 1
    desk.chain.fees[ME] = 4 * USD * NANO + 1
    desk.chain.earned[STRANGER] = desk.chain.fees[STRANGER] = 9 * USD * NANO
    found = plain(await withdraw_credits(run_of(desk)))
    assert found == {
        "withdrawn": "10usd",
        "JuryArbitrator": "1usd",
        "MinerRegistry": "2usd",
        "pay": "3usd",
        "fees": "4usd",
        "to": ME,
    }
    assert desk.chain.sent == [
        ("JuryArbitrator", "withdrawCredit"),
        ("MinerRegistry", "withdrawCredit"),
        ("Escrow", "collect", [OPERATOR]),
        ("Escrow", "collectFees", [ME]),
    ]


@pytest.mark.parametrize("operator", [OPERATOR, ZERO_ADDRESS])
async def test_who_owns_no_miner_takes_no_pay(desk: Desk, operator: str) -> None:
    has_operator(desk, operator)
    desk.chain.earned[ZERO_ADDRESS] = 5 * USD * NANO
    desk.chain.fees[ME] = USD * NANO
    found = plain(await withdraw_credits(run_of(desk)))
    assert (found["withdrawn"], found["fees"], "pay" in found) == ("1usd", "1usd", False)
    assert desk.chain.sent == [("Escrow", "collectFees", [ME])]


async def test_less_than_a_unit_is_nothing_to_take(desk: Desk) -> None:
    has_operator(desk, OPERATOR)
    desk.chain.earned[OPERATOR] = desk.chain.fees[ME] = NANO - 1
    with pytest.raises(UsageError, match="nothing to withdraw"):
        await withdraw_credits(run_of(desk))
    assert desk.chain.sent == []


async def test_what_the_token_does_not_send_is_not_called_withdrawn(desk: Desk) -> None:
    assert isinstance(desk.chain, Debtors)
    desk.chain.token_refuses, desk.chain.fees[ME] = True, USD * NANO
    with pytest.raises(ContractRefused, match="sent nothing") as caught:
        await withdraw_credits(run_of(desk))
    assert "still owed it by the escrow" in caught.value.state


async def test_a_dry_run_takes_nothing(desk: Desk) -> None:
    desk.chain.fees[ME] = USD * NANO
    with pytest.raises(DryRunEnds):
        await withdraw_credits(run_of(desk, dry_run=True))
    assert desk.chain.sent == []
