"""Will this miner take part in a proposed job?

A pure decision over what it is and what the chain says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.money import pricing
from core.protocol.errors import PlanInvalid
from core.protocol.types import ZERO_ADDRESS, LayerRange, ModelSpec, Order, Stage, Terms
from core.protocol.units import format_token
from core.protocol.wire import MAX_REQUESTS

ACCEPTANCE_S = 300
MIN_LEAD_S = 5
#: How many requests of one job run at once at most: what a client keeps in flight.
JOB_REQUESTS = 8

NOT_SERVING = "E-ADMIT-NOT-SERVING"
DRAINING = "E-ADMIT-DRAINING"
MATCHER = "E-ADMIT-MATCHER"
SIGNATURE = "E-ADMIT-SIGNATURE"
PLACE = "E-ADMIT-PLACE"
MODEL = "E-ADMIT-MODEL"
PROFILE = "E-ADMIT-PROFILE"
PRICE = "E-ADMIT-PRICE"
REQUESTS = "E-ADMIT-REQUESTS"
DEADLINE = "E-ADMIT-DEADLINE"
WINDOW = "E-ADMIT-WINDOW"
SLOTS = "E-ADMIT-SLOTS"
ESCROW = "E-ADMIT-ESCROW"
ARBITRATOR = "E-ADMIT-ARBITRATOR"
STAKE = "E-ADMIT-STAKE"
USED = "E-ADMIT-USED"
TERMS = "E-ADMIT-TERMS"


@dataclass(frozen=True)
class Refusal:
    """Why not: a stable code for programs and a sentence with the numbers for people."""

    code: str
    reason: str


@dataclass(frozen=True)
class MinerState:
    """What this miner is at the moment. `layers` is None while it holds no shard."""

    operator: str
    model_id: str
    spec: ModelSpec
    layers: LayerRange | None
    price_in: int  # nano base units per token per layer unit
    price_out: int
    free_requests: int
    draining: bool
    takes_parts: bool = False  # requests may enter and leave these layers anywhere


@dataclass(frozen=True)
class ChainView:
    """What the chain says about one order, read at one moment."""

    now_s: int
    requester_balance: int  # base units
    arbitrator_listed: bool
    can_work: bool
    nonce_used: bool  # by a job that this or another order opened, or revoked
    max_job_s: int
    max_window_s: int
    signer_may_spend: bool = True  # the signer is the requester or a spender that it allows
    is_registered: bool = False  # the requester opened it itself: it waits, its money locked


@dataclass(frozen=True)
class ReceivedProposal:
    """A proposal as it arrived, with whatever its signatures proved."""

    order: Order
    order_signed: bool  # by any signer, or registered: the chain knows whether it may, or is
    proposer: str
    plan: Sequence[Stage]
    stage: int
    endpoints: int
    terms: Terms | None = None
    terms_bound: bool = True  # they are those that the order was signed with


def decide(offer: ReceivedProposal, me: MinerState) -> Refusal | None:
    """Everything that can be judged without the chain. None: no objection."""
    order = offer.order
    if me.draining:
        return Refusal(DRAINING, "this miner finishes its work and takes no new jobs")
    if me.layers is None:
        return Refusal(NOT_SERVING, "this miner holds no layers at the moment")
    if order.matcher != ZERO_ADDRESS and order.matcher.lower() != offer.proposer.lower():
        return Refusal(MATCHER, f"the order names matcher {order.matcher}, not {offer.proposer}")
    if not offer.order_signed:
        return Refusal(SIGNATURE, f"the order is not signed by {order.requester}")
    if order.model_id != me.model_id:
        return Refusal(
            MODEL, f"this miner serves model {me.model_id}, the order is for {order.model_id}"
        )
    if order.numerics_profile != me.spec.numerics_profile:
        return Refusal(PROFILE, f"the model's numerics profile is {me.spec.numerics_profile}")
    if order.requests < 1 or order.max_tokens_in < 1 or order.max_tokens_out < 1:
        return Refusal(REQUESTS, "the order buys nothing")
    if order.requests > MAX_REQUESTS:
        return Refusal(REQUESTS, f"{order.requests} requests, one receipt covers {MAX_REQUESTS}")
    if refusal := _check_plan(offer, me, me.layers) or _check_terms(offer):
        return refusal
    if order.price_in < me.price_in or order.price_out < me.price_out:
        return Refusal(
            PRICE,
            f"the order pays {order.price_in}/{order.price_out} nano base units per token and "
            f"layer unit (in/out), this miner asks {me.price_in}/{me.price_out}",
        )
    if me.free_requests < 1:
        return Refusal(SLOTS, "all request slots are reserved")
    return None


def decide_on_chain(order: Order, spec: ModelSpec, seen: ChainView) -> Refusal | None:
    """Everything that only the chain can tell of an order that no job was opened with yet.

    None: no objection.
    """
    lead_s = order.deadline - seen.now_s
    if not (seen.signer_may_spend or seen.is_registered):
        return Refusal(
            SIGNATURE, f"the order is not signed by {order.requester} or a spender that it allows"
        )
    if seen.nonce_used and not seen.is_registered:
        return Refusal(
            USED, f"nonce {order.nonce} is used up: a job was opened with it, or it was revoked"
        )
    if lead_s < MIN_LEAD_S:
        return Refusal(
            DEADLINE, f"the deadline is {lead_s} s away, at least {MIN_LEAD_S} s are needed"
        )
    if lead_s > seen.max_job_s:
        return Refusal(
            DEADLINE, f"the deadline is {lead_s} s away, the limit is {seen.max_job_s} s"
        )
    if order.window > seen.max_window_s:
        return Refusal(
            WINDOW, f"the window is {order.window} s, the limit is {seen.max_window_s} s"
        )
    need = pricing.max_amount(order, spec)
    if seen.requester_balance < need and not seen.is_registered:
        return Refusal(
            ESCROW,
            f"{order.requester} has {format_token(seen.requester_balance)} in escrow, the order "
            f"needs {format_token(need)}",
        )
    if not seen.arbitrator_listed:
        return Refusal(ARBITRATOR, f"{order.arbitrator} is not on the list of arbitrators")
    if not seen.can_work:
        return Refusal(
            STAKE, "this miner's stake is below what the order asks, or it may not work now"
        )
    return None


def at_once(order: Order, terms: Terms | None = None) -> int:
    """How many of a job's requests run at once at most: enough to fill a pipeline.

    An open order says in its terms how many of its requests run at once.
    """
    most = terms.in_flight if terms is not None and order.is_open else JOB_REQUESTS
    return max(1, min(order.requests, JOB_REQUESTS, most))


def acceptance_expiry(order: Order, now_s: int) -> int:
    """Until when a matcher may use the acceptance, in chain time. Only the matcher looks at it."""
    return min(order.deadline, now_s + ACCEPTANCE_S)


def check_tiling(plan: Sequence[Stage], layers: int) -> None:
    """Raises PlanInvalid unless the stages cover [0, layers) once and in order."""
    covered = 0
    for stage in plan:
        if stage.layer_from > covered:
            raise PlanInvalid.with_gap(covered, stage.layer_from)
        if stage.layer_from < covered:
            raise PlanInvalid.with_overlap(stage.layer_from, min(covered, stage.layer_to))
        if stage.layer_to <= stage.layer_from:
            raise PlanInvalid(f"a stage holds layers [{stage.layer_from}, {stage.layer_to})")
        covered = stage.layer_to
    if covered < layers:
        raise PlanInvalid.with_gap(covered, layers)
    if covered > layers:
        raise PlanInvalid(f"layer {covered - 1} of a model with {layers} layers")


def _check_terms(offer: ReceivedProposal) -> Refusal | None:
    if not offer.terms_bound:
        return Refusal(TERMS, "the terms that came along are not those of the order")
    if offer.order.is_open and offer.terms is None:
        return Refusal(TERMS, "an open order has no terms that say how many requests run at once")
    barred = [s.operator for s in offer.plan if offer.terms and not offer.terms.allows(s.operator)]
    if barred:
        return Refusal(TERMS, f"the order's terms do not allow operator {barred[0]}")
    return None


def _check_plan(offer: ReceivedProposal, me: MinerState, layers: LayerRange) -> Refusal | None:
    try:
        check_tiling(offer.plan, me.spec.layers)
    except PlanInvalid as error:
        return Refusal(error.code, error.why)
    if offer.endpoints != len(offer.plan):
        return Refusal(PLACE, f"{offer.endpoints} endpoints for {len(offer.plan)} stages")
    if offer.stage >= len(offer.plan):
        return Refusal(PLACE, f"there is no stage {offer.stage} of {len(offer.plan)}")
    mine = offer.plan[offer.stage]
    if mine.operator.lower() != me.operator.lower():
        return Refusal(PLACE, f"stage {offer.stage} is {mine.operator}, not this miner")
    if sum(stage.operator.lower() == me.operator.lower() for stage in offer.plan) > 1:
        return Refusal(PLACE, "this miner stands in the plan twice")
    inside = layers.start <= mine.layer_from and mine.layer_to <= layers.end
    if mine.layers != layers and not (me.takes_parts and inside):
        return Refusal(PLACE, f"this miner holds layers {layers}, the plan says {mine.layers}")
    return None
