"""How does an accuser play a tolerance game to its end: from the claim to the slash, move by move, across restarts?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from client.audit.evidence import AuditCase as Job
from client.audit.evidence import Delegation
from client.disputes.jury_dispute import EMPTY_SIGNATURE
from client.disputes.show_trace import Showing
from core.chain.chain import Chain
from core.dispute.game.dispute import ACCUSER_TURNS, Phase
from core.dispute.game.game_log import GAME, Opened, Seen, games
from core.dispute.play.loop import Move, Party, Played
from core.dispute.play.players import Accuser
from core.dispute.trace.calls import claim_tuple, row_tuple
from core.dispute.trace.evidence import RowOpening
from core.protocol import commit
from core.protocol.errors import CheckFailed, HeadraceError, TokenShort
from core.protocol.signing import DigestSigner
from core.protocol.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    AuditorDelegation,
    Order,
    RequestOpening,
    SignedReceipt,
)
from core.protocol.units import format_token
from core.runtime.clock import Clock
from core.runtime.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True)
class OrderedDraw:
    """How an accused token was ordered and served (`core.dispute.trace.draw.Drawn`), with what the chain checks it by."""

    order: Order
    sampling: bytes
    proof: Sequence[bytes]
    served: RowOpening
    opening: RequestOpening | None = None
    signature: str = EMPTY_SIGNATURE
    tokens: bytes = b""  # those that the claim lists, each as u32be

    def to_tuple(self) -> tuple[Any, ...]:
        opening = self.opening or RequestOpening(ZERO_HASH, 0, ZERO_HASH, ZERO_HASH)
        return (
            self.order, self.sampling, list(self.proof), opening, self.signature, row_tuple(self.served), self.tokens
        )  # fmt: skip


@dataclass(frozen=True)
class Accusation:
    """A receipt, the claim against it with its trace, and for a token how it was ordered."""

    accused: SignedReceipt
    player: Accuser
    drawn: OrderedDraw | None = None

    async def opening(self, opened: Opened, seen: Seen) -> Move:
        """The accusation as a call. Raises CheckFailed where the claim's request is not in the receipt."""
        claim = self.player.case.claim
        leaves = self.accused.leaves
        hashes = [commit.leaf_hash(commit.request_leaf_bytes(leaf)) for leaf in leaves]
        if claim.leaf not in leaves:
            raise CheckFailed(
                "the accused receipt is not over this request",
                f"request {claim.leaf.request_index}",
            )
        position = leaves.index(claim.leaf)
        proof = commit.merkle_proof(hashes, position)
        args: tuple[Any, ...] = (
            opened.model, self.accused.receipt, claim_tuple(claim), position, proof, self.player.below_root
        )  # fmt: skip
        if self.drawn is None:
            return Move("accuse", args)
        return Move("accuseToken", (*args, self.drawn.to_tuple()))


async def open_game(
    chain: Chain,
    signer: DigestSigner,
    job: Job,
    accused: SignedReceipt,
    delegation: Delegation | None = None,
) -> Opened:
    """Pay the bond and open the dispute at the tolerance game. Raises TokenShort, ContractRefused, or CheckFailed for an order that
    names another arbitrator.
    """
    game = chain.addresses[GAME]
    if job.order.arbitrator.lower() != game.lower():
        raise CheckFailed(
            "this order's disputes are not played",
            f"it names the arbitrator {job.order.arbitrator}",
        )
    bond, have = (
        await chain.read(GAME, "bond"),
        await chain.read("TestUSD", "balanceOf", signer.address),
    )
    if have < bond:
        raise TokenShort(
            "the dispute cannot be opened",
            have=have,
            need=bond,
            address=signer.address,
            fix=f"send {format_token(bond - have)} to {signer.address}",
            show=format_token,
            chain_id=chain.chain_id,
        )
    await chain.transact(signer, "TestUSD", "approve", game, bond)
    none = AuditorDelegation(ZERO_HASH, ZERO_ADDRESS, 0)
    sent = await chain.transact(
        signer,
        "TaskRegistry",
        "dispute",
        job.order,
        list(job.plan),
        accused.receipt,
        accused.signature,
        delegation.delegation if delegation else none,
        delegation.signature if delegation else EMPTY_SIGNATURE,
    )
    found = [
        opened
        for opened in await games(chain, sent.block_number, sent.block_number)
        if opened.job == job.job_id and opened.stage == accused.receipt.stage
    ]
    return found[0]


class Brought(Protocol):
    """What an accuser brings: an accusation, or questions and malformed rows that come before one."""

    @property
    def player(self) -> Accuser | None:
        """Who opens the trace; None while there is none."""
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
        """`on_move` hears of each move that was mined. With `showing` the accused is shown the trace
        off chain.
        """
        super().__init__(chain, signer, clock, opened, on_move)
        self._brought, self._showing = brought, showing

    async def answer(self, seen: Seen, now: int) -> Move | None:
        if seen.phase == Phase.OPENED:
            if now > seen.ends_at:
                return None  # for the accused to call
            return await self._brought.opening(self._opened, seen)
        player = self._brought.player
        return player.answer(seen) if player is not None else None

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
