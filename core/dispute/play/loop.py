"""How does a party play its side of a tolerance game to the end, move by move, across restarts?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from core.chain.chain import Chain, Sent
from core.dispute.game.dispute import ACCUSED_TURNS, ACCUSER_TURNS, Phase, Verdict
from core.dispute.game.game_log import GAME, Opened, Seen, read_game
from core.protocol.errors import ContractRefused
from core.protocol.signing import DigestSigner
from core.runtime.clock import Clock

POLL_S = 0.5
#: The other party, or anyone, moved between our reading and our sending, or a clock ran out.
_MOVED_ON = ("WrongPhase", "ClockRunning", "ClockOver", "PayoutNotReady", "reverted")


@dataclass(frozen=True)
class Move:
    """A call of the game, its dispute's id left out."""

    function: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Played:
    """A move that was made, and what it cost."""

    function: str
    sent: Sent


class Party(ABC):
    """One party of one game.

    What it must know stands on chain or with the party, so it may begin again at any time.
    """

    turns: ClassVar[frozenset[Phase]]

    def __init__(
        self,
        chain: Chain,
        signer: DigestSigner,
        clock: Clock,
        opened: Opened,
        on_move: Callable[[Played], None] = lambda _: None,
    ) -> None:
        """`on_move` hears of each move that was mined."""
        self._chain, self._signer, self._clock = chain, signer, clock
        self._opened, self._on_move = opened, on_move

    @abstractmethod
    async def answer(self, seen: Seen, now: int) -> Move | None:
        """The move that is due where it is this party's turn; None where it makes none now."""

    async def wait(self, seen: Seen, left_s: int) -> None:
        """What the party does while the other one has `left_s` of its turn left."""
        return

    def executes(self, verdict: Verdict) -> bool:
        """Whether the party moves the money of a game with this verdict."""
        return True

    async def play(self) -> Verdict:
        """Until the game is executed. Returns its verdict. Raises ChainUnreachable or GasShort."""
        while True:
            seen = await read_game(self._chain, self._opened)
            if seen.phase == Phase.EXECUTED:
                return seen.verdict
            if not await self.step(seen):
                await self._clock.sleep(POLL_S)

    async def step(self, seen: Seen) -> bool:
        """Make the move that is due, if one is. Returns whether one was mined."""
        # Without transactions a local chain makes no blocks, and its clock stands; a call too early
        # is refused before it is sent.
        now = max(await self._chain.now(), int(self._clock.now()))
        if seen.phase == Phase.RULED:
            if now < seen.ends_at or not self.executes(seen.verdict):
                return False
            o = self._opened
            return await self._send("execute", o.job, o.stage, o.receipt_hash, o.right)
        if seen.phase in self.turns:
            move = await self.answer(seen, now)
            return move is not None and await self._send(
                move.function, self._opened.dispute, *move.args
            )
        if seen.phase not in ACCUSER_TURNS | ACCUSED_TURNS:
            return False
        if now > seen.ends_at:
            return await self._send("timeout", self._opened.dispute)
        await self.wait(seen, seen.ends_at - now)
        return False

    async def _send(self, function: str, *args: object) -> bool:
        try:
            sent = await self._chain.transact(self._signer, GAME, function, *args)
        except ContractRefused as error:
            if error.error in _MOVED_ON:
                return False
            raise
        self._on_move(Played(function, sent))
        return True
