"""Balances, states and refusals as `docs/protocol.md` tells them; no contract was read for it.

Amounts are base units, times seconds. A call either changes the model or raises `Refused` with
every rule that it breaks; the document does not say which of them a contract looks at first.
Whose signature came with a message is given, not computed: None is one that fits nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from core.protocol import types as t

NONE, ACTIVE, COOLDOWN, EXITED = range(4)
By = str | None


class Refused(Exception):
    """The call changes nothing. `broken`: each broken rule's error, its name and its arguments."""

    def __init__(self, broken: list[tuple[Any, ...]]) -> None:
        super().__init__(broken)
        self.broken = broken


@contextmanager
def rules():
    """What all has to hold: `need(holds, error, arguments…)`; the end raises Refused."""
    broken: list[tuple[Any, ...]] = []

    def need(holds: bool, *error: Any) -> None:
        if not holds:
            broken.append(error)

    yield need
    if broken:
        raise Refused(broken)


@dataclass
class Job:
    """A job beside its order, as `jobOf` answers."""

    plan_hash: str = t.ZERO_HASH
    deadline: int = 0
    final_at: int = 0
    window: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    open_disputes: int = 0
    matcher_fee_bps: int = 0
    stages: int = 0
    state: int = t.JobState.NONE
    is_session: int = 0
    fault_mask: int = 0  # the three masks and the arbitrator: of disputes, which are not modelled
    disputed_mask: int = 0
    open_mask: int = 0
    arbitrator: str = t.ZERO_ADDRESS
    result_root: str = t.ZERO_HASH


@dataclass
class Miner:
    """A miner, as `minerOf` answers. Jail, strikes and disputes come with slashing."""

    operator: str = t.ZERO_ADDRESS
    stake: int = 0
    leaving: int = 0
    leave_at: int = 0
    jail_until: int = 0
    open_disputes: int = 0
    machines: int = 0
    strikes: int = 0
    state: int = NONE


@dataclass
class Spender:
    limit: int = 0
    used: int = 0
    expiry: int = 0


@dataclass
class Network:
    """What is fixed at deployment, and three hashes that Python and the chain share (§2)."""

    clocks: Any  # devnet.deploy.Parameters
    fee_account: str
    model: t.ModelSpec
    model_id: str
    roots: Sequence[bytes]  # of the model's parts
    arbitrators: Sequence[str]
    contracts: Sequence[str]  # addresses with code, which are no plain keys
    addresses: Mapping[str, str]
    order_hash: Callable[[t.Order], str]
    plan_hash: Callable[[Sequence[t.Stage]], str]
    job_id: Callable[[t.Order], str]


