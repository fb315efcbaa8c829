"""`disputes show` has a row for each move and says whose turn it is; with --watch it ends with the
verdict and the number on trial.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.commands.judge import show_dispute as dispute_shown
from client.commands.judge.move_dispute import Standing
from client.commands.judge.show_dispute import Shown, show_dispute, watch_dispute
from client.disputes.game_record import OnTrial, ShownMove
from core.dispute.game.dispute import JuryPhase, Phase
from core.dispute.trace.layout import Place
from core.runtime.commands.console import GlobalOptions, Run
from core.runtime.commands.results import plain
from core.runtime.folders import Folders
from tests.client.commands.judge.test_move_dispute import OPENED

MOVE = plain(ShownMove("accuser", "accuse", "rows 0 to 3", 9, 4, 7, "0x" + "ab" * 32))
TRIAL = OnTrial(Place(11, 3), "linear", 16, None, 1, 0.5, 0.5, "holds")
OPEN = replace(OPENED, phase=Phase.PICKING, status="open")
RULED = replace(OPENED, phase=Phase.RULED, status="fault")


def run_of(tmp_path: Path, *, json: bool = True) -> Run:
    options = GlobalOptions(json=json, no_color=True)
    return Run("auditor", "disputes show", options, folders=Folders.at(tmp_path))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Shown]:
    """What is seen, look by look; the last one stays."""
    seen: list[Shown] = []

    async def look(context: Any, typed: str) -> Shown:
        return seen.pop(0) if len(seen) > 1 else seen[0]

    async def on_trial(chain: Any, game: Any) -> OnTrial:
        return TRIAL

    async def at_once(_: float) -> None: ...

    @asynccontextmanager
    async def open_context(settings: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(chain=None)

    for stand_in in (look, on_trial, open_context):
        monkeypatch.setattr(dispute_shown, stand_in.__name__, stand_in)
    monkeypatch.setattr("asyncio.sleep", at_once)
    return seen


async def test_watching_says_each_state_once_and_ends_with_the_verdict(
    looks: list[Shown], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = [MOVE], [MOVE, MOVE | {"function": "pick", "player": "accused"}]
    looks += [
        Shown(OPEN, first),
        Shown(OPEN, first),
        Shown(OPEN, first),
        Shown(RULED, second),
    ]
    await watch_dispute(run_of(tmp_path), "disp_1")
    said = capsys.readouterr()
    documents = [json.loads(line) for line in said.out.splitlines()]
    assert [d["result"] for d in documents[:-1]] == [first, second]
    assert {d["schema"] for d in documents} == {"headrace.auditor.disputes.show/1"}
    assert documents[-1]["result"]["so the leaf"] == "holds"
    assert "fault" in said.err


@pytest.mark.parametrize(
    ("standing", "says"),
    [
        (OPEN, "accused · is to move, until 1970-01-01 00:02:10 UTC"),
        (replace(OPEN, now=131), "accused · is to move, its clock has run out"),
        (replace(OPEN, phase=Phase.PROVING), "accuser · is to move, until 1970-01-01 00:02:10 UTC"),
        (RULED, "anyone · may carry the verdict out"),
        (replace(RULED, phase=Phase.EXECUTED), ""),
    ],
)
def test_people_see_whose_turn_it_is_and_a_hash_that_fits(standing: Standing, says: str) -> None:
    assert len(Shown(standing, []).table()) == bool(says)
    rows = Shown(standing, [MOVE]).table()
    assert rows[0]["tx_hash"] == "0xabababab…abab"
    assert [f"{row['player']} · {row['what']}" for row in rows[1:]] == ([says] if says else [])
    assert all(row.keys() == MOVE.keys() for row in rows)


async def test_a_jurys_dispute_is_one_row_that_says_how_the_votes_are(
    looks: list[Shown], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "before": "jury",
        "dispute": "disp_1",
        "job": "job_1",
        "stage": 1,
        "accused": "0x",
        "phase": "ruled",
        "verdict": "no fault",
        "votes": "1 fault of 3 revealed, panel 3",
        "bond": "50usd",
    }
    jury = Standing("0x" + "cd" * 32, None, JuryPhase.RULED, "no fault", 0, 0)
    looks += [Shown(jury, [row])]
    await show_dispute(run_of(tmp_path), "disp_1")
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["result"] == [row]
    assert Shown(jury, [row]).is_ruled and not Shown(OPEN, []).is_ruled
