"""How does a miner defend itself in a tolerance game, by itself and within its clock?

It computes its own trace of the rows that it kept, goes down to the first of the accuser's hashes
that is not its own, and points at the value there. All that it must know stands on chain or in its
store, so a restart changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.chain.chain import Chain
from core.dispute.game.dispute import ACCUSED_TURNS, Phase, Verdict
from core.dispute.game.game_log import (
    GAME,
    Opened,
    Seen,
    case_of,
    games,
    program_of,
    read_game,
)
from core.dispute.play.loop import Move, Party, Played
from core.dispute.trace.layout import Place
from core.dispute.trace.program import Program
from core.protocol import commit, wire
from core.protocol.errors import HeadraceError
from core.protocol.signing import DigestSigner
from core.protocol.types import LayerRange
from core.runtime.clock import Clock
from core.runtime.logs import get_logger
from core.runtime.sharing import SharedLook
from miner.defence.shown_trace import ShownNodes
from miner.records.store import MinerStore
from miner.serving.job_table import Refused

if TYPE_CHECKING:
    from core.dispute.play.held import ShardSources
    from core.dispute.play.model import TraceModel
    from core.dispute.play.players import Accused

RETRY_S = 2.0
#: How long an accuser may take to begin to show its trace off chain; an honest one begins at once.
OFFER_S = 10.0
#: How often what an accuser shows has the state of its game read.
STATE_EVERY_S = 0.25
UNAUTHORISED, NOT_NOW, NOT_SHOWN = "E-PEER-AUTH", "E-GAME-NOT-NOW", "E-GAME-HASHES"
TraceHook = Callable[["TraceModel"], "TraceModel"]
log = get_logger(__name__)


@dataclass(frozen=True)
class KeptRows:
    """Rows of one request that this stage signed for, at both ends of some of its layers: all of
    them, or one span. And the bytes of one row each.
    """

    inputs: bytes
    outputs: bytes
    states: bytes  # of a last stage
    in_bytes: int
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
        """Looks for games since `first_block`; keeps traces in `folder`, or in memory without one.

        An accuser has `patience_s` to begin, or to go on, to show its trace off chain before this
        miner asks for it on chain. Demonstrations change the weights by `trace_hook`.
        """
        self.chain, self.signer, self.store, self.clock = chain, signer, store, clock
        self.model_dir, self.folder, self.on_move = model_dir, folder, on_move
        self.trace_hook, self.patience_s = trace_hook, patience_s
        self._owner, self._next_block = owner.lower(), first_block
        self._look = SharedLook(self.look, clock.monotonic, sleep=clock.sleep)
        self._games: dict[str, _AccusedGame] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def watch(self) -> None:
        """Look for games for ever. A chain that does not answer is asked again."""
        try:
            while True:
                try:
                    await self.look()
                except HeadraceError as error:
                    log.warning("cannot look for disputes", error=str(error))
                await self.clock.sleep(RETRY_S)
        finally:
            await self.close()

    async def look(self) -> None:
        """Take up the games against us since the last look. Raises ChainUnreachable."""
        if GAME not in self.chain.addresses:
            return
        head = await self.chain.block_number()
        for opened in await games(self.chain, self._next_block, head):
            if opened.accused.lower() == self._owner and opened.dispute not in self._tasks:
                self._games[opened.dispute] = _AccusedGame(self, opened)
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
        """What differs in a trace that an accuser shows. Raises Refused, ChainUnreachable.

        Strangers who ask have the chain looked at once a second, all together.
        """
        if message.dispute not in self._games:
            await self._look.fresh()
        game = self._games.get(message.dispute)
        if game is None or game.accuser != peer.lower():
            raise Refused(UNAUTHORISED, f"{peer} accuses us of nothing there")
        return await game.compare(message, data)

    async def _play(self, opened: Opened) -> None:
        dispute = opened.dispute
        await asyncio.to_thread(self.store.put_dispute, dispute, opened.job, opened.stage)
        log.warning("accused", dispute=dispute, job=opened.job, accuser=opened.accuser)
        game = self._games[dispute]
        while True:
            try:
                verdict = await game.play()
                break
            except HeadraceError as error:
                log.error("cannot answer now", dispute=dispute, error=str(error))
                await self.clock.sleep(RETRY_S)
        await asyncio.to_thread(self.store.close_dispute, dispute)
        del self._games[dispute]
        if game.home is not None:
            await asyncio.to_thread(shutil.rmtree, game.home, ignore_errors=True)
        log.info("dispute ended", dispute=dispute, verdict=verdict.name)


class _AccusedGame(Party):
    """One game, played by the accused."""

    turns = ACCUSED_TURNS

    def __init__(self, defence: Defence, opened: Opened) -> None:
        super().__init__(defence.chain, defence.signer, defence.clock, opened, self._moved)
        self.accuser = opened.accuser.lower()
        #: Where our trace of this game is kept.
        self.home = defence.folder / opened.dispute[2:18] if defence.folder else None
        self._defence = defence
        self._player: Accused | None = None
        self._preparing = asyncio.Lock()
        self._state = SharedLook(
            partial(read_game, defence.chain, opened),
            defence.clock.monotonic,
            every_s=STATE_EVERY_S,
            sleep=defence.clock.sleep,
        )
        self._shown: ShownNodes | None = None
        self._wait_until: float | None = None
        self._has_no_answer = False

    async def compare(self, message: wire.ShowNode, data: bytes) -> wire.Differs:
        """What differs in a node that the accuser shows. Raises Refused, ChainUnreachable."""
        seen = await self._state.fresh()
        if seen.phase != Phase.PICKING or seen.claim is None:
            raise Refused(NOT_NOW, f"the dispute is {seen.phase.name.lower()}")
        self._begin_to_wait()
        player = await self._ready(seen)
        if self._shown is None or self._shown.root != seen.claim.trace_root:
            self._shown = ShownNodes(seen.claim.trace_root, player.trace)
        try:
            child = await asyncio.to_thread(self._shown.differs, message.level, message.index, data)
        except ValueError as error:
            raise Refused(NOT_SHOWN, str(error)) from None
        self._begin_to_wait()
        return wire.Differs(child)

    async def answer(self, seen: Seen, now: int) -> Move | None:
        from core.dispute.play.players import reveal

        if seen.phase == Phase.ASKED:
            assert seen.asked is not None
            return reveal(seen.asked, await self._sources(seen))
        if self._has_no_answer:
            return None
        player = await self._ready(seen)
        if seen.phase == Phase.PICKING and self._shown is not None and self._shown.place:
            move: Move | None = Move("point", (tuple(self._shown.place),))
        elif self._is_awaiting(seen, player):
            return None
        else:
            move = await asyncio.to_thread(player.answer, seen)
        if move is None:
            log.warning("the accusation stands", dispute=self._opened.dispute)
            self._has_no_answer = True
        elif move.function == "point":
            place = Place(*move.args[0])
            log.warning(
                "a value of the accuser's is not ours",
                dispute=self._opened.dispute,
                place=list(place),
                ours=player.value_at(place),
            )
        return move

    def executes(self, verdict: Verdict) -> bool:
        return verdict != Verdict.FAULT  # a slash is for the accuser to execute

    def _moved(self, played: Played) -> None:
        dispute, move, sent = self._opened.dispute, played.function, played.sent
        log.info("moved", dispute=dispute, move=move, gas=sent.gas_used, tx=sent.tx_hash)
        self._defence.on_move(dispute, move)

    def _begin_to_wait(self) -> float:
        self._wait_until = self._clock.monotonic() + self._defence.patience_s
        return self._wait_until

    def _is_awaiting(self, seen: Seen, player: Accused) -> bool:
        """Whether the accuser may be about to show what we would have to ask for on chain."""
        assert seen.claim is not None
        at_root = seen.phase == Phase.PICKING and "NodeOpened" not in seen.moves
        if not at_root or seen.claim.trace_root == player.trace.tree.root:
            return False
        until = self._begin_to_wait() if self._wait_until is None else self._wait_until
        return self._clock.monotonic() < until

    async def _ready(self, seen: Seen) -> Accused:
        """Our player, made once, and once more where the claim was restated after our plea."""
        async with self._preparing:
            if self._player is None:
                self._player = await self._prepare(seen)
            assert seen.claim is not None
            return await asyncio.to_thread(self._player.at, seen.claim.plea)

    async def _prepare(self, seen: Seen) -> Accused:
        """Our own trace of what the claim is about."""
        from core.dispute.play.players import Accused
        from core.dispute.play.prepare import traced
        from core.dispute.play.program import program_like

        assert seen.claim is not None and seen.receipt is not None
        folder, hook = self._defence.model_dir, self._defence.trace_hook
        case = await case_of(self._chain, self._opened, seen.claim)
        layers = LayerRange(seen.claim.layer_from, seen.claim.layer_to)
        sides = _sides(seen.receipt, layers, case.program)
        kept = self._rows(seen.receipt, seen.claim.leaf.request_index, sides)

        def build() -> Accused:
            ours = program_like(folder, case.program)
            if ours.program != case.program:
                log.error("this machine makes another operator program of the model")
            model = ours.trace_model(folder)
            if hook is not None:
                model = hook(model)
            rows = kept.inputs, kept.outputs, kept.states
            trace, sources = traced(case, model, *rows, folder=self.home)
            return Accused(case, trace, sources, seen.listed)

        return await asyncio.to_thread(build)

    async def _sources(self, seen: Seen) -> ShardSources:
        """The rows that were asked for, by the roots we signed."""
        from core.dispute.play.held import ShardSources
        from core.dispute.play.model import TraceModel
        from core.dispute.trace.sources import cut_rows

        assert seen.asked is not None
        receipt, asked = seen.asked["receipt"], seen.asked["rows"]
        request = asked["leaf"]["requestIndex"]
        layers = LayerRange(asked["layerFrom"], asked["layerTo"])
        program = await program_of(self._chain, self._opened)
        kept = self._rows(receipt, request, _sides(receipt, layers, program))
        job = receipt["orderHash"], receipt["planHash"]
        leaf = self._defence.store.leaves(*job, request)[request]
        sources = ShardSources.over(
            TraceModel.open(self._defence.model_dir),
            cut_rows(kept.inputs, kept.in_bytes),
            cut_rows(kept.outputs, kept.out_bytes),
            cut_rows(kept.states, kept.state_bytes) if kept.states else (),
        )
        return replace(sources, inner=b"".join(map(commit.unhex, leaf.inner)))

    def _rows(
        self, receipt: Mapping[str, Any], request: int, sides: Sequence[wire.Side]
    ) -> KeptRows:
        order, plan = receipt["orderHash"], receipt["planHash"]
        found, widths = [], []
        for side in sides:
            first = self._defence.store.rows(order, plan, request, side, 0, 1) if side else None
            if first is None and side in ("", "states"):
                first = b"", 0, 0  # these layers are not the last ones
            if first is None:
                raise HeadraceError(
                    f"the rows of request {request} are not here",
                    why="they were purged or never kept",
                )
            rows = self._defence.store.rows(order, plan, request, side, 0, first[2])
            found.append(rows[0] if rows else b"")
            widths.append(first[1])
        return KeptRows(*found, *widths)


def _sides(
    receipt: Mapping[str, Any], layers: LayerRange, program: Program
) -> tuple[wire.Side, wire.Side, wire.Side]:
    """Where the rows of these layers of an accused receipt are kept: entered, left, and states.

    Raises HeadraceError for layers that are neither all of the stage's nor one of its spans.
    """
    own = LayerRange(receipt["layerFrom"], receipt["layerTo"])
    spans = own.spans(program.span_layers)
    if layers == own:
        return "in", "out", "states"
    if layers not in spans:
        raise HeadraceError(f"layers {layers} are no span of ours", why=f"we signed for {own}")
    number, last = spans.index(layers), len(spans) - 1
    entered = wire.inner_side(number - 1) if number else "in"
    if number < last:
        return entered, wire.inner_side(number), ""
    return entered, "out", "states"
