"""The life of a batch: order, match, stream, acknowledge, and go again with what a lost pipeline left unfinished.

Promise: nothing finished is lost or paid twice. Finished requests are acknowledged with the receipts that cover exactly them; the
rest of a lock returns by itself; what is unfinished is ordered anew from another pipeline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from client.matcher_api import MatcherApi
from client.orders import Batch, Prompt, Terms, make_order
from client.registered import shard_roots
from client.session import JobSession, Limits, Match, Outcome, RequestState
from client.store import ClientStore
from client.verify import ack_of_leaves
from client.wallet import ensure_deposit
from core.protocol import pricing, signing
from core.protocol.chain import Chain
from core.protocol.errors import CheckFailed, HeadraceError, MatcherUnreachable
from core.protocol.types import JobState, ModelSpec, Order, SignedOrder, SignedReceipt
from core.runtime.channel import StreamIdentity
from core.runtime.clock import Clock
from core.runtime.logs import get_logger

log = get_logger(__name__)
MAX_ROUNDS = 5
OPEN_TRIES = 6  # a matcher that restarts is back by then
ACK_TRIES = 5
LONGEST_PAUSE_S = 8.0
MATCHED_WITHIN_S = 5.0  # our node may be a block behind the matcher's
LOOK_AGAIN_S = 0.5


class Watcher(Protocol):
    """Who wants to see a batch happen. Calls are quick and never raise."""

    def order_signed(self, order: Order, locked_units: int) -> None: ...

    def job_opened(self, match: Match) -> None: ...

    def token(self, custom_id: str, step: int, token: int) -> None: ...

    def request_finished(self, custom_id: str, finish: str) -> None: ...

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None: ...

    def acknowledged(self, match: Match, paid_units: int) -> None: ...

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None: ...


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


class TermsOf(Protocol):
    def __call__(self, chain_now: int) -> Terms: ...


@dataclass(frozen=True)
class Policy:
    """How this submission behaves."""

    terms_of: TermsOf
    limits: Limits = field(default_factory=Limits)
    acknowledge: bool = True
    deposit_missing: bool = True


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
        if round_number:
            await requester.clock.sleep(_pause_s(round_number - 1))
        try:
            match, batch = await _open(requester, remaining, policy, watcher, submission)
        except HeadraceError as error:
            if not matches:
                raise
            errors = {p.custom_id: error for p in remaining}
            if not error.retryable:
                break
            continue
        matches.append(match)
        outcome = await _stream(requester, match, batch, policy, watcher)
        for index, state in outcome.finished.items():
            finished[batch.prompts[index].custom_id] = Finished(match.job_id, index, state)
        remaining = [batch.prompts[index] for index in outcome.unfinished]
        errors = {batch.prompts[i].custom_id: e for i, e in outcome.unfinished.items()}
        if not remaining:
            break
        reason = next(iter(errors.values()))
        watcher.pipeline_lost(reason, len(outcome.finished), len(remaining))
    return BatchResult(finished, errors, tuple(matches))


def _pause_s(failures: int) -> float:
    return min(2.0**failures, LONGEST_PAUSE_S)


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
    signed = SignedOrder(order, signing.sign(requester.signer, requester.chain.domain, order))
    watcher.order_signed(order, locked)
    match = await _match(requester, signed)
    requester.store.add_job(submission, match, batch, int(requester.clock.now()))
    try:
        await _check_on_chain(requester, match)
    except HeadraceError:
        requester.store.set_state(match.job_id, "abandoned")
        raise
    watcher.job_opened(match)
    return match, batch


async def _match(requester: Requester, signed: SignedOrder) -> Match:
    """Hand in the order. A matcher that did not answer may have opened the job: the same order again gives the same job."""
    for attempt in range(OPEN_TRIES - 1):
        try:
            return await requester.matcher.open_job(signed, requester.chain.domain)
        except MatcherUnreachable:
            await requester.clock.sleep(_pause_s(attempt))
    return await requester.matcher.open_job(signed, requester.chain.domain)


async def _check_on_chain(requester: Requester, match: Match) -> None:
    """The matcher's word is not enough: the job must be matched on chain with the plan it showed us."""
    give_up = requester.clock.monotonic() + MATCHED_WITHIN_S
    while True:
        job = await requester.chain.read("TaskRegistry", "jobOf", match.job_id)
        state = JobState(job["state"])
        if state is JobState.MATCHED and job["planHash"] == match.plan_hash:
            return
        if state >= JobState.MATCHED or requester.clock.monotonic() >= give_up:
            raise CheckFailed(
                "the job on chain is not the one the matcher described",
                f"state {state.name}, plan {job['planHash']}, expected MATCHED with {match.plan_hash}",
                state="no prompt was sent; what is locked returns after the order's deadline",
            )
        await requester.clock.sleep(LOOK_AGAIN_S)


async def _stream(
    requester: Requester, match: Match, batch: Batch, policy: Policy, watcher: Watcher
) -> Outcome:
    """Stream the job, keep what it produced, acknowledge what is finished. Raises no HeadraceError."""
    try:
        session = await _start(requester, match, batch, policy, watcher)
    except HeadraceError as error:
        outcome = Outcome({}, dict.fromkeys(range(len(batch.prompts)), error))
    else:
        try:
            outcome = await session.run()
            if not outcome.unfinished:
                whole = await _close_job(session, list(outcome.finished))
                requester.store.add_receipts(match.job_id, whole)
        except asyncio.CancelledError:  # Ctrl-C: pay for what was delivered, then stop
            await _settle(requester, match, session.outcome(), policy, watcher)
            raise
        finally:
            await session.close()
    await _settle(requester, match, outcome, policy, watcher)
    return outcome


async def _start(
    requester: Requester, match: Match, batch: Batch, policy: Policy, watcher: Watcher
) -> JobSession:
    """A session whose streams are open and whose answers are stored as they finish."""
    roots = await shard_roots(requester.chain, requester.model_id, match.plan)

    def finish(index: int, state: RequestState) -> None:
        requester.store.finish_request(match.job_id, index, state.tokens, state.finish)
        requester.store.add_receipts(match.job_id, list(state.receipts.values()))
        watcher.request_finished(batch.prompts[index].custom_id, state.finish)

    session = JobSession(
        match,
        batch,
        StreamIdentity(requester.signer, requester.chain.domain),
        lambda start, end: roots[start, end],
        on_token=lambda i, step, token: watcher.token(batch.prompts[i].custom_id, step, token),
        on_finish=finish,
        limits=policy.limits,
    )
    await session.open()
    return session


async def _close_job(session: JobSession, indices: list[int]) -> list[SignedReceipt]:
    """Receipts over the whole job; a stage that has gone by now already signed every request on its own."""
    try:
        return await session.close_job(indices)
    except HeadraceError as error:
        log.warning("no receipts over the whole job", reason=str(error))
        return []


async def _settle(
    requester: Requester, match: Match, outcome: Outcome, policy: Policy, watcher: Watcher
) -> None:
    """Acknowledge what is finished. A matcher that cannot be told loses nothing: it delivers the receipts itself."""
    if not outcome.finished:
        requester.store.set_state(match.job_id, "abandoned")
        return
    requester.store.set_state(match.job_id, "unacknowledged")
    if not policy.acknowledge:
        return
    for attempt in range(ACK_TRIES):
        try:
            await acknowledge(requester, match, outcome.finished, watcher)
            return
        except HeadraceError as error:
            if not error.retryable or attempt == ACK_TRIES - 1:
                watcher.not_acknowledged(match, error)
                return
        await requester.clock.sleep(_pause_s(attempt))


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
