"""Balances, states and refusals as `docs/protocol.md` tells them; no contract was read for it.

Amounts are base units, or nano units where `accounts` says so; times are seconds. A call either
changes the model or raises `Refused` with every rule that it breaks, as the document orders none
before another. Whose signature came with a message is given, not computed: None is one that fits
nobody.

An arbitrator is anybody's code: what it takes for a dispute is its own affair, and so is how it
rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.protocol import commit
from core.protocol.types import (
    ZERO_HASH,
    Ack,
    AuditorDelegation,
    JobState,
    Order,
    RequestLeaf,
    Stage,
    StageReceipt,
)
from core.protocol.units import NANO, covering_units
from tests.attacks.accounts import Accounts, By
from tests.attacks.books import NOBODY, Job, Network, rules

REQUESTER, AUDITOR = 0, 1  # rights to a dispute
SLASH_ALL_BPS = 10**4
Plan = Sequence[Stage]
#: Job, stage, receipt's hash, right, arbitrator.
Trial = tuple[str, int, str, int, str]


@dataclass(frozen=True)
class Words:
    """In the place of a receipt's signature: what a stage said of each request, and who signed."""

    leaves: tuple[RequestLeaf, ...]
    by: tuple[By, ...]
    answers: tuple[str, ...]  # that a first stage received


Receipts = Sequence[tuple[StageReceipt, By | Words]]


