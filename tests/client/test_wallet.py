"""Money is moved only when it is there; what is missing is said in numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.commands.wallet.withdraw import request_withdrawal, take_withdrawal
from client.wallet import Dues, balances, deposit, dues, ensure_deposit
from core.protocol.errors import DeadlinePassed, DepositShort, TokenShort, UsageError
from core.protocol.units import NANO, format_token
from core.runtime.commands.results import plain
from tests.town.chain import FakeChain
from tests.town.orders import NOW_S, REQUESTER, key

ME = REQUESTER.address
OPERATOR, OLD = key(70).address, key(71).address
amounts = st.integers(0, 10**12)


class Terminal:
    """The little of a Run that withdrawals use."""

    def __init__(self) -> None:
        self.confirmed: list[dict[str, str]] = []
        self.settings = self

    def show_token(self, units: int) -> str:
        return format_token(units)

    def confirm(self, question: str, summary: dict[str, str]) -> None:
        self.confirmed.append(summary)


def chain_with(*, wallet: int = 0, prepaid: int = 0) -> FakeChain:
    chain = FakeChain(prepaid={ME: prepaid})
    chain.usd[ME] = wallet
    chain.answers["MinerRegistry.operatorsOf"] = []
    return chain


async def test_deposit_allows_exactly_what_it_moves() -> None:
    chain = chain_with(wallet=500)
    await deposit(chain, REQUESTER, 300)
    assert chain.sent == [
        ("TestUSD", "approve", chain.addresses["Escrow"], 300),
        ("Escrow", "deposit", 300),
    ]
    assert (chain.usd[ME], chain.prepaid[ME]) == (200, 300)


async def test_deposit_of_more_than_the_wallet_holds_sends_nothing() -> None:
    chain = chain_with(wallet=499_999)
    with pytest.raises(TokenShort) as caught:
        await deposit(chain, REQUESTER, 500_000)
    error = caught.value
    assert (error.have, error.need, error.short_by) == (499_999, 500_000, 1)
    assert error.address == REQUESTER.address
    assert error.fix == f"send 0.000001usd to {REQUESTER.address}"
    assert "have 0.499999usd, need 0.5usd, short by 0.000001usd" in error.why
    assert error.exit_code == 5
    assert not chain.sent


@given(need=amounts, prepaid=amounts, wallet=amounts, may=st.booleans())
async def test_ensure_deposit_moves_what_is_missing_or_says_what_is_short(
    need: int, prepaid: int, wallet: int, may: bool
) -> None:
    chain = chain_with(wallet=wallet, prepaid=prepaid)
    missing = max(0, need - prepaid)
    if missing and (not may or wallet < missing):
        with pytest.raises(DepositShort) as caught:
            await ensure_deposit(chain, REQUESTER, need, may_deposit=may)
        error = caught.value
        have = prepaid + (wallet if may else 0)
        assert (error.have, error.need, error.short_by) == (have, need, need - have)
        wallet_lacks = missing - wallet
        assert (format_token(wallet_lacks) if wallet_lacks > 0 else "wallet deposit") in error.fix
        assert not chain.sent
    else:
        moved = await ensure_deposit(chain, REQUESTER, need, may_deposit=may)
        assert moved == missing
        assert chain.prepaid[ME] == max(prepaid, need)
        assert chain.usd[ME] + chain.prepaid[ME] == wallet + prepaid


async def test_balances_are_what_the_chain_says() -> None:
    chain = chain_with(wallet=1, prepaid=2)
    chain.thaw = {"amount": 3, "readyAt": 4}
    found = await balances(chain, REQUESTER.address)
    assert (found.wallet, found.deposited, found.thawing, found.thaw_ready_at) == (1, 2, 3, 4)
    assert found.credit == 0


async def test_credit_is_the_pay_of_the_accounts_miner_and_its_fees_as_a_matcher() -> None:
    chain = chain_with()
    chain.answers["MinerRegistry.operatorsOf"] = [OLD, OPERATOR]
    chain.earned[OLD] = NANO - 1
    chain.earned[OPERATOR], chain.fees[ME] = 5 * NANO + 1, 3 * NANO - 1
    chain.earned[ME], chain.fees[OPERATOR] = 70 * NANO, 70 * NANO
    assert await dues(chain.read, ME) == Dues({OPERATOR: 5}, fees=2)
    chain.credits[ME] = 11  # fees of a juror
    assert (await balances(chain, ME)).credit == 18


async def test_withdrawal_of_more_than_is_prepaid_says_how_much_is() -> None:
    chain, run = chain_with(prepaid=5), Terminal()
    with pytest.raises(DepositShort) as caught:
        await request_withdrawal(run, chain, REQUESTER, 7)
    assert (caught.value.have, caught.value.need, caught.value.short_by) == (5, 7, 2)
    assert not chain.sent
    assert not run.confirmed


async def test_withdrawal_is_asked_for_then_waited_for_then_taken() -> None:
    chain, run = chain_with(prepaid=5), Terminal()
    with pytest.raises(UsageError, match="nothing is on its way"):
        await take_withdrawal(run, chain, REQUESTER)
    chain.thaw = {"amount": 5, "readyAt": NOW_S + 60}
    asked: dict[str, Any] = plain(await request_withdrawal(run, chain, REQUESTER, 5))
    assert asked["ready_in_s"] == 60
    assert run.confirmed[0]["amount"] == "0.000005usd" and run.confirmed[0]["after"].startswith(
        "1m"
    )
    with pytest.raises(DeadlinePassed, match="the delay is not over") as caught:
        await take_withdrawal(run, chain, REQUESTER)
    assert "60 s" in caught.value.why
    await chain.clock.advance(60)
    assert plain(await take_withdrawal(run, chain, REQUESTER)) == {"withdrawn": "0.000005usd"}
    assert run.confirmed[1] == {"amount": "0.000005usd", "to": f"wallet {REQUESTER.address}"}
    assert [call[1] for call in chain.sent] == ["requestWithdraw", "withdraw"]
