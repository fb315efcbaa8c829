"""May this order be matched here, and if not, why not?

Everything TaskRegistry would refuse is refused before a stage is asked, with numbers and a way out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.money import pricing
from core.money.spending import may_sign_for
from core.protocol import signing, wire
from core.protocol.errors import (
    CheckFailed,
    DepositShort,
    HeadraceError,
    ModelUnknown,
    NoCapacity,
    UsageError,
)
from core.protocol.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    JobState,
    ModelSpec,
    Order,
    SignedOrder,
)
from core.protocol.units import format_token

if TYPE_CHECKING:
    from core.chain.chain import Chain

#: Stages need time to answer: no order is opened that is due sooner.
SHORTEST_JOB_S = 10


@dataclass(frozen=True)
class MatcherTerms:
    """What this matcher asks for itself."""

    address: str
    fee_bps: int
    opening_fee: int  # base units


@dataclass(frozen=True)
class OrderFacts:
    """What the chain says about an order, read before it is judged."""

    now_s: int
    balance_units: int  # spendable, less what other orders of ours are about to lock
    nonce_used: bool
    arbitrator_listed: bool
    max_job_s: int
    max_window_s: int


async def read_facts(
    chain: Chain, order: Order, now_s: int, *, pending_units: int = 0
) -> OrderFacts:
    """Ask the chain; `pending_units` of the balance are taken. Raises ChainUnreachable."""
    balance, used, listed, params = await asyncio.gather(
        chain.read("Escrow", "balanceOf", order.requester),
        chain.read("TaskRegistry", "isNonceUsed", order.requester, order.nonce),
        chain.read("MinerRegistry", "isArbitrator", order.arbitrator),
        chain.read("TaskRegistry", "params"),
    )
    return OrderFacts(
        now_s=now_s,
        balance_units=max(0, int(balance) - pending_units),
        nonce_used=bool(used),
        arbitrator_listed=bool(listed),
        max_job_s=int(params["maxJobSeconds"]),
        max_window_s=int(params["maxWindowSeconds"]),
    )


async def check_signer(chain: Chain, signed: SignedOrder) -> HeadraceError | None:
    """Whether an order and its terms are signed by the requester or a spender that it allows.

    One that its requester registered needs no signature, as long as it waits on chain. Raises
    ChainUnreachable.
    """
    order, domain = signed.order, chain.domain
    if signed.is_registered:
        return check_signature(signed, domain, may_sign=await waits_on_chain(chain, order))
    signer = signing.recover(domain, order, signed.signature)
    return check_signature(signed, domain, await may_sign_for(chain, order.requester, signer))


async def waits_on_chain(chain: Chain, order: Order) -> bool:
    """Whether its requester opened an order itself, so that it waits for a plan, its money locked.

    Raises ChainUnreachable.
    """
    job_id = signing.job_id(chain.domain, order)
    found = await chain.read("TaskRegistry", "jobOf", job_id, ZERO_HASH)
    return JobState(int(found["state"])) is JobState.OPEN


def check_signature(
    signed: SignedOrder, domain: signing.Domain, may_sign: bool
) -> HeadraceError | None:
    """The requester's signature, for this deployment: an order replayed elsewhere fails here.

    `may_sign` is the chain's answer where another key signed.
    """
    if not signing.binds_its_terms(signed):
        came = signing.terms_hash(signed.terms)
        return CheckFailed(
            "the order's terms are not those it was signed with",
            why=f"it names {signed.order.terms_hash}, those that came have {came}",
            next_step="hand in the order with its own terms",
        )
    if signed.order.is_open and signed.terms is None:
        return UsageError(
            "an open order needs terms",
            why="they say how many of its requests run at once",
            next_step="sign it with terms",
        )
    if may_sign:
        return None
    return CheckFailed(
        "the order is not signed by its requester",
        why=f"the signature is not that of {signed.order.requester} for chain {domain.chain_id} "
        f"and TaskRegistry {domain.verifying_contract}",
        next_step="sign it again for this network; an order of another chain is void here",
    )


def check_order(
    order: Order,
    spec: ModelSpec | None,
    facts: OrderFacts,
    terms: MatcherTerms,
    *,
    chain_id: int,
) -> HeadraceError | None:
    """The first thing that is wrong with an order, None when it may be matched by chain time.

    Of an order that is not open yet: one that is has used its nonce.
    """
    if spec is None:
        return ModelUnknown(f"no model {order.model_id}", why="it is not in the ModelRegistry")
    return (
        _check_parties(order, terms, facts)
        or _check_times(order, facts)
        or _check_work(order, spec)
        or _check_money(order, spec, facts, chain_id)
    )


def _check_parties(order: Order, terms: MatcherTerms, facts: OrderFacts) -> HeadraceError | None:
    if order.matcher == ZERO_ADDRESS:
        return UsageError(
            "the order names no matcher",
            why="only the matcher that an order names can open it on chain",
            next_step=f"sign it for matcher {terms.address}",
        )
    if order.matcher != terms.address:
        return UsageError(
            "the order names another matcher",
            why=f"it names {order.matcher}, this one is {terms.address}",
            next_step="sign it for this matcher, or hand it to the one it names",
        )
    if order.matcher_fee_bps < terms.fee_bps:
        return NoCapacity(
            "the order pays this matcher too little",
            why=f"it offers {order.matcher_fee_bps} bps, the fee is {terms.fee_bps} bps",
            next_step=f"sign it with matcher {terms.address} and a fee of {terms.fee_bps} bps",
            nearest_offer=f"{terms.fee_bps} bps",
            fee_bps=terms.fee_bps,
        )
    if order.opening_fee < terms.opening_fee:
        least = format_token(terms.opening_fee)
        return NoCapacity(
            "the order pays this matcher too little for opening it",
            why=f"it offers {format_token(order.opening_fee)}, the fee is {least}",
            next_step=f"sign it with an opening fee of {terms.opening_fee} base units",
            nearest_offer=least,
            opening_fee=terms.opening_fee,
        )
    if not facts.arbitrator_listed:
        return UsageError(
            "the order names an arbitrator that may not judge",
            why=f"{order.arbitrator} is not on the MinerRegistry's list",
            next_step="use the network's ToleranceGame or JuryArbitrator",
        )
    return used_already(order) if facts.nonce_used else None


def used_already(order: Order) -> HeadraceError:
    """Why an order whose nonce is used cannot be opened."""
    return UsageError(
        "the order was used already",
        why=f"nonce {order.nonce} of {order.requester} is used: a job was opened with it, or its "
        f"requester revoked it",
        next_step="sign a new order with another nonce",
    )


def _check_times(order: Order, facts: OrderFacts) -> HeadraceError | None:
    left_s = order.deadline - facts.now_s
    if left_s < SHORTEST_JOB_S:
        return UsageError(
            "the order's deadline is too near",
            why=f"{order.deadline} is {left_s} s from chain time {facts.now_s}",
            next_step="sign it with a later deadline",
        )
    if left_s > facts.max_job_s:
        return UsageError(
            "the order's deadline is too far",
            why=f"it is {left_s} s away, the longest job is {facts.max_job_s} s",
            next_step="sign it with an earlier deadline",
        )
    if order.window > facts.max_window_s:
        return UsageError(
            "the order's window is too long",
            why=f"{order.window} s, the longest is {facts.max_window_s} s",
            next_step="sign it with a shorter window",
        )
    return None


def _check_work(order: Order, spec: ModelSpec) -> HeadraceError | None:
    if order.requests == 0 or order.max_tokens_in < order.requests:
        return UsageError(
            "the order asks for nothing",
            why=f"{order.requests} requests with {order.max_tokens_in} prompt tokens in all",
        )
    if order.requests > wire.MAX_REQUESTS:
        return UsageError(
            "the order has too many requests",
            why=f"{order.requests}, one job has at most {wire.MAX_REQUESTS}",
            next_step="split the batch",
        )
    if order.numerics_profile != spec.numerics_profile:
        return UsageError(
            "the order's numerics profile is not the model's",
            why=f"{order.numerics_profile}, the model is registered with {spec.numerics_profile}",
        )
    most = order.requests * spec.context
    if order.max_tokens_in + order.max_tokens_out > most:
        return UsageError(
            "the order allows more tokens than fit the model's context",
            why=f"{order.max_tokens_in} in and {order.max_tokens_out} out, {order.requests} "
            f"requests of {spec.context} tokens hold {most}",
            next_step="lower the caps or split the batch",
        )
    return None


def _check_money(
    order: Order, spec: ModelSpec, facts: OrderFacts, chain_id: int
) -> HeadraceError | None:
    need = pricing.max_amount(order, spec)
    if facts.balance_units >= need:
        return None
    short = format_token(need - facts.balance_units)
    return DepositShort(
        "the prepaid balance does not cover the order",
        have=facts.balance_units,
        need=need,
        address=order.requester,
        fix=f"client wallet deposit {short}",
        show=format_token,
        chain_id=chain_id,
        state="nothing was locked; the order is still valid",
    )