class Model(Accounts):
    """Jobs, from order to payment: TaskRegistry."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        #: The job of an open dispute; of one that was resolved None.
        self.trial: dict[Trial, Job | None] = {}

    # --- money of a job (§1, §4) ---

    def _cost(self, order: Order, units: int, n_in: int, n_out: int) -> int:
        return units * (n_in * order.price_in + n_out * order.price_out)

    def _max_nano(self, order: Order) -> int:
        m = self.net.model
        units = m.layers + m.embed_units + m.head_units
        most = self._cost(order, units, order.max_tokens_in, order.max_tokens_out)
        return most + order.opening_fee * NANO

    def _settle(self, order: Order, plan: Plan, job: Job) -> None:
        """Pay each share at the job's counts, and return the rest."""
        id_, model = self.net.job_id(order), self.net.model
        m, p = order.matcher_fee_bps, self.clocks.protocol_fee_bps
        for i, stage in enumerate(plan):
            if job.fault_mask >> i & 1:
                continue
            units = stage.layer_to - stage.layer_from
            units += model.embed_units if stage.layer_from == 0 else 0
            units += model.head_units if stage.layer_to == model.layers else 0
            gross = self._cost(order, units, job.tokens_in, job.tokens_out)
            fees = gross * (m + p) // 10**4
            to_matcher = fees * m // (m + p) if m + p else 0
            self.matcher_fees[order.matcher] += to_matcher
            self.protocol_fees[order.matcher] += fees - to_matcher
            self.earned[stage.operator] += gross - fees
            self.lock[id_] = (order.requester, self.lock[id_][1] - gross)
        self._pay_opening(order)
        self._end(order, job, JobState.SETTLED)

    def _pay_opening(self, order: Order) -> None:
        id_, nano = self.net.job_id(order), order.opening_fee * NANO
        self.matcher_fees[order.matcher] += nano
        self.lock[id_] = (order.requester, self.lock[id_][1] - nano)

    def _end(self, order: Order, job: Job, state: JobState) -> None:
        """What is left of the lock returns to the balance, and to the spender's limit."""
        id_ = self.net.job_id(order)
        requester, rest = self.lock.pop(id_)
        self.balance[requester] += rest
        if self.signed_by[id_] != NOBODY:
            self.spender[requester, self.signed_by[id_]].used -= rest
        job.state = state

    # --- TaskRegistry: opening ---

    def _job(self, order: Order, plan: Plan | None) -> Job:
        """The job of this plan; None: the one that waits for a plan."""
        plan_hash = ZERO_HASH if plan is None else self.net.plan_hash(plan)
        return self.job[self.net.job_id(order), plan_hash]

    def _is_sound(self, need: Any, order: Order) -> None:
        latest, longest = self.now + self.clocks.max_job_s, self.clocks.max_window_s
        fee, most = order.matcher_fee_bps, 0 if order.matcher == NOBODY else 500
        given, profile = order.numerics_profile, self.net.model.numerics_profile
        nano = self._max_nano(order)
        is_used = (order.requester, order.nonce) in self.used
        need(order.requests > 0, "RequestsZero")
        need(order.deadline >= self.now, "DeadlinePassed", order.deadline)
        need(order.deadline <= latest, "DeadlineOutOfRange", order.deadline, latest)
        need(order.window <= longest, "WindowOutOfRange", order.window, longest)
        need(fee <= most, "FeeTooHigh", fee, most)
        has_matcher = order.matcher != NOBODY
        need(has_matcher or not order.opening_fee, "FeeTooHigh", order.opening_fee, 0)
        need(order.arbitrator in self.net.arbitrators, "ArbitratorUnknown", order.arbitrator)
        need(order.model_id == self.net.model_id, "ModelUnknown", order.model_id)
        need(given == profile, "NumericsProfileMismatch", given, profile)
        need(nano < 2**96, "SafeCastOverflowedUintDowncast", 96, nano)
        need(not is_used, "NonceUsedAlready", order.nonce)

    def _can_match(self, need: Any, caller: str, order: Order, plan: Plan) -> None:
        layer, matcher = 0, order.requester if order.matcher == NOBODY else order.matcher
        need(caller == matcher, "NotMatcher", caller, matcher)
        need(len(plan) > 0, "BadPlan")
        need(len(plan) <= 64, "TooManyStages", len(plan), 64)
        for stage in plan:
            need(stage.layer_from == layer, "LayerGap", layer, stage.layer_from)
            need(stage.layer_to > stage.layer_from, "BadPlan")
            can = self.can_work(stage.operator, order.min_stake)
            need(can, "MinerCannotWork", stage.operator)
            layer = stage.layer_to
        need(layer == self.net.model.layers, "LayersUncovered", layer, self.net.model.layers)

    def _is_own(self, order: Order, by: By) -> bool:
        """The requester's own signature; of a session never one that only a contract checks."""
        return by == order.requester and not (order.is_open and by in self.net.contracts)

    def _open(self, order: Order, plan: Plan | None) -> Job:
        job, model = self._job(order, plan), self.net.model
        job.state, job.deadline = (
            JobState.OPEN if plan is None else JobState.MATCHED,
            order.deadline,
        )
        job.layers, job.embed_units, job.head_units = (
            model.layers,
            model.embed_units,
            model.head_units,
        )
        self.lock[self.net.job_id(order)] = (order.requester, self._max_nano(order))
        self.used.add((order.requester, order.nonce))
        return job

    def open(self, caller: str, order: Order) -> None:
        nano = self._max_nano(order)
        units = covering_units(nano)
        with rules() as need:
            need(caller == order.requester, "NotParty", caller)
            self._is_sound(need, order)
            self._can_pull(need, caller, self.escrow, units)
        self._pull(caller, self.escrow, units)
        self.balance[caller] += units * NANO - nano
        self._open(order, None)

    def open_matched(self, caller: str, order: Order, by: By, plan: Plan) -> None:
        nano, have = self._max_nano(order), self.balance[order.requester]
        key = self.spender[order.requester, by or NOBODY]
        is_other = by not in (order.requester, *self.net.contracts)
        spends = is_other and key.limit > 0 and self.now <= key.expiry
        with rules() as need:
            self._is_sound(need, order)
            need(self._is_own(order, by) or spends, "BadSignature", order.requester)
            self._can_match(need, caller, order, plan)
            need(have >= nano, "InsufficientBalance", order.requester, have, nano)
            used, limit = key.used + nano, key.limit * NANO
            need(not spends or used <= limit, "SpenderOverLimit", by, used, limit)
        self.balance[order.requester] -= nano
        self._open(order, plan).is_spenders = spends
        if spends:
            self.signed_by[self.net.job_id(order)], key.used = by or NOBODY, used

    def match_job(self, caller: str, order: Order, plan: Plan) -> None:
        job, id_ = self._job(order, None), self.net.job_id(order)
        with rules() as need:
            need(job.state == JobState.OPEN, "WrongState", job.state)
            need(self.now <= order.deadline, "DeadlinePassed", order.deadline)
            self._can_match(need, caller, order, plan)
        job.state = JobState.MATCHED
        self.job[id_, self.net.plan_hash(plan)] = self.job.pop((id_, ZERO_HASH))

    def revoke_nonce(self, caller: str, nonce: int) -> None:
        with rules() as need:
            need((caller, nonce) not in self.used, "NonceUsedAlready", nonce)
        self.used.add((caller, nonce))

    # --- TaskRegistry: ends (§6) ---

    def settle_ack(self, caller: str, order: Order, ack: Ack, by: By, plan: Plan) -> None:
        job, id_ = self._job(order, plan), self.net.job_id(order)
        n_in, n_out, had = ack.tokens_in, ack.tokens_out, (job.tokens_in, job.tokens_out)
        hashes, at_work = self._has_plan(order, plan), job.state == JobState.MATCHED
        delivered = job.state == JobState.DELIVERED
        is_whole = delivered and job.final_at <= job.deadline + order.window
        ends = is_whole or (caller == order.matcher and not order.is_open)
        with rules() as need:
            need(at_work or delivered, "WrongState", job.state)
            need((ack.order_hash, ack.plan_hash) == hashes, "AckMismatch")
            signs = self._is_own(order, by) or by == self.signed_by[id_]
            need(signs, "BadSignature", order.requester)
            self._is_within(need, order, n_in, n_out)
            need(ends or n_in > had[0] or n_out > had[1], "AckStale", *had)
            need(not is_whole or (n_in, n_out) == had, "TokenCountMismatch", 0)
        job.tokens_in, job.tokens_out = max(n_in, had[0]), max(n_out, had[1])
        if at_work:
            job.final_at = min(self.now, job.deadline) + order.window
        if ends:
            self._settle(order, plan, job)

    def _has_plan(self, order: Order, plan: Plan) -> tuple[str, str]:
        return self.net.order_hash(order), self.net.plan_hash(plan)

    def _is_within(self, need: Any, order: Order, n_in: int, n_out: int) -> None:
        need(n_in <= order.max_tokens_in, "OverCap", n_in, order.max_tokens_in)
        need(n_out <= order.max_tokens_out, "OverCap", n_out, order.max_tokens_out)

    def request_close(self, caller: str, order: Order, plan_hash: str) -> None:
        id_ = self.net.job_id(order)
        job, signer = self.job[id_, plan_hash], self.signed_by[id_]
        with rules() as need:
            need(order.is_open, "NotSession")
            need(job.state == JobState.MATCHED, "WrongState", job.state)
            need(self.now < job.deadline, "DeadlinePassed", job.deadline)
            need(caller in (order.requester, signer, order.matcher), "NotParty", caller)
        job.deadline = self.now

    def deliver(self, caller: str, order: Order, plan: Plan, receipts: Receipts) -> None:
        job, hashes = self._job(order, plan), self._has_plan(order, plan)
        with rules() as need:
            need(not order.is_open, "NotBatch")
            need(caller not in self.net.contracts, "SenderNotKey", caller)
            is_late = self.now > job.deadline
            until = job.deadline + (self.clocks.close_delay_s if is_late else 0)
            again = is_late and job.state in (JobState.DELIVERED, JobState.DISPUTED)
            need(again or job.state == JobState.MATCHED, "WrongState", job.state)
            need(self.now <= until, "DeadlinePassed", until)
            need(len(receipts) == len(plan), "BadPlan")
            requests = receipts[0][0].requests if is_late and receipts else order.requests
            before = receipts[-1][0] if receipts else None
            for i, (stage, (said, by)) in enumerate(zip(plan, receipts, strict=False)):
                place = (*hashes, i, stage.layer_from, stage.layer_to)
                given = said.order_hash, said.plan_hash, said.stage, said.layer_from, said.layer_to
                need(given == place and _is_held(said), "ReceiptMismatch", i)
                need(said.input_root == before.output_root, "ReceiptChainBroken", i)
                counts = said.tokens_in, said.tokens_out
                same = i == 0 or counts == (before.tokens_in, before.tokens_out)
                need(same, "TokenCountMismatch", i)
                need(said.requests == requests, "RequestCountMismatch", i)
                self._is_within(need, order, *counts)
                self._is_signed(need, said, by, stage.operator)
                before = said
            had = job.tokens_in, job.tokens_out
            adds = before and (before.tokens_in > had[0] or before.tokens_out > had[1])
            need(not is_late or adds, "AckStale", *had)
        job.tokens_in = max(job.tokens_in, before.tokens_in)
        job.tokens_out = max(job.tokens_out, before.tokens_out)
        job.state = JobState.DISPUTED if job.open_disputes else JobState.DELIVERED
        job.final_at = (until if is_late else self.now) + order.window

    def _is_signed(self, need: Any, said: StageReceipt, by: By | Words, operator: str) -> None:
        if not isinstance(by, Words):
            need(by == operator, "BadSignature", operator)
            return
        need(all(one == operator for one in by.by), "BadSignature", operator)
        indices = [leaf.request_index for leaf in by.leaves]
        answers = None if said.stage else by.answers
        inputs, outputs, requests = map(commit.to_hex, commit.receipt_roots(by.leaves, answers))
        due = (
            ZERO_HASH,
            inputs,
            outputs,
            requests,
            len(indices),
            sum(leaf.tokens_in for leaf in by.leaves),
            sum(leaf.tokens_out for leaf in by.leaves),
            0,
            0,
        )
        given = (
            said.shard_root,
            said.input_root,
            said.output_root,
            said.requests_root,
            said.requests,
            said.tokens_in,
            said.tokens_out,
            said.started_at,
            said.signed_at,
        )
        need(given == due, "BadWords", said.stage)

    def finalize(self, caller: str, order: Order, plan: Plan) -> None:
        job = self._job(order, plan)
        with rules() as need:
            need(job.state == JobState.DELIVERED, "WrongState", job.state)
            need(self.now > job.final_at, "WindowOpen", job.final_at)
        self._settle(order, plan, job)

    def cancel(self, caller: str, order: Order) -> None:
        job = self._job(order, None)
        with rules() as need:
            need(job.state == JobState.OPEN, "WrongState", job.state)
            need(caller == order.requester, "NotParty", caller)
        self._end(order, job, JobState.CANCELLED)

    def expire(self, caller: str, order: Order, plan: Plan) -> None:
        job = self._job(order, plan or None)
        due = job.deadline + (self.clocks.close_delay_s if plan else 0)
        with rules() as need:
            state = JobState.MATCHED if plan else JobState.OPEN
            need(job.state == state, "WrongState", job.state)
            need(self.now > due, "DeadlineNotPassed", due)
        if job.tokens_in + job.tokens_out > 0:
            self._settle(order, plan, job)
        else:
            if plan:
                self._pay_opening(order)
            self._end(order, job, JobState.EXPIRED)

    # --- TaskRegistry: guilt (§6) ---

    def dispute(
        self,
        caller: str,
        order: Order,
        plan: Plan,
        receipt: StageReceipt,
        by: By | Words,
        delegation: AuditorDelegation,
        delegated_by: By,
    ) -> None:
        job, id_, i = self._job(order, plan), self.net.job_id(order), receipt.stage
        is_there, hashes = i < len(plan), self._has_plan(order, plan)
        goes_on = job.state == JobState.MATCHED and job.final_at > 0
        right = REQUESTER if caller == order.requester else AUDITOR
        hash_ = self.net.receipt_hash(receipt)
        trial = id_, i, hash_, right, order.arbitrator
        with rules() as need:
            open_to = JobState.DELIVERED, JobState.DISPUTED, JobState.SETTLED
            need(goes_on or job.state in open_to, "WrongState", job.state)
            need(self.now <= job.final_at, "WindowClosed", job.final_at)
            if caller not in (order.requester, order.auditor):
                named = delegation.auditor == caller and delegation.order_hash == hashes[0]
                need(named and self.now <= delegation.expiry, "NotParty", caller)
                signs = self._is_own(order, delegated_by) or delegated_by == self.signed_by[id_]
                need(signs, "BadSignature", order.requester)
            need(is_there, "StageOutOfRange", i, len(plan))
            if is_there:
                stage = plan[i]
                place = (*hashes, stage.layer_from, stage.layer_to)
                given = receipt.order_hash, receipt.plan_hash, receipt.layer_from, receipt.layer_to
                need(given == place and _is_held(receipt), "ReceiptMismatch", i)
                self._is_signed(need, receipt, by, stage.operator)
                need(not job.fault_mask >> i & 1, "StageAlreadyAtFault", i)
            need(trial not in self.trial, "StageAlreadyDisputed", i)
        self.trial[trial] = job
        job.open_disputes += 1
        if job.state == JobState.DELIVERED:
            job.state = JobState.DISPUTED
        owner, cap = self.owner[plan[i].operator], self._max_nano(order) // NANO
        self._open_dispute(owner, order.arbitrator, caller, order.requester, cap)

    def resolve(
        self, caller: str, id_: str, stage: int, receipt_hash: str, right: int, fault: bool
    ) -> None:
        trial = id_, stage, receipt_hash, right, caller
        job = self.trial.get(trial)
        with rules() as need:
            need(job is not None, "NoOpenDispute", stage)
        assert job is not None
        self.trial[trial] = None
        job.open_disputes -= 1
        job.fault_mask |= fault << stage
        if job.state == JobState.DISPUTED and not job.open_disputes:
            job.state = JobState.DELIVERED

    def convict(self, caller: str, order: Order, plan: Plan, stage: int, kind: int) -> None:
        job = self._job(order, plan)
        with rules() as need:
            need(caller == self.net.evidence, "NotParty", caller)
            need(job.state != JobState.NONE, "WrongState", job.state)
            need(not job.fault_mask >> stage & 1, "StageAlreadyAtFault", stage)
        job.fault_mask |= 1 << stage
        owner, tasks = self.owner[plan[stage].operator], self.net.addresses["TaskRegistry"]
        requester, cap = order.requester, self._max_nano(order) // NANO
        number = self._open_dispute(owner, tasks, requester, requester, cap)
        self.close_dispute(tasks, owner, number, SLASH_ALL_BPS, cap)


def _is_held(receipt: StageReceipt) -> bool:
    """Do 63 bits hold its times?"""
    return max(receipt.started_at, receipt.signed_at) < 2**63
