"""Disputes: who accuses whom of what, how far it is, whose clock runs, and every move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.dashboard.sources.chain_log import LoggedEvent
from client.disputes.game_record import OnTrial, describe_trial
from client.gateway.copied import copied
from client.jury.jury import Phase
from core.dispute.game.dispute import STATUSES
from core.protocol import ids

OPENED = {"DisputeOpened": "dispute", "GameOpened": "id"}
#: How a move reads, and what of its arguments says where it went.
MOVES = {
    "DisputeOpened": "The challenger accuses the stage and pays the bond",
    "JurorDrawn": "A juror is drawn",
    "DisputeAppealed": "A party brings the ruling before a larger panel",
    "DrawMissed": "Nobody drew in time: a later block decides",
    "VoteCommitted": "A juror commits a sealed vote",
    "RevealStarted": "All votes are sealed: they are opened now",
    "VoteRevealed": "A juror opens the vote",
    "DisputeRuled": "The jury has ruled",
    "DisputeExecuted": "The ruling is carried out",
    "JurorRewarded": "A juror of the majority is paid",
    "JurorPenalised": "A juror is penalised",
    "Slashed": "Stake is taken",
    "Shared": "The accuser and the requester get their shares",
    "GameOpened": "The accuser opens a game over the trace",
    "Accused": "The accuser commits to the trace that it computes itself",
    "Asked": "The accuser asks for rows that it was not given",
    "Revealed": "The accused shows the rows",
    "Picked": "The accused picks the part that it denies",
    "Pleaded": "The accused pleads that the noise of these rows explains it, and names a seed",
    "Restated": "The accuser restates its trace with the noise measured by that seed",
    "PointedAt": "The accused points at the one value it denies",
    "NodeOpened": "The accuser opens a node of its tree",
    "ChunksShown": "The accuser shows the values below a node",
    "Expanded": "The accuser writes the sum out",
    "PartPicked": "The accused picks the part of the sum that it denies",
    "GameRuled": "The referee contract has ruled",
    "GameExecuted": "The ruling is carried out",
}
JURY_PATH = ("opened", "committing", "revealing", "ruled", "executed")
#: `IToleranceGame.Phase`: its name, whose move it waits for, and how far along the path it is.
GAME_PHASES = (
    ("none", "", -1),
    ("opened", "accuser", 0),
    ("asked", "accused", 0),
    ("picking", "accused", 1),
    ("opening", "accuser", 1),
    ("proving", "accuser", 2),
    ("picking part", "accused", 3),
    ("proving part", "accuser", 3),
    ("pleaded", "accuser", 1),
    ("ruled", "payout", 4),
    ("executed", "", 5),
)
GAME_PATH = ("opened", "the tree", "one value", "one sum", "ruled", "executed")
JURY_TURN = {"opened": "the draw", "ruled": "an appeal, or the payout"} | dict.fromkeys(
    ("committing", "revealing"), "the jurors"
)
_BY_ACCUSED = ("Revealed", "Pleaded", "Picked", "PointedAt", "PartPicked")
_BY_ACCUSER = (
    "DisputeOpened",
    "GameOpened",
    "Accused",
    "Asked",
    "Restated",
    "NodeOpened",
    "ChunksShown",
    "Expanded",
)
#: Arguments that name a player, and those that say until when; they are no details of a move.
_PLAYERS = ("juror", "challenger", "accuser", "owner", "by")
_CLOCKS = ("endsAt", "commitUntil", "revealUntil", "payoutAt")
_NO_DETAILS = {"dispute", "id", "job", "accused", *_PLAYERS[:3], *_CLOCKS}


@dataclass(frozen=True)
class DisputeLine:
    """A dispute in the list."""

    dispute_id: str
    kind: str  # jury, game
    job_id: str
    stage: int
    accused: str
    challenger: str
    bond_units: int
    phase: str
    verdict: str
    at_s: int | None
    block: int


@dataclass(frozen=True)
class Disputes:
    """The page."""

    disputes: tuple[DisputeLine, ...]
    next_before: int | None
    at_ms: int
    problem: str


@dataclass(frozen=True)
class ShownStep:
    """One step of a dispute's path."""

    name: str
    text: str
    who: str | None
    side: str  # accuser, accused, jury, contract
    detail: tuple[tuple[str, str], ...]
    ends_at: int | None
    tx: str
    block: int
    at_s: int | None


@dataclass(frozen=True)
class Station:
    """A station of the path: done, now or to come."""

    name: str
    state: str


@dataclass(frozen=True)
class DisputePage:
    """One dispute."""

    line: DisputeLine
    path: tuple[Station, ...]
    moves: tuple[ShownStep, ...]
    clock_ends_at: int | None
    clock_left_s: int | None
    clock_of: str
    votes_fault: int | None
    reveals: int | None
    commits: int | None
    panel: tuple[str, ...]
    panel_size: int | None
    trial: tuple[tuple[str, str], ...]  # the number that a game ended at, "" names left out
    operator: str  # of the accused stage, "" where the order is not known here
    facts: tuple[tuple[str, str], ...]
    at_ms: int


