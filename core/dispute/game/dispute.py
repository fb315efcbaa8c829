"""Which phases has a dispute, whose turn is it in each, and how may it end?

Of both ways to settle one: the tolerance game and the jury. Twins: IToleranceGame, IJuryArbitrator.
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """`IToleranceGame.Phase`."""

    NONE = 0
    OPENED = 1
    ASKED = 2
    PICKING = 3
    OPENING = 4
    PROVING = 5
    PICKING_PART = 6
    PROVING_PART = 7
    PLEADED = 8
    RULED = 9
    EXECUTED = 10


#: Who loses by silence in which phase: the accuser, or the accused.
ACCUSER_TURNS = frozenset(
    {Phase.OPENED, Phase.OPENING, Phase.PROVING, Phase.PROVING_PART, Phase.PLEADED}
)
ACCUSED_TURNS = frozenset({Phase.ASKED, Phase.PICKING, Phase.PICKING_PART})


class Verdict(IntEnum):
    """`IArbitrator.Status`."""

    NONE = 0
    OPEN = 1
    FAULT = 2
    NO_FAULT = 3
    NO_RULING = 4


#: In people's words.
STATUSES = tuple(verdict.name.lower().replace("_", " ") for verdict in Verdict)


#: The contract of the other way to settle a dispute.
JURY = "JuryArbitrator"


class JuryPhase(IntEnum):
    """`IJuryArbitrator.Phase`."""

    NONE = 0
    OPENED = 1
    COMMITTING = 2
    REVEALING = 3
    RULED = 4
    EXECUTED = 5
