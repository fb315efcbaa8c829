"""Will these machines take these places? Asked of all at once, each with the same deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from core.protocol import signing, wire
from core.protocol.errors import HeadraceError
from core.protocol.types import SignedAcceptance, SignedOrder, Stage
from core.runtime.network.collecting import Dialer
from core.runtime.network.pulse import Beat

PROPOSE_TIMEOUT_S = 8.0
#: An answer waits for a chain that goes on: a machine that does not consent at once is left out.
GO_ON_TIMEOUT_S = 1.0
CONFIRM_TIMEOUT_S = 1.0
#: A stage whose acceptance runs out sooner may have given up its place when the job is opened.
MIN_ACCEPTANCE_S = 5


@dataclass(frozen=True)
class ProposalRefusal:
    """An operator that did not take its place, and why. `unreachable`: it did not answer."""

    operator: str
    code: str
    reason: str
    unreachable: bool = False


@dataclass(frozen=True)
class Answers:
    """One answer a stage, in order of stage: an acceptance or a refusal."""

    by_stage: tuple[SignedAcceptance | ProposalRefusal, ...]

    @property
    def refusals(self) -> tuple[ProposalRefusal, ...]:
        return tuple(a for a in self.by_stage if isinstance(a, ProposalRefusal))

    @property
    def accepted(self) -> frozenset[int]:
        """The stages that accepted."""
        found = enumerate(self.by_stage)
        return frozenset(i for i, a in found if not isinstance(a, ProposalRefusal))

    @property
    def acceptances(self) -> tuple[SignedAcceptance, ...]:
        return tuple(a for a in self.by_stage if not isinstance(a, ProposalRefusal))


async def propose(
    peers: Dialer,
    signed: SignedOrder,
    plan: Sequence[Stage],
    endpoints: Sequence[str],
    domain: signing.Domain,
    now_s: int,
    timeout_s: float = PROPOSE_TIMEOUT_S,
    continues: str | None = None,
) -> Answers:
    """Ask every stage for its signed acceptance; `continues` is the order before this one.

    Never raises for a peer's sake.
    """

    async def ask(index: int) -> SignedAcceptance | ProposalRefusal:
        operator = plan[index].operator
        message = wire.Propose(
            signed=signed,
            plan=list(plan),
            endpoints=list(endpoints),
            stage=index,
            continues=continues,
        )
        try:
            async with asyncio.timeout(timeout_s):
                stream = await peers.get(operator, endpoints[index])
                answer = (await stream.call(message, timeout_s=timeout_s)).message
        except HeadraceError as error:
            return ProposalRefusal(operator, error.code, error.why, unreachable=True)
        except TimeoutError:
            why = f"no answer in {timeout_s:g} s"
            return ProposalRefusal(operator, "E-NET-03", why, unreachable=True)
        return judge(answer, signed, plan, index, domain, now_s)

    return Answers(tuple(await asyncio.gather(*(ask(i) for i in range(len(plan))))))


async def withdraw(peers: Dialer, order_hash: str, endpoints: Mapping[str, str]) -> None:
    """Tell operators that accepted an order that it is not opened with them.

    Whom it does not reach waits for it a while.
    """

    async def tell(operator: str) -> None:
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                stream = await peers.get(operator, endpoints[operator])
                await stream.call(wire.Withdraw(order_hash), timeout_s=CONFIRM_TIMEOUT_S)

    await asyncio.gather(*map(tell, endpoints))


async def answers(peers: Dialer, operator: str, endpoint: str) -> bool:
    """Whether a machine that a requester calls silent answers us, and does not hang in a step."""
    try:
        async with asyncio.timeout(CONFIRM_TIMEOUT_S):
            stream = await peers.get(operator, endpoint)
            answer = await stream.call(wire.Ping(), timeout_s=CONFIRM_TIMEOUT_S)
    except (HeadraceError, TimeoutError):
        return False
    pong, beat = answer.message, Beat()
    is_pong = isinstance(pong, wire.Pong)
    return is_pong and not beat.is_stuck(pong.step_ms / 1000, pong.due_ms / 1000)


def judge(
    answer: wire.AnyMessage,
    signed: SignedOrder,
    plan: Sequence[Stage],
    index: int,
    domain: signing.Domain,
    now_s: int,
) -> SignedAcceptance | ProposalRefusal:
    """Whether an answer is this operator's consent to exactly this place, for long enough.

    The chain asks for no acceptance, so nobody checks it after us.
    """
    operator = plan[index].operator
    if isinstance(answer, wire.Failed):
        return ProposalRefusal(operator, answer.code, answer.reason)
    if not isinstance(answer, wire.Accepted):
        return ProposalRefusal(operator, "E-WIRE-05", f"answered with {type(answer).__name__}")
    acceptance = answer.signed.acceptance
    expected = (signing.order_hash(signed.order), signing.plan_hash(tuple(plan)), index)
    if (acceptance.order_hash, acceptance.plan_hash, acceptance.stage) != expected:
        return ProposalRefusal(operator, "E-WIRE-05", "accepted another order, plan or place")
    if acceptance.expiry < now_s + MIN_ACCEPTANCE_S:
        left = acceptance.expiry - now_s
        return ProposalRefusal(operator, "E-WIRE-05", f"its acceptance is good for {left} s only")
    if not signing.is_signed_by(domain, acceptance, answer.signed.signature, operator):
        why = "its acceptance is not signed by its operator"
        return ProposalRefusal(operator, "E-WIRE-04", why)
    return answer.signed
