"""How does a miner defend itself in a tolerance game, by itself and within its clock?

It re-executes from the rows it kept, in the arithmetic that has one set of bits, goes down to the first hash of the accuser's that is
not its own, and points at the value. All that it must know stands on chain or in its store, so a restart changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.chain.chain import Chain
from core.dispute.game.dispute import ACCUSED_TURNS, Phase, Verdict
from core.dispute.game.game_log import GAME, Opened, Seen, case_of, games, read_game
from core.dispute.play.loop import Move, Party, Played
from core.dispute.trace.layout import Place
from core.protocol import wire
from core.protocol.errors import HeadraceError
from core.protocol.signing import DigestSigner
from core.runtime.clock import Clock
from core.runtime.logs import get_logger
from miner.defence.shown_trace import ShownNodes
from miner.records.store import MinerStore
from miner.serving.job_table import Refused

if TYPE_CHECKING:
    from core.dispute.play.held import ShardSources
    from core.dispute.play.model import TraceModel
    from core.dispute.play.players import Accused

RETRY_S = 2.0
#: An accuser that hands its trace over begins at once; another one costs us so much of a turn.
OFFER_S = 10.0
UNAUTHORISED, NOT_NOW, NOT_SHOWN = "E-PEER-AUTH", "E-GAME-NOT-NOW", "E-GAME-HASHES"
TraceHook = Callable[["TraceModel"], "TraceModel"]
_SIDES: tuple[wire.Side, ...] = ("in", "out", "states")
log = get_logger(__name__)


@dataclass(frozen=True)
class Kept:
    """What a miner kept of the accused request: all rows that it signed for."""

    inputs: bytes
    outputs: bytes
    states: bytes  # of a last stage
    in_bytes: int  # of one row
    out_bytes: int
    state_bytes: int


class Defence:
    """Finds the games against one owner and plays each to its end, side by side."""

    def __init__(
        self,
        chain: Chain,
        signer: DigestSigner,
        owner: str,
        store: MinerStore,
        model_dir: Path,
        clock: Clock,
        *,
        first_block: int,
        folder: Path | None = None,
        on_move: Callable[[str, str], None] = lambda dispute, move: None,
        trace_hook: TraceHook | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Games opened since `first_block` are looked for. Traces are kept under `folder`, in memory without one.

        An accuser has `patience_s` to begin, or to go on, to show its trace off chain before we go down it on chain.
        `trace_hook` is for demonstrations of miners that believe in other weights; the product passes none.
        """
        self._chain, self._signer, self._owner = chain, signer, owner.lower()
        self._store, self._model_dir, self._clock = store, model_dir, clock
        self._next_block, self._folder, self._on_move = first_block, folder, on_move
        self._trace_hook = trace_hook
        self._players: dict[str, Accused] = {}
        self._patience_s = patience_s
        self._open: dict[str, Opened] = {}
        self._shown: dict[str, ShownNodes] = {}
        self._wait_until: dict[str, float] = {}
        self._preparing: dict[str, asyncio.Lock] = {}
        self._standing: set[str] = set()  # games in which we found nothing to say
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def watch(self) -> None:
        """Look for games for ever. A chain that does not answer is asked again."""
        try:
            while True:
                try:
                    await self.look()
                except HeadraceError as error:
                    log.warning("cannot look for disputes", error=str(error))
                await self._clock.sleep(RETRY_S)
        finally:
            await self.close()

    async def look(self) -> None:
        """Take up the games that were opened against us since the last look. Raises ChainUnreachable."""
        if GAME not in self._chain.addresses:
            return
        head = await self._chain.block_number()
        for opened in await games(self._chain, self._next_block, head):
            if opened.accused.lower() == self._owner and opened.dispute not in self._tasks:
                self._open[opened.dispute] = opened
                task = asyncio.create_task(self._play(opened), name=f"game {opened.dispute[:10]}")
                self._tasks[opened.dispute] = task
        self._next_block = head + 1

    async def close(self) -> None:
        """Stop playing; what was begun is taken up again by the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def done(self) -> None:
        """Wait until every game that was taken up has ended."""
        await asyncio.gather(*self._tasks.values())

    async def shown(self, peer: str, message: wire.ShowNode, data: bytes) -> wire.Differs:
        """What differs in what the accuser of one of our games shows of its trace. Raises Refused, ChainUnreachable."""
        dispute = message.dispute
        if dispute not in self._open:
            await self.look()
        opened = self._open.get(dispute)
        if opened is None or opened.accuser.lower() != peer.lower():
            raise Refused(UNAUTHORISED, f"{peer} accuses us of nothing there")
        seen = await read_game(self._chain, opened)
        if seen.phase != Phase.PICKING or seen.claim is None:
            raise Refused(NOT_NOW, f"the dispute is {seen.phase.name.lower()}")
        self._wait_until[dispute] = self._clock.monotonic() + self._patience_s
        player = await self._player(seen)
        nodes = self._shown.setdefault(dispute, ShownNodes(seen.claim.trace_root, player.trace))
        try:
            child = await asyncio.to_thread(nodes.differs, message.level, message.index, data)
        except ValueError as error:
            raise Refused(NOT_SHOWN, str(error)) from None
        self._wait_until[dispute] = self._clock.monotonic() + self._patience_s
        return wire.Differs(child)

    async def _player(self, seen: Seen) -> Accused:
        """Ours in this game, made once."""
        dispute = seen.opened.dispute
        async with self._preparing.setdefault(dispute, asyncio.Lock()):
            if dispute not in self._players:
                self._players[dispute] = await self._prepare(seen)
            return self._players[dispute]

    def _is_awaiting(self, seen: Seen, player: Accused) -> bool:
        """Whether the accuser may still be about to show us what we would have to ask for on chain."""
        assert seen.claim is not None
        dispute = seen.opened.dispute
        at_root = seen.phase == Phase.PICKING and "NodeOpened" not in seen.moves
        if not at_root or seen.claim.trace_root == player.trace.tree.root:
            return False
        now = self._clock.monotonic()
        return now < self._wait_until.setdefault(dispute, now + self._patience_s)

    async def _play(self, opened: Opened) -> None:
        await asyncio.to_thread(self._store.put_dispute, opened.dispute, opened.job, opened.stage)
        log.warning("accused", dispute=opened.dispute, job=opened.job, accuser=opened.accuser)
        side = _Side(self, opened)
        while True:
            try:
                verdict = await side.play()
                break
            except HeadraceError as error:
                log.error("cannot answer now", dispute=opened.dispute, error=str(error))
                await self._clock.sleep(RETRY_S)
        await asyncio.to_thread(self._store.close_dispute, opened.dispute)
        for kept in (self._players, self._open, self._shown, self._wait_until, self._preparing):
            kept.pop(opened.dispute, None)
        self._standing.discard(opened.dispute)
        home = self._home(opened)
        if home is not None:
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
        log.info("dispute ended", dispute=opened.dispute, verdict=verdict.name)

    def _moved(self, dispute: str, played: Played) -> None:
        sent = played.sent
        log.info("moved", dispute=dispute, move=played.function, gas=sent.gas_used, tx=sent.tx_hash)
        self._on_move(dispute, played.function)

    async def _answer(self, seen: Seen) -> Move | None:
        from core.dispute.play.players import reveal

        if seen.phase == Phase.ASKED:
            assert seen.asked is not None
            return reveal(seen.asked, await self._sources(seen))
        assert seen.claim is not None
        if seen.opened.dispute in self._standing:
            return None
        player = await self._player(seen)
        nodes = self._shown.get(seen.opened.dispute)
        if seen.phase == Phase.PICKING and nodes is not None and nodes.place is not None:
            move: Move | None = Move("point", (tuple(nodes.place),))
        elif self._is_awaiting(seen, player):
            return None
        else:
            move = await asyncio.to_thread(player.answer, seen)
        if move is None:
            log.warning("the accusation stands", dispute=seen.opened.dispute)
            self._standing.add(seen.opened.dispute)
        elif move.function == "point":
            place = Place(*move.args[0])
            log.warning(
                "a value of the accuser's is not ours",
                dispute=seen.opened.dispute,
                place=list(place),
                ours=player.value_at(place),
            )
        return move

    async def _prepare(self, seen: Seen) -> Accused:
        """Our own trace of what the claim is about."""
        from core.dispute.play.players import Accused
        from core.dispute.play.prepare import traced
        from core.dispute.play.program import model_program

        assert seen.claim is not None
        case = await case_of(self._chain, seen.opened, seen.claim)
        kept = self._kept(seen)
        home = self._home(seen.opened)

        def build() -> Accused:
            ours = model_program(self._model_dir, case.program.tolerances)
            if ours.program != case.program:
                log.error("this machine makes another operator program of the model")
            model = ours.trace_model(self._model_dir)
            if self._trace_hook is not None:
                model = self._trace_hook(model)
            rows = kept.inputs, kept.outputs, kept.states
            trace, sources = traced(case, model, *rows, folder=home)
            return Accused(case, trace, sources, seen.listed)

        return await asyncio.to_thread(build)

    def _home(self, opened: Opened) -> Path | None:
        """Where our trace of a game is kept."""
        return self._folder / opened.dispute[2:18] if self._folder else None

    def _kept(self, seen: Seen) -> Kept:
        assert seen.receipt is not None and seen.claim is not None
        order, plan = seen.receipt["orderHash"], seen.receipt["planHash"]
        return self._rows(order, plan, seen.claim.leaf.request_index)

    def _rows(self, order: str, plan: str, request: int) -> Kept:
        found, widths = [], []
        for side in _SIDES:
            first = self._store.rows(order, plan, request, side, 0, 1)
            if first is None and side == "states":
                first = b"", 0, 0  # this stage was not the last one
            if first is None:
                raise HeadraceError(
                    f"the rows of request {request} are not here",
                    why="they were purged or never kept",
                )
            rows = self._store.rows(order, plan, request, side, 0, first[2])
            found.append(rows[0] if rows else b"")
            widths.append(first[1])
        return Kept(*found, *widths)

    async def _sources(self, seen: Seen) -> ShardSources:
        """The rows that were asked for, by the roots we signed."""
        from core.dispute.play.held import ShardSources
        from core.dispute.play.model import TraceModel
        from core.dispute.trace.sources import cut_rows

        assert seen.asked is not None
        receipt, rows = seen.asked["receipt"], seen.asked["rows"]
        order, plan, request = (
            receipt["orderHash"],
            receipt["planHash"],
            rows["leaf"]["requestIndex"],
        )
        kept = self._rows(order, plan, request)
        return ShardSources.over(
            TraceModel.open(self._model_dir),
            cut_rows(kept.inputs, kept.in_bytes),
            cut_rows(kept.outputs, kept.out_bytes),
            cut_rows(kept.states, kept.state_bytes) if kept.states else (),
        )


class _Side(Party):
    """The accused's side of one game."""

    turns = ACCUSED_TURNS

    def __init__(self, defence: Defence, opened: Opened) -> None:
        super().__init__(
            defence._chain,
            defence._signer,
            defence._clock,
            opened,
            partial(defence._moved, opened.dispute),
        )
        self._defence = defence

    async def answer(self, seen: Seen, now: int) -> Move | None:
        return await self._defence._answer(seen)

    def executes(self, verdict: Verdict) -> bool:
        return verdict != Verdict.FAULT  # a slash is for the accuser to execute
