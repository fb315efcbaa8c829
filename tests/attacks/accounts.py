"""Whose is which money, and who can work: Escrow and MinerRegistry in the model.

Tokens, stakes and what thaws are whole units; balances, pay, fees and locks are nano units.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from core.protocol.units import NANO
from tests.attacks.books import (
    NOBODY,
    Dispute,
    Job,
    Miner,
    MinerState,
    Network,
    Pool,
    Spender,
    rules,
)

NONE, ACTIVE, COOLDOWN, EXITED = MinerState
By = str | None  # who signed


class Accounts:
    def __init__(self, network: Network) -> None:
        self.net, self.clocks, self.now = network, network.clocks, 0
        self.escrow, self.stakes = network.addresses["Escrow"], network.addresses["MinerRegistry"]
        self.wallet: dict[str, int] = defaultdict(int)
        self.allowed: dict[tuple[str, str], int] = defaultdict(int)
        self.balance: dict[str, int] = defaultdict(int)
        self.earned: dict[str, int] = defaultdict(int)  # by operator
        self.matcher_fees: dict[str, int] = defaultdict(int)
        self.protocol_fees: dict[str, int] = defaultdict(int)  # by matcher
        self.thaw: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self.spender: dict[tuple[str, str], Spender] = defaultdict(Spender)
        self.lock: dict[str, tuple[str, int]] = defaultdict(lambda: (NOBODY, 0))
        self.signed_by: dict[str, str] = defaultdict(lambda: NOBODY)
        self.job: dict[tuple[str, str], Job] = defaultdict(Job)  # by id and plan hash
        self.miner: dict[str, Miner] = defaultdict(Miner)
        self.owner: dict[str, str] = defaultdict(lambda: NOBODY)
        self.named: dict[str, list[str]] = defaultdict(list)  # operators, by owner
        self.dispute_of: dict[tuple[str, int], Dispute] = defaultdict(Dispute)  # by owner, number
        self.pool: dict[str, Pool] = defaultdict(Pool)
        self.credit: dict[str, int] = defaultdict(int)
        self.used: set[tuple[str, int]] = set()

    # --- TestUSD: an ERC-20 and its own refusals ---

    def mint(self, caller: str, to: str, amount: int) -> None:
        self.wallet[to] += amount

    def approve(self, caller: str, to: str, amount: int) -> None:
        self.allowed[caller, to] = amount

    def _can_pull(self, need: Any, account: str, to: str, amount: int) -> None:
        have, may = self.wallet[account], self.allowed[account, to]
        need(may >= amount, "ERC20InsufficientAllowance", to, may, amount)
        need(have >= amount, "ERC20InsufficientBalance", account, have, amount)
        need(self.wallet[to] + amount < 2**256, "Panic", 0x11)

    def _pull(self, account: str, to: str, amount: int) -> None:
        self.allowed[account, to] -= amount
        self._send(account, to, amount)

    def _send(self, source: str, to: str, amount: int) -> None:
        self.wallet[source] -= amount
        self.wallet[to] += amount

    def owed(self, contract: str) -> int:
        """What a contract has to hold, by the invariant of its interface."""
        if contract == self.stakes:
            staked = sum(miner.stake + miner.leaving for miner in self.miner.values())
            return staked + sum(self.credit.values()) + sum(p.units for p in self.pool.values())
        books = (self.balance, self.earned, self.matcher_fees, self.protocol_fees)
        nano = sum(sum(book.values()) for book in books)
        units, rest = divmod(nano + sum(amount for _, amount in self.lock.values()), NANO)
        assert rest == 0, "tokens come and go in whole units"
        return units + sum(amount for amount, _ in self.thaw.values())

    # --- Escrow ---

    def deposit(self, caller: str, amount: int) -> None:
        with rules() as need:
            need(amount > 0, "AmountZero")
            need(self.balance[caller] + amount * NANO < 2**256, "Panic", 0x11)
            self._can_pull(need, caller, self.escrow, amount)
        self._pull(caller, self.escrow, amount)
        self.balance[caller] += amount * NANO

    def request_withdraw(self, caller: str, amount: int) -> None:
        have, nano = self.balance[caller], amount * NANO
        with rules() as need:
            need(amount > 0, "AmountZero")
            need(nano < 2**256, "Panic", 0x11)
            need(have >= nano, "InsufficientBalance", caller, have, nano)
        self.balance[caller] -= nano
        ready = self.now + self.clocks.withdraw_delay_s
        self.thaw[caller] = (self.thaw[caller][0] + amount, ready)

    def withdraw(self, caller: str) -> None:
        amount, ready = self.thaw[caller]
        with rules() as need:
            need(amount > 0, "NothingThawing")
            need(self.now >= ready, "WithdrawNotReady", ready)
        del self.thaw[caller]
        self._send(self.escrow, caller, amount)

    def collect(self, caller: str, operators: Sequence[str]) -> None:
        for operator in operators:
            self._hand_over(self.earned, operator, self.owner[operator])

    def collect_fees(self, caller: str, matchers: Sequence[str]) -> None:
        for matcher in matchers:
            self._hand_over(self.matcher_fees, matcher, matcher)
            self._hand_over(self.protocol_fees, matcher, self.net.fee_account)

    def _hand_over(self, book: dict[str, int], account: str, to: str) -> None:
        units, book[account] = divmod(book[account], NANO)
        self._send(self.escrow, to, units)

    def set_spender(self, caller: str, key: str, limit: int, expiry: int) -> None:
        with rules() as need:
            need(key not in (NOBODY, caller), "SpenderInvalid", key)
        self.spender[caller, key].limit, self.spender[caller, key].expiry = limit, expiry

    # --- MinerRegistry ---

    def _can_stake(self, need: Any, caller: str, amount: int) -> None:
        need(amount < 2**96, "SafeCastOverflowedUintDowncast", 96, amount)
        self._can_pull(need, caller, self.stakes, amount)

    def _is_proven(self, need: Any, caller: str, operator: str, by: By) -> None:
        owner, is_key = self.owner[operator], operator not in self.net.contracts
        need(owner in (NOBODY, caller), "OperatorTaken", operator, owner)
        need(by == operator and is_key, "OperatorProofInvalid", operator)

    def register(self, caller: str, amount: int, operator: str, by: By) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(miner.state in (NONE, EXITED), "InvalidState", miner.state)
            need(amount >= self.clocks.min_stake, "StakeTooLow", amount, self.clocks.min_stake)
            self._is_proven(need, caller, operator, by)
            self._can_stake(need, caller, amount)
        self._pull(caller, self.stakes, amount)
        miner.stake, miner.state = amount, ACTIVE
        self._name(caller, operator)

    def add_stake(self, caller: str, amount: int) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(amount > 0, "AmountZero")
            need(miner.state == ACTIVE, "InvalidState", miner.state)
            self._can_stake(need, caller, amount)
        self._pull(caller, self.stakes, amount)
        miner.stake += amount

    def request_exit(self, caller: str, amount: int) -> None:
        miner, least = self.miner[caller], self.clocks.min_stake
        rest = miner.stake - amount
        with rules() as need:
            need(amount > 0, "AmountZero")
            need(miner.state == ACTIVE, "InvalidState", miner.state)
            need(rest >= 0, "ExitTooLarge", amount, miner.stake)
            need(rest <= 0 or rest >= least, "StakeTooLow", rest, least)
        miner.stake, miner.leaving = rest, miner.leaving + amount
        miner.leave_at = self.now + self.clocks.unbond_s
        miner.state = ACTIVE if rest else COOLDOWN

    def _is_leaving(self, need: Any, miner: Miner) -> None:
        need(miner.state in (ACTIVE, COOLDOWN), "InvalidState", miner.state)
        need(miner.leaving > 0, "NothingLeaving")

    def cancel_exit(self, caller: str) -> None:
        miner, least = self.miner[caller], self.clocks.min_stake
        whole = miner.stake + miner.leaving
        with rules() as need:
            self._is_leaving(need, miner)
            need(whole >= least, "StakeTooLow", whole, least)
        miner.stake, miner.leaving, miner.leave_at = miner.stake + miner.leaving, 0, 0
        miner.state = ACTIVE

    def withdraw_stake(self, caller: str) -> None:
        miner = self.miner[caller]
        with rules() as need:
            # What a slash left nothing of may end all the same.
            if miner.state != COOLDOWN:
                self._is_leaving(need, miner)
            need(self.now >= miner.leave_at, "ExitNotReady", miner.leave_at)
            need(miner.open_disputes == 0, "HasOpenDisputes", miner.open_disputes)
            need(miner.jail_until == 0, "MinerJailed", miner.jail_until)
        self._send(self.stakes, caller, miner.leaving)
        miner.leaving = miner.leave_at = 0
        miner.state = EXITED if miner.state == COOLDOWN else miner.state

    def rotate_operator(self, caller: str, operator: str, by: By) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(miner.state == ACTIVE, "InvalidState", miner.state)
            self._is_proven(need, caller, operator, by)
        self._name(caller, operator)

    def _name(self, owner: str, operator: str) -> None:
        if self.owner[operator] == NOBODY:
            self.named[owner].append(operator)
        self.miner[owner].operator, self.owner[operator] = operator, owner

    def unjail(self, caller: str) -> None:
        miner, least = self.miner[caller], self.clocks.min_stake
        with rules() as need:
            need(miner.jail_until > 0, "NotJailed")
            need(self.now >= miner.jail_until, "MinerJailed", miner.jail_until)
            enough = miner.state != ACTIVE or miner.stake >= least
            need(enough, "StakeTooLow", miner.stake, least)
        miner.jail_until = 0

    # --- MinerRegistry: the money of a slash (§6) ---

    def _open_dispute(
        self, owner: str, arbitrator: str, challenger: str, victim: str, victim_cap: int
    ) -> int:
        """Freeze a miner; the dispute's number."""
        miner, pool = self.miner[owner], self.pool[owner]
        miner.open_disputes += 1
        number, pool.opened = pool.opened, pool.opened + 1
        at_stake = miner.stake + miner.leaving
        self.dispute_of[owner, number] = Dispute(
            arbitrator, at_stake, challenger, 0, victim, victim_cap
        )
        return number

    def close_dispute(self, caller: str, owner: str, number: int, bps: int, cap: int) -> None:
        """`bps` in 10⁻⁴ of the stake; `cap`: the most for its challenger."""
        dispute, miner = self.dispute_of[owner, number], self.miner[owner]
        with rules() as need:
            need(caller == dispute.arbitrator, "NotArbitrator", caller)
        share = min(bps, 10**4)
        miner.open_disputes -= 1
        if share:
            self._slash(owner, share)
            base = dispute.at_stake * share // 10**4
            dispute.to_challenger = min(base * 2000 // 10**4, cap)
            dispute.to_victim = min(base * 3000 // 10**4, dispute.to_victim)
            dispute.arbitrator = NOBODY
        else:
            self.dispute_of[owner, number] = Dispute()
        # Its own turn, if it has come, and those of two more.
        self._serve(owner, 2 + (number == self.pool[owner].served))

    def _slash(self, owner: str, share: int) -> None:
        miner = self.miner[owner]
        stake, leaving = miner.stake * share // 10**4, miner.leaving * share // 10**4
        miner.stake, miner.leaving = miner.stake - stake, miner.leaving - leaving
        taken = stake + leaving
        self.pool[owner].units += taken // 2
        self.credit[self.net.burn] += taken - taken // 2
        if miner.state in (ACTIVE, COOLDOWN):
            miner.strikes = min(miner.strikes + 1, 255)
            miner.jail_until = self.now + self.clocks.jail_s

    def _serve(self, owner: str, count: int) -> None:
        """Claims in the order of their numbers, each when no older dispute is open."""
        pool = self.pool[owner]
        while count and pool.served < pool.opened:
            dispute = self.dispute_of[owner, pool.served]
            if dispute.arbitrator != NOBODY:
                break
            claims = (
                (dispute.victim, dispute.to_victim),
                (dispute.challenger, dispute.to_challenger),
            )
            for who, claim in claims:
                paid = min(claim, pool.units)
                pool.units -= paid
                self.credit[self.net.burn if who == NOBODY else who] += paid
            del self.dispute_of[owner, pool.served]
            pool.served, count = pool.served + 1, count - 1
        if pool.served == pool.opened:
            self.credit[self.net.burn] += pool.units
            pool.units = 0

    def serve(self, caller: str, owner: str, count: int) -> None:
        self._serve(owner, count)

    def withdraw_credit(self, caller: str) -> None:
        with rules() as need:
            need(self.credit[caller] > 0, "NoCredit")
        self._send(self.stakes, caller, self.credit.pop(caller))

    def can_work(self, operator: str, least: int) -> bool:
        miner = self.miner[self.owner[operator]]
        free = miner.jail_until == 0 and miner.open_disputes == 0
        can = miner.operator == operator and miner.state == ACTIVE and free
        return can and miner.stake >= max(least, self.clocks.min_stake)
