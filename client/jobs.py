"""The life of a batch: order, match, stream, acknowledge, and go again with what a lost pipeline left unfinished.

Promise: nothing finished is lost or paid twice. Finished requests are acknowledged with the receipts that cover exactly them; the
rest of a lock returns by itself; what is unfinished is ordered anew from another pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from client.matcher_api import MatcherApi
from client.orders import Batch, Prompt, Terms, make_order
from client.session import JobSession, Limits, Match, Outcome, RequestState
from client.store import ClientStore
from client.verify import ack_of_leaves
from client.wallet import ensure_deposit
from core.protocol import pricing, signing
from core.protocol.chain import Chain
from core.protocol.errors import CheckFailed, HeadraceError, NoCapacity
from core.protocol.types import ModelSpec, Order, SignedOrder, SignedReceipt
from core.runtime.channel import StreamIdentity
from core.runtime.clock import Clock

MAX_ROUNDS = 5


class Watcher(Protocol):
    """Who wants to see a batch happen. Calls are quick and never raise."""

    def order_signed(self, order: Order, locked_units: int) -> None: ...

    def job_opened(self, match: Match) -> None: ...

    def token(self, custom_id: str, step: int, token: int) -> None: ...

    def request_finished(self, custom_id: str, finish: str) -> None: ...

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None: ...

    def acknowledged(self, match: Match, paid_units: int) -> None: ...


@dataclass(frozen=True)
class Requester:
    """Everything a batch needs of its owner."""

    chain: Chain
    matcher: MatcherApi
    signer: signing.DigestSigner
    store: ClientStore
    clock: Clock
    model_id: str
    model: ModelSpec


@dataclass(frozen=True)
class Policy:
    """How this submission behaves."""

    terms_of: TermsOf
    limits: Limits = field(default_factory=Limits)
    acknowledge: bool = True
    deposit_missing: bool = True


class TermsOf(Protocol):
    def __call__(self, chain_now: int) -> Terms: ...


@dataclass(frozen=True)
class Finished:
    """An answer with the job that produced it."""

    job_id: str
    request_index: int
    state: RequestState


@dataclass(frozen=True)
class BatchResult:
    """All answers by custom id, and what could not be answered."""

    finished: dict[str, Finished]
    unfinished: dict[str, HeadraceError]
    matches: tuple[Match, ...]


async def run_batch(
    requester: Requester,
    prompts: Sequence[Prompt],
    policy: Policy,
    watcher: Watcher,
    submission: str,
) -> BatchResult:
    """Run a batch to its end, replacing pipelines that fail, at most `MAX_ROUNDS` of them.

    Raises what the first order raised (no capacity, no deposit, …): nothing was spent then. Later failures are reported per
    request in the result.
    """
    finished: dict[str, Finished] = {}
    errors: dict[str, HeadraceError] = {}
    matches: list[Match] = []
    remaining = list(prompts)
    for round_number in range(MAX_ROUNDS):
        try:
            match, batch = await _open(requester, remaining, policy, watcher, submission)
        except HeadraceError as error:
            if round_number == 0:
                raise
            errors |= {p.custom_id: error for p in remaining}
            break
        matches.append(match)
        outcome = await _stream(requester, match, batch, policy, watcher)
        for index, state in outcome.finished.items():
            finished[batch.prompts[index].custom_id] = Finished(match.job_id, index, state)
        remaining = [batch.prompts[index] for index in outcome.unfinished]
        errors = {batch.prompts[i].custom_id: e for i, e in outcome.unfinished.items()}
        if not remaining:
            break
        reason = next(iter(outcome.unfinished.values()))
        watcher.pipeline_lost(reason, len(outcome.finished), len(remaining))
        await requester.clock.sleep(min(2.0**round_number, 8.0))
    return BatchResult(finished, errors if remaining else {}, tuple(matches))


async def _open(
    requester: Requester,
    prompts: Sequence[Prompt],
    policy: Policy,
    watcher: Watcher,
    submission: str,
) -> tuple[Match, Batch]:
    """Sign an order for these prompts and have it matched and locked on chain."""
    batch = Batch.of(prompts)
    order = make_order(
        batch,
        requester.model_id,
        requester.model,
        policy.terms_of(await requester.chain.now()),
        requester.signer.address,
        nonce=int(requester.clock.now() * 1000),
    )
    locked = pricing.max_amount(order, requester.model)
    await ensure_deposit(
        requester.chain, requester.signer, locked, may_deposit=policy.deposit_missing
    )
    domain = requester.chain.domain
    signed = SignedOrder(order, signing.sign(requester.signer, domain, order))
    watcher.order_signed(order, locked)
    match = await requester.matcher.open_job(signed, domain)
    await _check_on_chain(requester.chain, match)
    requester.store.add_job(submission, match, batch, int(requester.clock.now()))
    watcher.job_opened(match)
    return match, batch


async def _check_on_chain(chain: Chain, match: Match) -> None:
    """The matcher's word is not enough: the job must be matched on chain with the plan it showed us."""
    job = await chain.read("TaskRegistry", "jobOf", match.job_id)
    if job["state"] != 2 or job["planHash"] != match.plan_hash:
        raise CheckFailed(
            "the job on chain is not the one the matcher described",
            f"state {job['state']}, plan {job['planHash']}, expected Matched with {match.plan_hash}",
            state="no prompt was sent; what is locked returns after the order's deadline",
        )


