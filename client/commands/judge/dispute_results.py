"""What do commands print of a dispute with --json, whether jurors judge it or a game is played?"""

from __future__ import annotations

from core.runtime.commands.results import Result


class PlayedDispute(Result, frozen=True, forbid_unknown_fields=False):
    """`dispute` where the accusation is a game: how far it came, and the moves of this run."""

    dispute: str
    job: str
    stage: int
    accused: str
    verdict: str
    moves: int
    gas: int
    bond: str


class JuryDispute(Result, frozen=True, forbid_unknown_fields=False):
    """`dispute` where jurors judge."""

    dispute: str
    job: str
    stage: int
    accused: str
    phase: str
    verdict: str
    votes: str
    bond: str


class DisputeRow(Result, frozen=True, forbid_unknown_fields=False):
    """`disputes ls` and, before a jury, `disputes show`. `before` is game or jury."""

    before: str
    dispute: str
    job: str
    stage: int
    accused: str
    phase: str
    verdict: str
    votes: str
    bond: str


class Appealed(Result, frozen=True):
    """`disputes appeal`: what was asked for, of how large a panel, and what it took."""

    dispute: str
    asks: str
    panel: int
    bond: str
    fee: str


class Moved(Result, frozen=True):
    """`disputes move` and `disputes resolve`: the call that was made, and how it stands now."""

    dispute: str
    before: str
    done: str
    phase: str
    verdict: str
    clock_s: int
