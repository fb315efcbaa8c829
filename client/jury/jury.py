"""What does a juror do in a dispute: be drawn, re-run the shard, commit, reveal, move it on?

`next_action` decides from the chain and the vote book; the daemon carries it out. Vote and salt are
in SQLite before the commitment is sent, so a restart never costs the stake.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec

from client.audit.evidence import AuditCase, EvidenceCollector, case_in
from client.audit.rerun import ShardSource, StageFinding, audit_stage
from client.jury.votes import VoteBook, VoteKind
from client.orders.shard_roots import shard_roots
from core.chain.chain import Chain, ChainEvent
from core.chain.follower import EventFollower
from core.dispute.game.dispute import JURY
from core.dispute.game.dispute import JuryPhase as Phase
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    ContractRefused,
    HeadraceError,
    ModelUnsupported,
    RowsWithheld,
)
from core.protocol.signing import DigestSigner
from core.protocol.types import ZERO_HASH, StageReceipt
from core.runtime.clock import Clock
from core.runtime.logs import get_logger

log = get_logger(__name__)
POLL_S = 0.5
RETRY_S = 5.0


class Action(IntEnum):
    """What a juror does next."""

    WAIT = 0
    DRAW = 1
    JUDGE_AND_COMMIT = 2
    REVEAL = 3
    ADVANCE = 4
    EXECUTE = 5
    FORGET = 6


@dataclass(frozen=True)
class View:
    """A dispute as the chain shows it now."""

    phase: Phase
    draw_block: int
    phase_ends_at: int
    payout_at: int
    on_panel: bool
    level: int = 0  # of the panel: appeals so far

    @classmethod
    def of(cls, found: dict[str, Any], *, on_panel: bool) -> View:
        """From the contract's `disputeOf`."""
        ends = (found["drawBlock"], found["phaseEndsAt"], found["payoutAt"])
        return cls(Phase(found["phase"]), *ends, on_panel, found["level"])


@dataclass(frozen=True)
class Memory:
    """What we did in this dispute. A vote may be on chain without `committed`, after a crash."""

    voted: bool = False
    committed: bool = False
    revealed: bool = False


def next_action(view: View, memory: Memory, *, block: int, now: int) -> Action:
    """The one thing to do now, given the head block and chain time."""
    match view.phase:
        case Phase.OPENED:  # what is sent now is mined after the head block
            return Action.DRAW if block >= view.draw_block else Action.WAIT
        case Phase.COMMITTING | Phase.REVEALING if now > view.phase_ends_at:
            return Action.ADVANCE
        case Phase.COMMITTING if view.on_panel and not memory.committed:
            return Action.JUDGE_AND_COMMIT
        case Phase.REVEALING if view.on_panel and memory.voted and not memory.revealed:
            return Action.REVEAL
        case Phase.RULED if now >= view.payout_at:
            return Action.EXECUTE
        case Phase.EXECUTED:
            return Action.FORGET
        case _:
            return Action.WAIT


@dataclass(frozen=True)
class DisputedWork:
    """What the challenger put on chain: the order, the plan and the accused receipt."""

    case: AuditCase
    receipt: StageReceipt


async def read_disputed_work(chain: Chain, opened: ChainEvent) -> DisputedWork:
    """What the transaction that opened a dispute shows. Raises CheckFailed for too little."""
    call = await chain.call_of(opened.tx_hash)
    if call is None or call.function != "dispute":
        raise CheckFailed(
            "the dispute does not show what it is about",
            f"transaction {opened.tx_hash} opened it through another contract",
        )
    case = case_in(opened.args["job"], call)
    try:
        return DisputedWork(case, msgspec.convert(call.args["receipt"], StageReceipt))
    except msgspec.ValidationError as error:
        raise CheckFailed("the accused receipt is out of bounds", str(error)) from None