async def _stream(
    requester: Requester, match: Match, batch: Batch, policy: Policy, watcher: Watcher
) -> Outcome:
    """Stream the job, keep what it produced, acknowledge what is finished."""
    roots = {
        (s.layer_from, s.layer_to): str(
            await requester.chain.read(
                "ModelRegistry", "shardRoot", requester.model_id, s.layer_from, s.layer_to
            )
        )
        for s in match.plan
    }
    session = JobSession(
        match,
        batch,
        StreamIdentity(requester.signer, requester.chain.domain),
        lambda start, end: roots[start, end],
        on_token=lambda i, step, token: watcher.token(batch.prompts[i].custom_id, step, token),
        limits=policy.limits,
    )
    try:
        await session.open()
    except HeadraceError as error:
        return Outcome({}, dict.fromkeys(range(len(batch.prompts)), error))
    try:
        outcome = await session.run()
        for index, state in outcome.finished.items():
            requester.store.finish_request(match.job_id, index, state.tokens, state.finish)
            requester.store.add_receipts(match.job_id, list(state.receipts.values()))
            watcher.request_finished(batch.prompts[index].custom_id, state.finish)
        if outcome.finished and not outcome.unfinished:
            requester.store.add_receipts(
                match.job_id, await _close_job(session, list(outcome.finished))
            )
    finally:
        await session.close()
    await _settle(requester, match, outcome, policy, watcher)
    return outcome


async def _close_job(session: JobSession, indices: list[int]) -> list[SignedReceipt]:
    """Receipts over the whole job; a stage that has gone by now already signed every request on its own."""
    try:
        return await session.close_job(indices)
    except HeadraceError:
        return []


async def _settle(
    requester: Requester, match: Match, outcome: Outcome, policy: Policy, watcher: Watcher
) -> None:
    if not outcome.finished:
        requester.store.set_state(match.job_id, "abandoned")
        return
    if not policy.acknowledge:
        requester.store.set_state(match.job_id, "unacknowledged")
        return
    await acknowledge(requester, match, outcome.finished, watcher)


async def acknowledge(
    requester: Requester, match: Match, finished: dict[int, RequestState], watcher: Watcher
) -> None:
    """Sign off these finished requests and have the matcher settle the job on chain."""
    order, last = match.signed.order, len(match.plan) - 1
    leaves = [state.receipts[last].leaves[0] for _, state in sorted(finished.items())]
    ack = ack_of_leaves(leaves, order, match.plan)
    signature = signing.sign(requester.signer, requester.chain.domain, ack)
    await requester.matcher.acknowledge(match.job_id, ack, signature)
    requester.store.set_state(match.job_id, "acknowledged")
    result = pricing.split(order, match.plan, requester.model, ack.tokens_in, ack.tokens_out)
    watcher.acknowledged(match, sum(result.gross))


def new_submission_id() -> str:
    """Name of one `client submit`, which may need several jobs."""
    return os.urandom(8).hex()


__all__ = ["BatchResult", "NoCapacity", "Policy", "Requester", "Watcher", "run_batch"]
