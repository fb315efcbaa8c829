"""What becomes of the sessions of a program that died? They are acknowledged from the records.

An Ack is cumulative, so sending it again pays nothing twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from client.orders.matcher_api import MatcherApi
from client.pipeline.verify import RequestAnswer, ack_of_answers, at_least, states_of
from client.records.keeper import Keeper
from client.records.store import ClientStore, JobRow, match_of
from core.protocol import signing
from core.protocol.errors import HeadraceError
from core.protocol.types import ZERO_HASH
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from core.protocol.signing import DigestSigner, Domain

log = get_logger(__name__)


async def settle_left_behind(
    store: ClientStore, keeper: Keeper, domain: Domain, matcher: MatcherApi, signer: DigestSigner
) -> int:
    """Acknowledge what every session of a dead program gave, and end it; how many were settled.

    Sessions of other keys, and those that the matcher does not take now, stay for the next time.
    """
    settled = 0
    for row, name in store.unsettled_sessions():
        if keeper.is_alive(name) and not (name == keeper.name and row.state == "unacknowledged"):
            continue
        try:
            settled += await _settle(store, keeper, domain, matcher, signer, row)
        except HeadraceError as error:
            log.info("a session stays open", job=row.job_id[:10], why=str(error))
    return settled


async def _settle(
    store: ClientStore,
    keeper: Keeper,
    domain: Domain,
    matcher: MatcherApi,
    signer: DigestSigner,
    row: JobRow,
) -> bool:
    match = match_of(row)
    order = match.signed.order
    signed_by = signing.recover(domain, order, match.signed.signature)
    if signer.address not in (order.requester, signed_by):
        return False
    store.adopt_session(row.job_id, keeper.name)
    answers, paid = delivered(store, row.job_id), store.paid(row.job_id)
    store.set_state(row.job_id, "unacknowledged")
    # Of nothing: what the order locks comes back.
    ack = at_least(ack_of_answers(answers, order, match.plan), paid)
    signature = signing.sign(signer, domain, ack)
    await matcher.acknowledge(row.job_id, ack, signature, closing=True)
    store.set_state(row.job_id, "acknowledged" if answers or any(paid) else "abandoned")
    log.info("an earlier session is settled", job=row.job_id[:10], requests=len(answers))
    return True


def delivered(store: ClientStore, job_id: str) -> dict[int, RequestAnswer]:
    """What a session's stages gave, as far as it is in the records: that alone was acknowledged."""
    answers = {}
    states = states_of(signed for _, signed in store.receipts(job_id))
    for request in store.requests(job_id):
        tokens = msgspec.json.decode(request.tokens, type=tuple[int, ...])
        if tokens:
            prompt = msgspec.json.decode(request.prompt_ids, type=tuple[int, ...])
            root = states.get(request.request_index, ZERO_HASH)
            answers[request.request_index] = RequestAnswer(prompt, tokens, root)
    return answers