class JurorDaemon:
    """Follows the jury's disputes and does a juror's part in each."""

    def __init__(
        self,
        chain: Chain,
        signer: DigestSigner,
        book: VoteBook,
        clock: Clock,
        follower: EventFollower,
        evidence_of: Callable[[AuditCase], Awaitable[EvidenceCollector]],
        source_of: Callable[[AuditCase], Awaitable[ShardSource]],
        *,
        on_vote: Callable[[str, VoteKind, StageFinding | None], None] = lambda *_: None,
    ) -> None:
        """`evidence_of` opens a case's stages; `source_of` finds its model's weights here."""
        self._chain, self._signer, self._book, self._clock = chain, signer, book, clock
        self._follower, self._evidence_of, self._source_of = follower, evidence_of, source_of
        self._on_vote = on_vote
        self._open: dict[str, ChainEvent] = {}
        self._judging: dict[str, asyncio.Task[None]] = {}
        self._shard_lock = asyncio.Lock()  # one shard in memory at a time
        self._not_before: dict[str, float] = {}
        self.is_chain_up = False

    @property
    def open_disputes(self) -> int:
        """Disputes that are followed."""
        return len(self._open)

    async def run(self) -> None:
        """Until cancelled. A chain that does not answer is waited for."""
        try:
            while True:
                try:
                    await self.step()
                    self.is_chain_up = True
                except ChainUnreachable as error:
                    self.is_chain_up = False
                    log.warning("chain unreachable, will retry", reason=error.why)
                    await self._clock.sleep(2.0)
                await self._clock.sleep(POLL_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop judging; votes that are stored stay."""
        for task in self._judging.values():
            task.cancel()
        await asyncio.gather(*self._judging.values(), return_exceptions=True)

    async def step(self) -> None:
        """Look once at the chain and do what is due in each dispute. Raises ChainUnreachable."""
        batch = await self._follower.poll()
        if batch.rolled_back_to is not None:
            self._roll_back(batch.rolled_back_to)
        for event in batch.events:
            if event.contract == JURY and event.name == "DisputeOpened":
                self._open[event.args["dispute"]] = event
        for dispute in list(self._open):
            if self._clock.monotonic() >= self._not_before.get(dispute, 0.0):
                await self._advance(dispute)

    def _roll_back(self, block: int) -> None:
        """Blocks above this one are gone, perhaps with a dispute, or our votes in it."""
        for dispute, event in list(self._open.items()):
            self._book.unmark(dispute)
            if event.block_number > block:
                del self._open[dispute]

    async def _advance(self, dispute: str) -> None:
        view = await self._view(dispute)
        stored = self._book.get(dispute, view.level)
        memory = Memory(True, stored.committed, stored.revealed) if stored else Memory()
        block, now = await self._chain.block_number(), await self._chain.now()
        action = next_action(view, memory, block=block, now=now)
        try:
            await self._do(action, dispute, view.level)
        except ContractRefused as error:
            # Another juror was faster, or a clock ran out: the next look sees the new state.
            log.info("jury call refused", action=action.name, dispute=dispute, reason=error.why)
        except ChainUnreachable:
            raise
        except HeadraceError as error:
            log.warning("jury call failed", action=action.name, dispute=dispute, reason=str(error))
            self._put_off(dispute)

    async def _do(self, action: Action, dispute: str, level: int) -> None:
        match action:
            case Action.DRAW | Action.ADVANCE | Action.EXECUTE:
                await self._send(action.name.lower(), dispute)
            case Action.JUDGE_AND_COMMIT:
                await self._commit(dispute, level)
            case Action.REVEAL:
                await self._reveal(dispute, level)
            case Action.FORGET:
                del self._open[dispute]
            case Action.WAIT:
                pass

    async def _commit(self, dispute: str, level: int) -> None:
        stored = self._book.get(dispute, level)
        if stored is None:
            self._start_judging(dispute, level)
            return
        opening = int(stored.vote), stored.evidence, stored.salt
        whose = dispute, level, self._signer.address
        commitment = await self._chain.read(JURY, "commitmentHash", *whose, *opening)
        await self._send_once("commitVote", "AlreadyCommitted", dispute, commitment)
        self._book.mark(dispute, level, "committed")

    async def _reveal(self, dispute: str, level: int) -> None:
        stored = self._book.get(dispute, level)
        assert stored is not None, "a commitment is remembered before it is sent"
        await self._send_once(
            "revealVote", "AlreadyRevealed", dispute, int(stored.vote), stored.evidence, stored.salt
        )
        self._book.mark(dispute, level, "revealed")

    def _start_judging(self, dispute: str, level: int) -> None:
        """Re-run beside the loop: other disputes have clocks of their own."""
        if dispute not in self._judging:
            task = asyncio.create_task(self._reach_vote(self._open[dispute], level))
            self._judging[dispute] = task
            task.add_done_callback(lambda _: self._judging.pop(dispute))

    async def _reach_vote(self, opened: ChainEvent, level: int) -> None:
        """Judge and store the vote; what keeps us from judging is tried again later."""
        dispute = opened.args["dispute"]
        try:
            async with self._shard_lock:
                vote, finding = await self._judge(opened)
        except HeadraceError as error:
            log.warning("cannot judge, will retry", dispute=dispute, reason=str(error))
            self._put_off(dispute)
        except Exception:  # what others wrote must not stop the other disputes
            log.exception("judging failed, will retry", dispute=dispute)
            self._put_off(dispute)
        else:
            evidence = "0x" + finding.digest().hex() if finding else ZERO_HASH
            self._book.remember(dispute, level, vote, evidence, "0x" + os.urandom(32).hex())
            self._on_vote(dispute, vote, finding)

    def _put_off(self, dispute: str) -> None:
        self._not_before[dispute] = self._clock.monotonic() + RETRY_S

    async def _judge(self, opened: ChainEvent) -> tuple[VoteKind, StageFinding | None]:
        """Re-run the accused stage. One that does not open what it signed is at fault.

        What a challenger does not show is no fault; what cannot be measured is for neither side.
        """
        dispute = opened.args["dispute"]
        try:
            work = await read_disputed_work(self._chain, opened)
        except CheckFailed as error:
            log.warning("nothing to judge", dispute=dispute, reason=str(error))
            return VoteKind.NO_FAULT, None
        case, stage = work.case, work.receipt.stage
        roots = await shard_roots(self._chain, case.order.model_id, case.plan)
        registered = roots[case.plan[stage].layer_from, case.plan[stage].layer_to]
        if work.receipt.shard_root != registered:
            return VoteKind.FAULT, None
        evidence = await self._evidence_of(case)
        try:
            leaves = await evidence.leaves_of(work.receipt)
            source = await self._source_of(case)
            finding = await audit_stage(evidence, source, stage, leaves, registered)
        except RowsWithheld as error:
            log.warning("receipt not opened", dispute=dispute, reason=error.why)
            return VoteKind.FAULT, None
        except ModelUnsupported as error:
            log.warning("not measurable", dispute=dispute, reason=error.why)
            return VoteKind.UNMEASURED, None
        if finding.at_fault:
            return VoteKind.FAULT, finding
        # Without tolerances nothing was measured of its rows.
        in_shadow = source.profile.is_shadow
        return VoteKind.UNMEASURED if in_shadow else VoteKind.NO_FAULT, finding

    async def _view(self, dispute: str) -> View:
        found: dict[str, Any] = await self._chain.read(JURY, "disputeOf", dispute)
        panel = await self._chain.read(JURY, "panelOf", dispute)
        on_panel = self._signer.address.lower() in {juror.lower() for juror in panel}
        return View.of(found, on_panel=on_panel)

    async def _send(self, function: str, *args: Any) -> None:
        await self._chain.transact(self._signer, JURY, function, *args)

    async def _send_once(self, function: str, done_error: str, *args: Any) -> None:
        """Send; `done_error` is success, since we may have crashed before remembering it."""
        try:
            await self._send(function, *args)
        except ContractRefused as error:
            if error.error != done_error:
                raise
