"""How does an accuser play a tolerance game from the claim to the slash, also across restarts?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from client.audit.evidence import AuditCase, Delegation
from client.disputes.inquest import proven_leaf
from client.disputes.jury_dispute import EMPTY_SIGNATURE, bond_due, pay_and_dispute
from client.disputes.show_trace import Showing
from core.chain.chain import Chain
from core.dispute.game.dispute import ACCUSER_TURNS, Phase
from core.dispute.game.game_log import GAME, Opened, Seen, games
from core.dispute.play.loop import Move, Party, Played
from core.dispute.play.players import Accuser
from core.dispute.trace.calls import claim_tuple, row_tuple
from core.dispute.trace.evidence import RowOpening
from core.protocol.errors import CheckFailed, HeadraceError
from core.protocol.signing import DigestSigner
from core.protocol.types import ZERO_HASH, Order, RequestOpening, SignedReceipt
from core.runtime.clock import Clock
from core.runtime.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True)
class OrderedDraw:
    """How an accused token was ordered and served, as the chain checks it (`Drawn`)."""

    order: Order
    sampling: bytes
    proof: Sequence[bytes]
    served: RowOpening
    opening: RequestOpening | None = None
    signature: str = EMPTY_SIGNATURE
    tokens: bytes = b""  # those that the claim lists, each as u32be

    def to_tuple(self) -> tuple[Any, ...]:
        """In the order of the contract's fields."""
        opening = self.opening or RequestOpening(ZERO_HASH, 0, ZERO_HASH, ZERO_HASH)
        ordered = self.order, self.sampling, list(self.proof), opening, self.signature
        return *ordered, row_tuple(self.served), self.tokens


@dataclass(frozen=True)
class Accusation:
    """A receipt, the claim against it with its trace, and for a token how it was ordered.

    Where the claim is about a span of the stage, `inner` are the roots inside it.
    """

    accused: SignedReceipt
    player: Accuser
    drawn: OrderedDraw | None = None
    inner: tuple[bytes, ...] = ()

    async def opening(self, opened: Opened, seen: Seen) -> Move:
        """The accusation as a call. Raises CheckFailed for a receipt over other requests."""
        player, receipt = self.player, self.accused.receipt
        claim = player.case.claim
        signed = proven_leaf(self.accused, claim.leaf, self.inner)
        args = opened.model, receipt, claim_tuple(claim), signed, player.below_root
        if self.drawn is None:
            return Move("accuse", args)
        return Move("accuseToken", (*args, self.drawn.to_tuple()))


async def open_game(
    chain: Chain,
    signer: DigestSigner,
    job: AuditCase,
    accused: SignedReceipt,
    delegation: Delegation | None = None,
) -> Opened:
    """Pay the bond and open the dispute at the tolerance game.

    Raises TokenShort, ContractRefused, or CheckFailed for an order that names another arbitrator.
    """
    if job.order.arbitrator.lower() != chain.addresses[GAME].lower():
        raise CheckFailed(
            "this order's disputes are not played",
            f"it names the arbitrator {job.order.arbitrator}",
        )
    stage = accused.receipt.stage
    bond = await bond_due(chain, GAME, job.plan[stage].operator)
    sent = await pay_and_dispute(chain, signer, GAME, bond, job, accused, delegation)
    return next(
        opened
        for opened in await games(chain, sent.block_number, sent.block_number)
        if (opened.job, opened.stage) == (job.job_id, stage)
        and opened.accuser.lower() == signer.address.lower()
    )


class Brought(Protocol):
    """What an accuser brings: an accusation, or an inquest that comes before one."""

    @property
    def player(self) -> Accuser | None:
        """The one that opens the trace; None while there is none."""
        ...

    async def opening(self, opened: Opened, seen: Seen) -> Move | None:
        """The move of a game that has no accusation yet."""
        ...


class Prosecution(Party):
    """The accuser's side of a game, with what it brings."""

    turns = ACCUSER_TURNS

    def __init__(
        self,
        chain: Chain,
        signer: DigestSigner,
        clock: Clock,
        opened: Opened,
        brought: Brought,
        on_move: Callable[[Played], None] = lambda _: None,
        showing: Showing | None = None,
    ) -> None:
        """`on_move` hears of each move that was mined; `showing` shows the trace off chain."""
        super().__init__(chain, signer, clock, opened, on_move)
        self._brought, self._showing = brought, showing

    async def answer(self, seen: Seen, now: int) -> Move | None:
        if seen.phase == Phase.OPENED:
            if now > seen.ends_at:
                return None  # for the accused to call
            return await self._brought.opening(self._opened, seen)
        player = self._brought.player
        # After a plea it traces anew, as long as for the accusation.
        return None if player is None else await asyncio.to_thread(player.answer, seen)

    async def wait(self, seen: Seen, left_s: int) -> None:
        """Go down the trace with the accused, once.

        An accused that does not look at it off chain moves on chain, as it may.
        """
        player, showing = self._brought.player, self._showing
        if seen.phase != Phase.PICKING or showing is None or player is None:
            return
        self._showing = None
        try:
            async with asyncio.timeout(left_s):
                await showing.show(player, self._opened.dispute)
        except (HeadraceError, TimeoutError) as error:
            log.info("the accused was not shown the trace", why=str(error))
