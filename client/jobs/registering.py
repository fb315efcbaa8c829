"""How does an order become a job without a word to its matcher? Its requester opens it on chain.

The order waits there, its money locked, until the matcher that it names sees it and gives it a
plan. Where none comes in time the requester takes it back, and all of the lock returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.pipeline.on_chain import find_job
from client.pipeline.pipeline import Match
from client.wallet import require_tokens
from core.protocol import ids, signing
from core.protocol.errors import (
    CheckFailed,
    ContractRefused,
    MatcherUnreachable,
    NoCapacity,
)
from core.protocol.types import ZERO_HASH, JobState, SignedOrder
from core.protocol.units import format_duration
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.orders.matchers import Matchers
    from core.chain.chain import Chain
    from core.protocol.signing import DigestSigner
    from core.runtime.clock import Clock

WAIT_S, LOOK_EVERY_S = 120, 1.0
ENDPOINT_TRIES = 5
log = get_logger(__name__)


async def register(
    chain: Chain,
    signer: DigestSigner,
    matchers: Matchers,
    clock: Clock,
    signed: SignedOrder,
    lock_units: int,
) -> Match:
    """Open the order on chain, from the wallet's tokens, and wait until its matcher matched it.

    Raises TokenShort, GasShort, ContractRefused before anything is locked; NoCapacity where nobody
    came, and the order is taken back; ChainUnreachable.
    """
    order, job_id = signed.order, signing.job_id(chain.domain, signed.order)
    await require_tokens(chain, signer.address, lock_units, "the order cannot be opened")
    await chain.transact(signer, "TestUSD", "approve", chain.addresses["Escrow"], lock_units)
    sent = await chain.transact(signer, "TaskRegistry", "open", order)
    name = ids.short(ids.Kind.JOB, job_id)
    log.info("order registered", job=name, matcher=order.matcher, tx=sent.tx_hash)
    give_up_s = clock.monotonic() + WAIT_S
    while await _waits(chain, job_id):
        if clock.monotonic() >= give_up_s and await _taken_back(chain, signer, signed):
            raise NoCapacity(
                "no matcher took the order",
                f"{order.matcher} gave {name} no machines in {format_duration(WAIT_S)}",
                state="it is taken back; what it locked is prepaid now",
                next_step="name another matcher, or submit without --on-chain",
            )
        await clock.sleep(LOOK_EVERY_S)
    found = await find_job(chain, Match(job_id, signed, (), (), ""), sent.block_number)
    if found.state is not JobState.MATCHED:
        raise CheckFailed(
            "the order is not matched", f"{name} is {found.state.name.lower()} on chain"
        )
    endpoints = await _endpoints(matchers, clock)
    known = [endpoints.get(stage.operator.lower(), "") for stage in found.plan]
    return Match(job_id, signed, found.plan, tuple(known), sent.tx_hash)


async def _waits(chain: Chain, job_id: str) -> bool:
    said = await chain.read("TaskRegistry", "jobOf", job_id, ZERO_HASH)
    return JobState(said["state"]) is JobState.OPEN


async def _taken_back(chain: Chain, signer: DigestSigner, signed: SignedOrder) -> bool:
    """Cancel the order; False where it was matched in this moment."""
    try:
        await chain.transact(signer, "TaskRegistry", "cancel", signed.order)
    except ContractRefused:
        return False
    return True


async def _endpoints(matchers: Matchers, clock: Clock) -> dict[str, str]:
    """Where machines are, by what any matcher sees. Raises MatcherUnreachable."""
    for attempt in range(ENDPOINT_TRIES):
        try:
            seen = await matchers.miners()
        except MatcherUnreachable:
            if attempt == ENDPOINT_TRIES - 1:
                raise
            await clock.sleep(LOOK_EVERY_S)
        else:
            return {str(one.get("operator")).lower(): str(one.get("endpoint")) for one in seen}
    raise AssertionError("the last try raises")