def dispute_line(opened: LoggedEvent, state: Mapping[str, Any]) -> DisputeLine:
    """From the event that opened it and what the contract says now."""
    args, kind = opened.args, "jury" if opened.name == "DisputeOpened" else "game"
    number = int(state["phase"])
    phase = Phase(number).name.lower() if kind == "jury" else GAME_PHASES[number][0]
    status = int(state["status"])
    return copied(
        DisputeLine,
        opened,
        dispute_id=str(args[OPENED[opened.name]]),
        kind=kind,
        job_id=str(args["job"]),
        stage=int(args["stage"]),
        accused=str(args["accused"]),
        challenger=str(args.get("challenger") or args.get("accuser") or ""),
        bond_units=int(args["bond"]),
        phase=phase,
        verdict=STATUSES[status] if status < len(STATUSES) else f"status {status}",
    )


def dispute_page(
    opened: LoggedEvent,
    state: Mapping[str, Any],
    events: Sequence[LoggedEvent],
    panel: Sequence[str],
    *,
    trial: OnTrial | None = None,
    operator: str = "",
    chain_now_s: int,
    now_ms: int,
) -> DisputePage:
    """`events` are all that name the dispute, oldest first."""
    line = dispute_line(opened, state)
    moves = tuple(move(event) for event in events)
    is_over = line.phase == "executed"
    ends_at = int(state.get("phaseEndsAt") or state.get("endsAt") or 0) or None
    if line.phase == "ruled":
        ends_at = int(state.get("payoutAt") or 0) or ends_at
    return DisputePage(
        line=line,
        path=jury_path(line.phase) if line.kind == "jury" else game_path(line.phase),
        moves=moves,
        clock_ends_at=None if is_over else ends_at,
        clock_left_s=None if is_over or ends_at is None else ends_at - chain_now_s,
        clock_of="" if is_over else clock_of(line),
        votes_fault=state.get("votesFault"),
        reveals=state.get("reveals"),
        commits=state.get("commits"),
        panel=tuple(panel),
        panel_size=state.get("panel"),
        trial=tuple(describe_trial(trial).items()) if trial is not None else (),
        operator=operator,
        facts=tuple(
            (name, str(value))
            for name, value in state.items()
            if name not in ("job", "accused", "challenger", "accuser")
        ),
        at_ms=now_ms,
    )


def accused_operator(opened: LoggedEvent, matched: LoggedEvent) -> str:
    """The operator of the accused stage in the job's plan; "" for a stage that it lacks."""
    plan, stage = matched.args.get("plan") or [], int(opened.args["stage"])
    return str(plan[stage]["operator"]) if stage < len(plan) else ""


def jury_path(phase: str) -> tuple[Station, ...]:
    """Stations up to the phase are done, the phase is now, the rest is to come."""
    now = JURY_PATH.index(phase) if phase in JURY_PATH else -1
    return _stations(JURY_PATH, now, phase == "executed")


def game_path(phase: str) -> tuple[Station, ...]:
    """How deep the game has gone."""
    now = next((position for name, _, position in GAME_PHASES if name == phase), -1)
    return _stations(GAME_PATH, now, phase == "executed")


def _stations(names: Sequence[str], now: int, is_over: bool) -> tuple[Station, ...]:
    return tuple(
        Station(
            name, "done" if position < now or is_over else "now" if position == now else "later"
        )
        for position, name in enumerate(names)
    )


def move(event: LoggedEvent) -> ShownStep:
    """A move as people read it."""
    args = event.args
    return copied(
        ShownStep,
        event,
        text=MOVES.get(event.name, event.name),
        who=next((str(args[key]) for key in _PLAYERS if key in args), None),
        side=_side(event.name),
        detail=tuple((n, _shown(n, value)) for n, value in args.items() if n not in _NO_DETAILS),
        ends_at=next((int(args[key]) for key in _CLOCKS if key in args), None),
    )


def _shown(name: str, value: Any) -> str:
    if name == "vote":
        return {1: "fault", 2: "no fault", 3: "cannot be measured"}.get(int(value), str(value))
    if name == "status":
        return STATUSES[int(value)] if int(value) < len(STATUSES) else str(value)
    if name == "place" and isinstance(value, Mapping):
        row, where = value["row"], f"operator {value['op']}, section {value['section']}"
        return f"value {value['index']} of row {row}, {where}"
    text = str(value)
    return ids.abridged(text) if text.startswith("0x") and len(text) == 66 else text


def _side(name: str) -> str:
    if name in _BY_ACCUSER:
        return "accuser"
    if name in _BY_ACCUSED:
        return "accused"
    return "jury" if name.startswith(("Juror", "Vote", "Reveal")) else "contract"


def clock_of(line: DisputeLine) -> str:
    """Who has to move now, or what is waited for, after "time left for"."""
    if line.kind == "jury":
        return JURY_TURN.get(line.phase, "")
    turn = next((turn for name, turn, _ in GAME_PHASES if name == line.phase), "")
    return f"the {turn}" if turn else ""