class Model:
    def __init__(self, network: Network) -> None:
        self.net, self.clocks, self.now = network, network.clocks, 0
        self.escrow = network.addresses["Escrow"]
        self.registry = network.addresses["MinerRegistry"]
        self.wallet: dict[str, int] = defaultdict(int)
        self.allowed: dict[tuple[str, str], int] = defaultdict(int)
        self.balance: dict[str, int] = defaultdict(int)
        self.credit: dict[str, int] = defaultdict(int)
        self.thaw: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self.spender: dict[tuple[str, str], Spender] = defaultdict(Spender)
        self.lock: dict[str, tuple[str, int]] = defaultdict(lambda: (t.ZERO_ADDRESS, 0))
        self.signed_by: dict[str, str] = defaultdict(lambda: t.ZERO_ADDRESS)
        self.job: dict[str, Job] = defaultdict(Job)
        self.miner: dict[str, Miner] = defaultdict(Miner)
        self.owner: dict[str, str] = defaultdict(lambda: t.ZERO_ADDRESS)
        self.revoked: set[tuple[str, int]] = set()

    # --- tokens: an ERC-20's own refusals ---

    def _pull(self, need: Any, account: str, to: str, amount: int) -> None:
        have, may = self.wallet[account], self.allowed[account, to]
        if to == self.registry:
            need(amount < 2**96, "SafeCastOverflowedUintDowncast", 96, amount)
        need(self.wallet[to] + amount < 2**256, "Panic", 0x11)
        need(may >= amount, "ERC20InsufficientAllowance", to, may, amount)
        need(have >= amount, "ERC20InsufficientBalance", account, have, amount)

    def _pulled(self, account: str, to: str, amount: int) -> None:
        self.allowed[account, to] -= amount
        self._sent(account, to, amount)

    def _sent(self, source: str, to: str, amount: int) -> None:
        self.wallet[source] -= amount
        self.wallet[to] += amount

    def mint(self, caller: str, to: str, amount: int) -> None:
        self.wallet[to] += amount

    def approve(self, caller: str, to: str, amount: int) -> None:
        self.allowed[caller, to] = amount

    # --- Escrow ---

    def deposit(self, caller: str, amount: int) -> None:
        with rules() as need:
            need(amount > 0, "AmountZero")
            self._pull(need, caller, self.escrow, amount)
        self._pulled(caller, self.escrow, amount)
        self.balance[caller] += amount

    def request_withdraw(self, caller: str, amount: int) -> None:
        have = self.balance[caller]
        with rules() as need:
            need(amount > 0, "AmountZero")
            need(have >= amount, "InsufficientBalance", caller, have, amount)
        self.balance[caller] -= amount
        ready = self.now + self.clocks.withdraw_delay_s
        self.thaw[caller] = (self.thaw[caller][0] + amount, ready)

    def withdraw(self, caller: str) -> None:
        amount, ready = self.thaw[caller]
        with rules() as need:
            need(amount > 0, "NothingThawing")
            need(self.now >= ready, "WithdrawNotReady", ready)
        del self.thaw[caller]
        self._sent(self.escrow, caller, amount)

    def withdraw_credit(self, caller: str) -> None:
        with rules() as need:
            need(self.credit[caller] > 0, "NoCredit")
        self._sent(self.escrow, caller, self.credit.pop(caller))

    def set_spender(self, caller: str, key: str, limit: int, expiry: int) -> None:
        with rules() as need:
            need(key not in (t.ZERO_ADDRESS, caller), "SpenderInvalid", key)
        self.spender[caller, key].limit = limit
        self.spender[caller, key].expiry = expiry

    # --- MinerRegistry ---

    def register(self, caller: str, amount: int, operator: str, by: By) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(miner.state in (NONE, EXITED), "InvalidState", miner.state)
            need(amount >= self.clocks.min_stake, "StakeTooLow", amount, self.clocks.min_stake)
            self._proven(need, caller, operator, by)
            self._pull(need, caller, self.registry, amount)
        self._pulled(caller, self.registry, amount)
        miner.operator, miner.stake, miner.state = operator, amount, ACTIVE
        self.owner[operator] = caller

    def _proven(self, need: Any, caller: str, operator: str, by: By) -> None:
        owner = self.owner[operator]
        need(owner in (t.ZERO_ADDRESS, caller), "OperatorTaken", operator, owner)
        need(by == operator, "OperatorProofInvalid", operator)

    def add_stake(self, caller: str, amount: int) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(amount > 0, "AmountZero")
            need(miner.state == ACTIVE, "InvalidState", miner.state)
            self._pull(need, caller, self.registry, amount)
        self._pulled(caller, self.registry, amount)
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

    def cancel_exit(self, caller: str) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(miner.state in (ACTIVE, COOLDOWN), "InvalidState", miner.state)
            need(miner.leaving > 0, "NothingLeaving")
        miner.stake, miner.leaving, miner.leave_at = miner.stake + miner.leaving, 0, 0
        miner.state = ACTIVE

    def withdraw_stake(self, caller: str) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(miner.state in (ACTIVE, COOLDOWN), "InvalidState", miner.state)
            need(miner.leaving > 0, "NothingLeaving")
            need(self.now >= miner.leave_at, "ExitNotReady", miner.leave_at)
        self._sent(self.registry, caller, miner.leaving)
        miner.leaving = miner.leave_at = 0
        miner.state = ACTIVE if miner.stake else EXITED

    def rotate_operator(self, caller: str, operator: str, by: By) -> None:
        miner = self.miner[caller]
        with rules() as need:
            need(miner.state == ACTIVE, "InvalidState", miner.state)
            self._proven(need, caller, operator, by)
        miner.operator = operator
        self.owner[operator] = caller

    def unjail(self, caller: str) -> None:
        with rules() as need:
            need(self.miner[caller].jail_until > 0, "NotJailed")

    def can_work(self, operator: str, least: int) -> bool:
        miner = self.miner[self.owner[operator]]
        enough = miner.stake >= max(least, self.clocks.min_stake)
        return miner.operator == operator and miner.state == ACTIVE and enough

    # --- money of a job (§1, §4) ---

    def _cost(self, order: t.Order, units: int, n_in: int, n_out: int) -> int:
        return units * (n_in * order.price_in + n_out * order.price_out) // 10**9

    def _locks(self, order: t.Order) -> int:
        m = self.net.model
        units = m.layers + m.embed_units + m.head_units
        return self._cost(order, units, order.max_tokens_in, order.max_tokens_out)

    def _pay(self, order: t.Order, plan: Sequence[t.Stage], n_in: int, n_out: int) -> None:
        """Credit each share at these counts less the same share at those paid before."""
        job, model, id_ = self._job(order), self.net.model, self.net.job_id(order)
        m, p = order.matcher_fee_bps, self.clocks.protocol_fee_bps
        for stage in plan:
            units = stage.layer_to - stage.layer_from
            units += model.embed_units if stage.layer_from == 0 else 0
            units += model.head_units if stage.layer_to == model.layers else 0
            for sign, counts in ((1, (n_in, n_out)), (-1, (job.tokens_in, job.tokens_out))):
                gross = self._cost(order, units, *counts)
                fees = gross * (m + p) // 10**4
                to_matcher = fees * m // (m + p) if m + p else 0
                self.credit[order.matcher] += sign * to_matcher
                self.credit[self.net.fee_account] += sign * (fees - to_matcher)
                self.credit[self.owner[stage.operator]] += sign * (gross - fees)
                self.lock[id_] = (order.requester, self.lock[id_][1] - sign * gross)
        job.tokens_in, job.tokens_out = n_in, n_out

    def _release(self, id_: str) -> None:
        requester, rest = self.lock.pop(id_)
        self.balance[requester] += rest
        if self.signed_by[id_] != t.ZERO_ADDRESS:
            self.spender[requester, self.signed_by[id_]].used -= rest

    # --- TaskRegistry ---

    def _job(self, order: t.Order) -> Job:
        return self.job[self.net.job_id(order)]

    def _order_is_sound(self, need: Any, order: t.Order) -> None:
        latest, model = self.now + self.clocks.max_job_s, self.net.model
        most, state = self.clocks.max_window_s, self._job(order).state
        need(state == t.JobState.NONE, "WrongState", state)
        need(order.requests > 0, "RequestsZero")
        need(order.deadline >= self.now, "DeadlinePassed", order.deadline)
        need(order.deadline <= latest, "DeadlineOutOfRange", order.deadline, latest)
        need(order.window <= most, "WindowOutOfRange", order.window, most)
        fee, top = order.matcher_fee_bps, 0 if order.matcher == t.ZERO_ADDRESS else 500
        need(fee <= top, "FeeTooHigh", fee, top)
        need(order.arbitrator in self.net.arbitrators, "ArbitratorUnknown", order.arbitrator)
        need(order.model_id == self.net.model_id, "ModelUnknown", order.model_id)
        profile = order.numerics_profile, model.numerics_profile
        need(profile[0] == profile[1], "NumericsProfileMismatch", *profile)
        revoked = (order.requester, order.nonce) in self.revoked
        need(not revoked, "NonceRevokedAlready", order.nonce)

    def _plan_is_sound(
        self,
        need: Any,
        caller: str,
        order: t.Order,
        plan: Sequence[t.Stage],
        consents: Sequence[tuple[t.Acceptance, By]],
    ) -> None:
        hashes, layer = (self.net.order_hash(order), self.net.plan_hash(plan)), 0
        by_matcher = order.matcher in (t.ZERO_ADDRESS, caller)
        need(by_matcher, "NotMatcher", caller, order.matcher)
        need(len(plan) > 0 and len(plan) == len(consents), "BadPlan")
        need(len(plan) <= 64, "TooManyStages", len(plan), 64)
        for i, (stage, (consent, by)) in enumerate(zip(plan, consents, strict=False)):
            need(stage.layer_from == layer, "LayerGap", layer, stage.layer_from)
            need(stage.layer_to > stage.layer_from, "BadPlan")
            can = self.can_work(stage.operator, order.min_stake)
            need(can, "MinerCannotWork", stage.operator)
            fits = (consent.order_hash, consent.plan_hash, consent.stage) == (*hashes, i)
            need(fits, "AcceptanceMismatch", i)
            need(self.now <= consent.expiry, "AcceptanceExpired", i, consent.expiry)
            need(by == stage.operator, "BadSignature", stage.operator)
            layer = stage.layer_to
        need(layer == self.net.model.layers, "LayersUncovered", layer, self.net.model.layers)

    def _opened(self, order: t.Order, state: int) -> Job:
        job = self._job(order)
        job.state, job.is_session, job.deadline = state, int(order.is_open), order.deadline
        job.window, job.matcher_fee_bps = order.window, order.matcher_fee_bps
        self.lock[self.net.job_id(order)] = (order.requester, self._locks(order))
        return job

    def _matched(self, job: Job, plan: Sequence[t.Stage]) -> None:
        job.state, job.plan_hash = t.JobState.MATCHED, self.net.plan_hash(plan)
        job.stages = len(plan)

    def open(self, caller: str, order: t.Order) -> None:
        amount = self._locks(order)
        with rules() as need:
            need(caller == order.requester, "NotParty", caller)
            self._order_is_sound(need, order)
            self._pull(need, caller, self.escrow, amount)
        self._pulled(caller, self.escrow, amount)
        self._opened(order, t.JobState.OPEN)

    def open_matched(
        self,
        caller: str,
        order: t.Order,
        by: By,
        plan: Sequence[t.Stage],
        consents: Sequence[tuple[t.Acceptance, By]],
    ) -> None:
        amount, have = self._locks(order), self.balance[order.requester]
        key = self.spender[order.requester, by or t.ZERO_ADDRESS]
        spends = by != order.requester and self.now <= key.expiry
        with rules() as need:
            self._order_is_sound(need, order)
            need(self._may_sign(order, by) or spends, "BadSignature", order.requester)
            self._plan_is_sound(need, caller, order, plan, consents)
            need(have >= amount, "InsufficientBalance", order.requester, have, amount)
            fits = not spends or key.used + amount <= key.limit
            need(fits, "SpenderOverLimit", by, key.used + amount, key.limit)
        self.balance[order.requester] -= amount
        self._matched(self._opened(order, t.JobState.MATCHED), plan)
        if spends:
            self.signed_by[self.net.job_id(order)] = by
            key.used += amount

    def _may_sign(self, order: t.Order, by: By) -> bool:
        """By the requester's own signature: of a session, never one that only a contract checks."""
        return by == order.requester and not (order.is_open and by in self.net.contracts)

    def match_job(
        self,
        caller: str,
        order: t.Order,
        plan: Sequence[t.Stage],
        consents: Sequence[tuple[t.Acceptance, By]],
    ) -> None:
        job = self._job(order)
        with rules() as need:
            need(job.state == t.JobState.OPEN, "WrongState", job.state)
            need(self.now <= order.deadline, "DeadlinePassed", order.deadline)
            self._plan_is_sound(need, caller, order, plan, consents)
        self._matched(job, plan)

    def cancel(self, caller: str, id_: str) -> None:
        job = self.job[id_]
        with rules() as need:
            need(job.state == t.JobState.OPEN, "WrongState", job.state)
            need(caller == self.lock[id_][0], "NotParty", caller)
        job.state = t.JobState.CANCELLED
        self._release(id_)

    def settle_ack(
        self, caller: str, order: t.Order, ack: t.Ack, by: By, plan: Sequence[t.Stage]
    ) -> None:
        job, id_ = self._job(order), self.net.job_id(order)
        counts, at_work = (ack.tokens_in, ack.tokens_out), job.state == t.JobState.MATCHED
        hashes = self.net.order_hash(order), self.net.plan_hash(plan)
        stages = [who for s in plan for who in (s.operator, self.owner[s.operator])]
        with rules() as need:
            right = at_work or (job.state == t.JobState.DELIVERED and not job.is_session)
            need(right, "WrongState", job.state)
            need(hashes[1] == job.plan_hash, "PlanMismatch", hashes[1], job.plan_hash)
            need((ack.order_hash, ack.plan_hash) == hashes, "AckMismatch")
            signs = self._may_sign(order, by) or (by and by == self.signed_by[id_])
            need(bool(signs), "BadSignature", order.requester)
            for count, cap in zip(counts, (order.max_tokens_in, order.max_tokens_out), strict=True):
                need(count <= cap, "OverCap", count, cap)
            if job.is_session:
                more = ack.tokens_in > job.tokens_in or ack.tokens_out > job.tokens_out
                need(more, "AckStale", job.tokens_in, job.tokens_out)
            elif at_work:
                need(caller in (order.matcher, *stages), "NotParty", caller)
            else:
                need(counts == (job.tokens_in, job.tokens_out), "TokenCountMismatch", 0)
                need(ack.result_root == job.result_root, "AckMismatch")
        if at_work:
            job.final_at = min(self.now, job.deadline) + job.window
        if job.is_session:
            self._pay(order, plan, max(counts[0], job.tokens_in), max(counts[1], job.tokens_out))
            return
        job.tokens_in = job.tokens_out = 0
        self._pay(order, plan, *counts)
        self._release(id_)
        job.state = t.JobState.SETTLED

    def request_close(self, caller: str, order: t.Order) -> None:
        job, id_ = self._job(order), self.net.job_id(order)
        with rules() as need:
            need(order.is_open, "NotSession")
            need(job.state == t.JobState.MATCHED, "WrongState", job.state)
            need(self.now < job.deadline, "DeadlinePassed", job.deadline)
            parties = order.requester, self.signed_by[id_], order.matcher
            need(caller in parties, "NotParty", caller)
        job.deadline = self.now

    def deliver(
        self,
        caller: str,
        order: t.Order,
        plan: Sequence[t.Stage],
        receipts: Sequence[tuple[t.StageReceipt, By]],
    ) -> None:
        job, hashes = self._job(order), (self.net.order_hash(order), self.net.plan_hash(plan))
        with rules() as need:
            need(not order.is_open, "NotBatch")
            need(job.state == t.JobState.MATCHED, "WrongState", job.state)
            need(self.now <= job.deadline, "DeadlinePassed", job.deadline)
            need(hashes[1] == job.plan_hash, "PlanMismatch", hashes[1], job.plan_hash)
            need(len(receipts) == len(plan), "BadPlan")
            for i, (stage, (said, by)) in enumerate(zip(plan, receipts, strict=False)):
                place = i, stage.layer_from, stage.layer_to
                fits = (said.order_hash, said.plan_hash) == hashes
                fits &= (said.stage, said.layer_from, said.layer_to) == place
                need(fits and said.shard_root == self.shard_root(stage), "ReceiptMismatch", i)
                before, first = receipts[i - 1 if i else 0][0], receipts[0][0]
                chained = i == 0 or said.input_root == before.output_root
                need(chained, "ReceiptChainBroken", i)
                same = (said.tokens_in, said.tokens_out) == (first.tokens_in, first.tokens_out)
                need(same, "TokenCountMismatch", i)
                need(said.requests == order.requests, "RequestCountMismatch", i)
                for count, cap in (
                    (said.tokens_in, order.max_tokens_in),
                    (said.tokens_out, order.max_tokens_out),
                ):
                    need(count <= cap, "OverCap", count, cap)
                need(by == stage.operator, "BadSignature", stage.operator)
        last = receipts[-1][0]
        job.tokens_in, job.tokens_out, job.result_root = (
            last.tokens_in,
            last.tokens_out,
            last.output_root,
        )
        job.state, job.final_at = t.JobState.DELIVERED, self.now + job.window

    def shard_root(self, stage: t.Stage) -> str:
        a, b, layers = stage.layer_from, stage.layer_to, self.net.model.layers
        roots = self.net.roots[a + 1 if a else 0 : layers + 2 if b == layers else b + 1]
        ends = a.to_bytes(2, "big") + b.to_bytes(2, "big")
        return "0x" + sha256(b"\x03" + ends + b"".join(roots)).hexdigest()

    def finalize(self, caller: str, order: t.Order, plan: Sequence[t.Stage]) -> None:
        job, hash_ = self._job(order), self.net.plan_hash(plan)
        with rules() as need:
            need(job.state == t.JobState.DELIVERED, "WrongState", job.state)
            need(hash_ == job.plan_hash, "PlanMismatch", hash_, job.plan_hash)
            need(self.now > job.final_at, "WindowOpen", job.final_at)
        counts = job.tokens_in, job.tokens_out
        job.tokens_in = job.tokens_out = 0
        self._pay(order, plan, *counts)
        self._release(self.net.job_id(order))
        job.state = t.JobState.SETTLED

    def expire(self, caller: str, id_: str) -> None:
        job = self.job[id_]
        matched = job.state == t.JobState.MATCHED
        due = job.deadline + (self.clocks.close_delay_s if matched else 0)
        with rules() as need:
            need(matched or job.state == t.JobState.OPEN, "WrongState", job.state)
            need(self.now > due, "DeadlineNotPassed", due)
        paid = job.is_session and job.tokens_in + job.tokens_out > 0
        self._release(id_)
        job.state = t.JobState.SETTLED if paid else t.JobState.EXPIRED

    def revoke_nonce(self, caller: str, nonce: int) -> None:
        with rules() as need:
            need((caller, nonce) not in self.revoked, "NonceRevokedAlready", nonce)
        self.revoked.add((caller, nonce))
