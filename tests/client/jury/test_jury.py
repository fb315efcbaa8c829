"""A juror does each step once, never contradicts itself, and outlives restarts and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from client.audit.evidence import AuditCase
from client.audit.rerun import RequestFinding, StageFinding
from client.jury import jury
from client.jury.jury import (
    Action,
    JurorDaemon,
    Memory,
    Phase,
    View,
    next_action,
    read_disputed_work,
)
from client.jury.votes import VoteBook, VoteKind
from client.orders.orders import PromptBatch
from core.chain.chain import ChainCall
from core.chain.follower import EventFollower
from core.protocol import types as t
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    ContractRefused,
    GasShort,
    MatcherUnreachable,
    ModelUnsupported,
    RowsWithheld,
)
from tests.clocks import InstantClock, ManualClock
from tests.town.chain import FakeChain
from tests.town.orders import digest, key, prompts
from tests.town.stages import Stages

ME = key(70)
OTHERS = [key(71).address, key(72).address]
DISPUTE = "0x" + "d1" * 32


# --- what to do ---


def view(phase: Phase, *, on_panel: bool = True) -> View:
    return View(phase, draw_block=10, phase_ends_at=100, payout_at=200, on_panel=on_panel)


NEW, VOTED = Memory(), Memory(True)
COMMITTED, REVEALED = Memory(True, True), Memory(True, True, True)


@pytest.mark.parametrize(
    ("phase", "memory", "on_panel", "block", "now", "action"),
    [
        (Phase.NONE, NEW, False, 99, 999, Action.WAIT),
        (Phase.OPENED, NEW, False, 9, 0, Action.WAIT),
        (Phase.OPENED, NEW, False, 10, 0, Action.DRAW),
        (Phase.OPENED, NEW, False, 11, 999, Action.DRAW),
        (Phase.COMMITTING, NEW, True, 20, 50, Action.JUDGE_AND_COMMIT),
        (Phase.COMMITTING, NEW, True, 20, 100, Action.JUDGE_AND_COMMIT),
        (Phase.COMMITTING, VOTED, True, 20, 50, Action.JUDGE_AND_COMMIT),
        (Phase.COMMITTING, COMMITTED, True, 20, 50, Action.WAIT),
        (Phase.COMMITTING, NEW, False, 20, 50, Action.WAIT),
        (Phase.COMMITTING, NEW, True, 20, 101, Action.ADVANCE),
        (Phase.COMMITTING, COMMITTED, False, 20, 101, Action.ADVANCE),
        (Phase.REVEALING, COMMITTED, True, 20, 50, Action.REVEAL),
        (Phase.REVEALING, VOTED, True, 20, 50, Action.REVEAL),
        (Phase.REVEALING, NEW, True, 20, 50, Action.WAIT),
        (Phase.REVEALING, REVEALED, True, 20, 50, Action.WAIT),
        (Phase.REVEALING, COMMITTED, False, 20, 50, Action.WAIT),
        (Phase.REVEALING, COMMITTED, True, 20, 101, Action.ADVANCE),
        (Phase.RULED, REVEALED, True, 20, 199, Action.WAIT),
        (Phase.RULED, NEW, False, 20, 200, Action.EXECUTE),
        (Phase.EXECUTED, REVEALED, True, 20, 999, Action.FORGET),
    ],
)
def test_next_action(
    phase: Phase, memory: Memory, on_panel: bool, block: int, now: int, action: Action
) -> None:
    assert next_action(view(phase, on_panel=on_panel), memory, block=block, now=now) is action


# --- what is remembered ---


def test_first_vote_stays_the_vote(tmp_path: Path) -> None:
    path = tmp_path / "state" / "votes.sqlite"
    book = VoteBook(path)
    assert book.get(DISPUTE, 0) is None
    first = book.remember(DISPUTE, 0, VoteKind.FAULT, "0xe1", "0x51")
    assert book.remember(DISPUTE, 0, VoteKind.NO_FAULT, "0xe2", "0x52") == first
    book.mark(DISPUTE, 0, "committed")
    book.close()
    book = VoteBook(path)
    kept = book.remember(DISPUTE, 0, VoteKind.NO_FAULT, "0xe3", "0x53")
    assert (kept.vote, kept.evidence, kept.salt) == (VoteKind.FAULT, "0xe1", "0x51")
    assert (kept.committed, kept.revealed) == (True, False)
    book.mark(DISPUTE, 0, "revealed")
    book.unmark(DISPUTE)
    forgotten = book.get(DISPUTE, 0)
    assert forgotten is not None
    assert (forgotten.vote, forgotten.committed, forgotten.revealed) == (
        VoteKind.FAULT,
        False,
        False,
    )
    book.close()
    assert path.stat().st_mode & 0o777 == 0o600


# --- the daemon ---


class FakeJury(FakeChain):
    """A chain with at most one dispute of three jurors, as strict as the contract about phases."""

    def __init__(self) -> None:
        super().__init__(ManualClock(1000), blocks=101)
        self.panel: list[str] = []
        self.phase, self.draw_block = Phase.NONE, 0
        self.phase_ends_at = self.payout_at = self.level = 0
        self.commitments: dict[str, str] = {}
        self.votes: dict[str, int] = {}
        self.answers = {
            "JuryArbitrator.disputeOf": lambda dispute: {
                "phase": int(self.phase),
                "drawBlock": self.draw_block,
                "phaseEndsAt": self.phase_ends_at,
                "payoutAt": self.payout_at,
                "level": self.level,
            },
            "JuryArbitrator.panelOf": lambda dispute: [juror.lower() for juror in self.panel],
            "JuryArbitrator.commitmentHash": lambda *said: digest(*said),
        }
        self.work = Stages()
        self.work.match(PromptBatch.of(prompts(2)))
        self.receipt = self.work.receipt(1, {i: self.work.answer(i) for i in range(2)}).receipt

    def open(self, *, function: str = "dispute", **changes: Any) -> None:
        order = msgspec.to_builtins(self.work.signed.order) | changes
        said = msgspec.to_builtins({"plan": self.work.plan, "receipt": self.receipt})
        call = ChainCall("TaskRegistry", function, {"order": order, **said}, t.ZERO_ADDRESS)
        args = {"dispute": DISPUTE, "job": "0x" + "0b" * 32, "stage": 1}
        self.emit("JuryArbitrator", "DisputeOpened", call=call if function else None, **args)
        self.phase, self.draw_block = Phase.OPENED, self.head + 2

    @property
    def now_s(self) -> int:
        return int(self.clock.now())

    def _need(self, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ContractRefused("refused", error="WrongPhase", args={"have": int(self.phase)})

    def _apply(self, sender: str, function: str, args: tuple[Any, ...]) -> tuple[str, Any]:
        dispute, *said = args
        assert dispute == DISPUTE
        match function:
            case "draw":
                self._need(Phase.OPENED)
                self.phase, self.panel = Phase.COMMITTING, [ME.address, *OTHERS]
                self.phase_ends_at = self.now_s + 60
            case "commitVote":
                self._need(Phase.COMMITTING)
                if sender in self.commitments:
                    raise ContractRefused("refused", error="AlreadyCommitted")
                self.commitments[sender] = said[0]
                if len(self.commitments) == len(self.panel):
                    self.phase, self.phase_ends_at = Phase.REVEALING, self.now_s + 60
            case "revealVote":
                self._need(Phase.REVEALING)
                if sender in self.votes:
                    raise ContractRefused("refused", error="AlreadyRevealed")
                expected = digest(DISPUTE, self.level, sender, *said)
                if self.commitments.get(sender) != expected:
                    raise ContractRefused("refused", error="CommitmentMismatch")
                self.votes[sender] = said[0]
            case "advance":
                self._need(Phase.COMMITTING, Phase.REVEALING)
                if self.now_s <= self.phase_ends_at:
                    raise ContractRefused("refused", error="ClockRunning")
                if self.phase is Phase.COMMITTING:
                    self.phase, self.phase_ends_at = Phase.REVEALING, self.now_s + 60
                else:
                    self.phase, self.payout_at = Phase.RULED, self.now_s + 30
            case "execute":
                self._need(Phase.RULED)
                self.phase = Phase.EXECUTED
        return function, {}

    def others_commit(self) -> None:
        for other in OTHERS:
            self._apply(other, "commitVote", (DISPUTE, "0x" + "cc" * 32))


class Court:
    """A juror daemon over the fake jury; `restart` makes a new one over the same book."""

    in_shadow = False

    def __init__(self, folder: Path) -> None:
        self.chain, self.clock = FakeJury(), InstantClock()
        self.path = folder / "votes.sqlite"
        self.judged = 0
        self.finding = StageFinding(1, "0x", (2, 5), (RequestFinding(0, True, ("x",), 2, 1, 0),))
        self.error: Exception | None = None
        self.leaves_error: Exception | None = None
        self.votes: list[tuple[VoteKind, StageFinding | None]] = []
        self.book: VoteBook | None = None
        self.restart()

    def restart(self) -> None:
        if self.book is not None:
            self.book.close()
        self.book = VoteBook(self.path)
        self.daemon = JurorDaemon(
            self.chain,
            ME,
            self.book,
            self.clock,
            EventFollower(self.chain, start_block=90),
            self._evidence_of,  # type: ignore[arg-type]
            self._source_of,  # type: ignore[arg-type]
            on_vote=lambda dispute, vote, finding: self.votes.append((vote, finding)),
        )

    async def _evidence_of(self, case: AuditCase) -> Court:
        assert case.order == self.chain.work.signed.order
        assert case.plan == self.chain.work.plan
        return self

    async def _source_of(self, case: AuditCase) -> SimpleNamespace:
        """The audit looks at no weights, and the vote at what the model promises."""
        return SimpleNamespace(profile=SimpleNamespace(is_shadow=self.in_shadow))

    async def leaves_of(self, receipt: t.StageReceipt) -> list[t.RequestLeaf]:
        if self.leaves_error:
            raise self.leaves_error
        return []

    async def audit_stage(self, evidence: Any, source: Any, stage: int, *_: Any) -> StageFinding:
        assert stage == 1
        self.judged += 1
        if self.error:
            raise self.error
        return self.finding

    async def step(self, count: int = 1) -> None:
        """Look, and let what was begun beside the loop go on."""
        for _ in range(count):
            await self.daemon.step()
            for _ in range(20):
                await asyncio.sleep(0)

    async def to_the_panel(self) -> None:
        """Open a dispute and have the panel drawn."""
        self.chain.open()
        await self.step()
        self.chain.grow(2)
        await self.step()
        assert self.chain.phase is Phase.COMMITTING

    @property
    def mine(self) -> list[str]:
        return self.chain.called


@pytest.fixture
def court(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Court]:
    court = Court(tmp_path)
    monkeypatch.setattr(jury, "audit_stage", court.audit_stage)
    yield court
    assert court.book is not None
    court.book.close()


async def test_dispute_is_drawn_judged_committed_revealed_advanced_and_executed(
    court: Court,
) -> None:
    chain = court.chain
    chain.open()
    await court.step()
    assert court.mine == [], "the draw block is not mined"
    chain.grow(2)
    await court.step()
    assert court.mine == ["draw"]
    await court.step(2)
    assert court.mine == ["draw", "commitVote"]
    assert court.votes == [(VoteKind.FAULT, court.finding)]
    await court.step(2)
    assert len(court.mine) == 2, "nothing to do until all have committed"
    chain.others_commit()
    await court.step(2)
    assert court.mine[2:] == ["revealVote"]
    assert chain.votes == {ME.address: int(VoteKind.FAULT)}
    chain.clock = ManualClock(chain.phase_ends_at + 1)
    await court.step()
    assert chain.phase is Phase.RULED
    await court.step()
    assert chain.phase is Phase.RULED, "the payout delay runs"
    chain.clock = ManualClock(chain.payout_at)
    await court.step()
    assert chain.phase is Phase.EXECUTED
    await court.step(3)
    assert court.mine == ["draw", "commitVote", "revealVote", "advance", "execute"]
    assert court.judged == 1


async def test_who_is_not_drawn_only_moves_the_clocks(court: Court) -> None:
    await court.to_the_panel()
    court.chain.panel = [*OTHERS, key(73).address]
    await court.step(3)
    assert court.judged == 0
    await court.chain.clock.advance(61)
    await court.step()
    assert court.mine == ["draw", "advance"]


async def test_after_an_appeal_the_vote_is_committed_to_anew(court: Court) -> None:
    await court.to_the_panel()
    await court.step(2)
    chain = court.chain
    first = dict(chain.commitments)
    chain.others_commit()
    await court.step(2)
    chain.commitments.clear(), chain.votes.clear()
    chain.phase, chain.level, chain.draw_block = Phase.OPENED, 1, chain.head  # appealed
    await court.step(4)
    assert chain.phase is Phase.COMMITTING and chain.commitments[ME.address] != first[ME.address]
    chain.others_commit()
    await court.step(2)
    assert chain.votes == {ME.address: int(VoteKind.FAULT)}
    assert court.mine.count("commitVote") == court.mine.count("revealVote") == 2


async def test_restart_between_commit_and_reveal_reveals_the_same_vote(court: Court) -> None:
    await court.to_the_panel()
    await court.step(2)
    assert "commitVote" in court.mine
    court.finding = StageFinding(1, "0x", (2, 5))  # whatever we would find now
    court.restart()
    court.chain.others_commit()
    await court.step(2)
    assert court.chain.votes == {ME.address: int(VoteKind.FAULT)}
    assert court.judged == 1


async def test_death_between_sending_and_remembering_the_commit_loses_nothing(
    court: Court,
) -> None:
    await court.to_the_panel()
    await court.step(2)
    assert court.book is not None
    court.book.unmark(DISPUTE)  # as if we had died before we wrote it down
    court.restart()
    await court.step()
    stored = court.book.get(DISPUTE, 0)
    assert stored is not None
    assert stored.committed, "the contract says that we have"
    court.book.unmark(DISPUTE)
    court.restart()
    court.chain.others_commit()  # and the phase moved on meanwhile
    await court.step()
    assert court.chain.votes == {ME.address: int(VoteKind.FAULT)}
    court.book.unmark(DISPUTE)
    court.restart()
    await court.step(2)
    assert court.mine.count("revealVote") == 1
    assert court.judged == 1


async def test_calls_that_others_made_first_are_passed_over(court: Court) -> None:
    wrong_phase = ContractRefused("refused", error="WrongPhase", args={"have": 2})
    court.chain.open()
    court.chain.grow(3)
    court.chain.refusals["draw"] = wrong_phase
    await court.step()
    assert court.mine == []
    await court.step()
    assert court.mine == ["draw"]
    court.chain.refusals["commitVote"] = ContractRefused(
        "late", error="ClockOver", args={"when": 1}
    )
    await court.step(3)
    assert court.mine == ["draw", "commitVote"]


async def test_juror_without_gas_tries_again_later(court: Court) -> None:
    short = GasShort("draw cannot be sent", have=0, need=1, address=ME.address, fix="send ETH")
    court.chain.open()
    court.chain.grow(3)
    court.chain.refusals["draw"] = short
    await court.step(3)
    assert court.mine == []
    await court.clock.sleep(jury.RETRY_S)
    await court.step()
    assert court.mine == ["draw"]


async def test_chain_that_is_silent_is_waited_for(court: Court) -> None:
    court.chain.open()
    court.chain.grow(3)
    court.chain.down = 3
    with pytest.raises(ChainUnreachable):
        await court.daemon.step()
    running = asyncio.create_task(court.daemon.run())
    async with asyncio.timeout(30):
        while "commitVote" not in court.mine:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 2.0 in court.clock.slept


async def test_reorganisation_sends_the_same_vote_again(court: Court) -> None:
    await court.to_the_panel()
    await court.step(2)
    before = dict(court.chain.commitments)
    chain = court.chain
    chain.reorganise(100)
    chain.commitments.clear()
    await court.step(2)
    assert court.mine.count("commitVote") == 2
    assert chain.commitments == before
    assert court.judged == 1


async def test_dispute_that_a_reorganisation_removed_is_forgotten(court: Court) -> None:
    await court.to_the_panel()
    chain = court.chain
    chain.reorganise(100)
    chain.log, chain.phase = [], Phase.NONE
    await court.step(3)
    assert court.mine == ["draw"]
    chain.open()
    chain.grow(3)
    await court.step(4)
    assert court.mine[-1] == "commitVote"


async def test_past_disputes_are_passed_over_at_start(court: Court) -> None:
    court.chain.open()
    court.chain.phase = Phase.EXECUTED
    await court.step(3)
    assert court.mine == []


# --- the vote ---


async def vote_of(court: Court) -> VoteKind:
    await court.to_the_panel()
    await court.step(2)
    ((vote, _),) = court.votes
    assert "commitVote" in court.mine
    return vote


async def test_stage_that_holds_is_not_at_fault(court: Court) -> None:
    court.finding = StageFinding(1, "0x", (2, 5), (RequestFinding(0, False, (), 0, 1, None),))
    assert await vote_of(court) is VoteKind.NO_FAULT


async def test_receipt_that_nobody_opens_is_at_fault(court: Court) -> None:
    court.leaves_error = RowsWithheld("stage 1 does not open its receipt", "…")
    assert await vote_of(court) is VoteKind.FAULT
    assert court.judged == 0


async def test_shard_that_is_not_the_registered_one_is_at_fault(court: Court) -> None:
    court.chain.receipt = msgspec.structs.replace(court.chain.receipt, shard_root="0x" + "ee" * 32)
    assert await vote_of(court) is VoteKind.FAULT
    assert court.judged == 0


async def test_what_cannot_be_measured_is_not_at_fault(court: Court) -> None:
    court.error = ModelUnsupported("no tolerance for a shard of 40 layers", "…")
    assert await vote_of(court) is VoteKind.UNMEASURED


async def test_a_model_without_tolerances_is_held_against_nobody(court: Court) -> None:
    court.in_shadow = True
    court.finding = StageFinding(1, "0x", (2, 5), (RequestFinding(0, False, (), 0, 1, None),))
    assert await vote_of(court) is VoteKind.UNMEASURED


@pytest.mark.parametrize("how", [{"function": ""}, {"function": "open"}, {"nonce": 2**64 - 1}])
async def test_challenger_that_does_not_show_its_case_has_none(
    court: Court, how: dict[str, Any]
) -> None:
    court.chain.open(**how)
    court.chain.grow(3)
    await court.step(3)
    assert court.votes == [(VoteKind.NO_FAULT, None)]
    assert "commitVote" in court.mine


@pytest.mark.parametrize(
    "error",
    [
        MatcherUnreachable("no answer", "so no endpoints"),
        CheckFailed("our copy is not the registered model", "…"),
        ZeroDivisionError("a bug"),
    ],
)
async def test_what_keeps_us_from_judging_is_tried_again_and_never_voted(
    court: Court, error: Exception
) -> None:
    court.error = error
    await court.to_the_panel()
    await court.step(4)
    assert court.votes == []
    assert court.judged == 1, "not at every look"
    await court.clock.sleep(jury.RETRY_S)
    court.error = None
    await court.step(3)
    assert court.votes == [(VoteKind.FAULT, court.finding)]


async def test_evidence_is_the_digest_of_the_finding(court: Court) -> None:
    await vote_of(court)
    assert court.book is not None
    stored = court.book.get(DISPUTE, 0)
    assert stored is not None
    assert stored.evidence == "0x" + court.finding.digest().hex()
    assert len(stored.salt) == 66


async def test_disputed_work_is_read_back(court: Court) -> None:
    court.chain.open()
    work = await read_disputed_work(court.chain, court.chain.log[-1])
    assert work.case.order == court.chain.work.signed.order
    assert work.receipt == court.chain.receipt
    court.chain.open(requests=-1)
    with pytest.raises(CheckFailed):
        await read_disputed_work(court.chain, court.chain.log[-1])
