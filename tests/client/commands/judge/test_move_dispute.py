"""Whose turn is it, and which call moves a dispute on, is said before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.commands.judge import move_dispute
from client.commands.judge.move_dispute import (
    Standing,
    _due,
    _due_of_jury,
    _ours_to_move,
    check_appealable,
)
from core.dispute.game.dispute import JuryPhase, Phase
from core.dispute.game.game_log import Opened
from core.protocol.errors import UsageError
from core.runtime.commands.console import GlobalOptions, Run
from tests.town.chain import FakeChain
from tests.town.orders import key

OURS, THEIRS = key(1).address, key(2).address
DISPUTE = "0x" + "ab" * 32
JOB, MODEL, ROOT = ("0x" + byte * 32 for byte in ("cd", "11", "22"))
GAME = Opened(DISPUTE, JOB, 1, 0, OURS, OURS, THEIRS, MODEL, "0x", ROOT, 5, 1)
OPENED = Standing(DISPUTE, GAME, Phase.OPENED, "none", ends_at=130, now=100)


def at(phase: Any, left_s: int = 30, game: Opened | None = GAME) -> Standing:
    return replace(OPENED, phase=phase, ends_at=OPENED.now + left_s, game=game)


@pytest.mark.parametrize("phase", [Phase.OPENED, Phase.OPENING, Phase.PROVING])
def test_an_accuser_moves_in_its_own_turns(phase: Phase) -> None:
    assert _ours_to_move(at(phase), OURS) is GAME
    assert _ours_to_move(at(phase, 0), OURS) is GAME, "the last second is the accuser's"


@pytest.mark.parametrize(
    ("standing", "who", "says"),
    [
        (at(Phase.PICKING), OURS, "it is the accused's turn"),
        (at(Phase.OPENED), THEIRS, "does not play"),
        (at(Phase.OPENED, -1), OURS, "no move is left"),
        (at(Phase.RULED), OURS, "no move is left"),
        (at(JuryPhase.COMMITTING, game=None), OURS, "before the jury"),
    ],
)
def test_nobody_else_moves_and_is_told_why(standing: Standing, who: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _ours_to_move(standing, who)


@pytest.mark.parametrize(
    ("standing", "call"),
    [
        (at(Phase.PICKING, -1), "timeout"),
        (at(Phase.OPENED, -1), "timeout"),
        (at(Phase.RULED, 0), "execute"),
        (at(Phase.RULED, -5), "execute"),
    ],
)
def test_a_clock_that_has_run_out_lets_anybody_call(standing: Standing, call: str) -> None:
    assert _due(standing) == call


@pytest.mark.parametrize(
    ("standing", "says"),
    [
        (at(Phase.PICKING, 0), "the accused has 0s more"),
        (at(Phase.OPENED, 12), "the accuser has 12s more"),
        (at(Phase.RULED, 12), "the payout waits 12s more"),
        (at(Phase.EXECUTED, -9), "was none, and it is executed"),
    ],
)
def test_one_that_runs_does_not(standing: Standing, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        _due(standing)
    assert says in caught.value.why


@pytest.mark.parametrize(
    ("phase", "ends_at", "call"),
    [
        (JuryPhase.OPENED, 0, "draw"),
        (JuryPhase.COMMITTING, 99, "advance"),
        (JuryPhase.RULED, 100, "execute"),
        (JuryPhase.REVEALING, 101, None),
        (JuryPhase.EXECUTED, 0, None),
    ],
)
async def test_a_jury_is_moved_on_by_the_calls_that_anybody_may_make(
    phase: JuryPhase, ends_at: int, call: str | None
) -> None:
    chain = FakeChain(blocks=8)
    standing = {"phase": phase, "drawBlock": 7, "phaseEndsAt": ends_at, "payoutAt": ends_at}
    standing["level"] = 0
    chain.answers["JuryArbitrator.disputeOf"] = standing
    context: Any = SimpleNamespace(chain=chain)
    seen = Standing(DISPUTE, None, phase, "none", ends_at, now=100)
    if call is None:
        with pytest.raises(UsageError):
            await _due_of_jury(context, seen)
    else:
        assert await _due_of_jury(context, seen) == call


@pytest.mark.parametrize(
    "made", [SimpleNamespace(function="openNode", sent=SimpleNamespace(gas_used=9)), None]
)
async def test_one_move_is_made_and_where_it_leads_is_told(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which move it is, `play_dispute.next_move` says; `tests/game` has whole games of them."""
    stood, asked = [at(Phase.OPENING), at(Phase.PICKING)], []

    async def standing(context: Any, typed: str) -> Standing:
        return stood.pop(0)

    async def investigate(*args: Any, **more: Any) -> Any:
        asked.append((args[2], more))
        return "found"

    async def next_move(context: Any, signer: Any, found: Any, opened: Any, permission: Any) -> Any:
        assert (found, opened, permission) == ("found", GAME, None)
        return made

    @asynccontextmanager
    async def open_context(settings: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace()

    for stand_in in (standing, investigate, next_move, open_context):
        monkeypatch.setattr(move_dispute, stand_in.__name__, stand_in)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    run = Run("auditor", "disputes move", GlobalOptions(yes=True, json=True))
    run.unlock = lambda *_, **__: key(1)  # type: ignore[method-assign, assignment]
    await move_dispute.move(run, "disp_1", None)
    ((job, more),) = asked
    assert job.startswith("job_") and more == {"rerun": False}
    told = capsys.readouterr().out
    assert ('"done":"openNode"' in told) is (made is not None)
    assert '"phase":"picking"' in told


@pytest.mark.parametrize(
    ("standing", "is_appealable", "says"),
    [
        (at(JuryPhase.RULED, 1, game=None), True, ""),
        (at(JuryPhase.RULED, 1, game=None), False, "two appeals"),
        (at(JuryPhase.RULED, 0, game=None), True, "ran out"),
        (at(JuryPhase.REVEALING, 1, game=None), True, "revealing"),
        (at(JuryPhase.EXECUTED, 1, game=None), True, "executed"),
        (at(Phase.RULED, 1), True, "game"),
    ],
)
def test_a_ruling_of_a_jury_is_appealed_in_its_time_alone(
    standing: Standing, is_appealable: bool, says: str
) -> None:
    if not says:
        check_appealable(standing, is_appealable=is_appealable)
        return
    with pytest.raises(UsageError) as caught:
        check_appealable(standing, is_appealable=is_appealable)
    assert says in caught.value.why
