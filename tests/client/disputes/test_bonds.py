"""What an accuser may lock counts its disputes on chain, of either kind, and one more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from client.disputes.bonds import AtStake, BondLimits, at_stake
from core.dispute.game.dispute import JuryPhase, Phase
from tests.town.chain import FakeChain
from tests.town.orders import key

OURS, THEIRS, JURY, GAME = (key(n).address for n in (1, 2, 3, 4))
JOB, OTHER = "0x" + "11" * 32, "0x" + "22" * 32
BOND, JURY_BOND, FEE, BPS = 20, 50, 3, 50


class Disputes(FakeChain):
    """Disputes that were opened, and how far they are."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses |= {"ToleranceGame": GAME, "JuryArbitrator": JURY}
        self.phases: dict[str, int] = {}
        self.answers = {
            "ToleranceGame.bond": BOND,
            "ToleranceGame.bondBps": BPS,
            "JuryArbitrator.bondBps": BPS,
            "JuryArbitrator.bond": JURY_BOND,
            "JuryArbitrator.fee": FEE,
            "ToleranceGame.gameOf": self.standing,
            "JuryArbitrator.disputeOf": self.standing,
        }

    def standing(self, number: str) -> dict[str, int]:
        return {"phase": self.phases[number], "bond": JURY_BOND, "fee": FEE}

    def opened(self, phase: int, who: str, job: str, *, jury: bool = False, stage: int = 1) -> None:
        number = f"0x{len(self.phases):064x}"
        self.phases[number] = phase
        args = {"job": job, "stage": stage, "right": 0, "accused": THEIRS, "bond": BOND}
        if jury:
            self.emit("JuryArbitrator", "DisputeOpened", dispute=number, challenger=who, **args)
        else:
            args |= dict.fromkeys(("model", "receiptHash", "requestsRoot"), "0x")
            parties = {"accuser": who, "requester": who}
            self.emit("ToleranceGame", "GameOpened", id=number, **parties, **args)


async def stake(chain: Disputes, arbitrator: str, stage: int = 1) -> AtStake:
    plan = [SimpleNamespace(operator=THEIRS)] * 3
    order = SimpleNamespace(arbitrator=arbitrator)
    case: Any = SimpleNamespace(job_id=JOB, order=order, plan=plan)
    return await at_stake(chain, case, stage, OURS.lower(), 1)


@pytest.mark.parametrize(
    ("arbitrator", "needed"), [(GAME, BOND), (GAME.lower(), BOND), (JURY, JURY_BOND + FEE)]
)
async def test_one_dispute_takes_its_bond_and_before_the_jury_the_fee(
    arbitrator: str, needed: int
) -> None:
    assert await stake(Disputes(), arbitrator) == AtStake(needed, 0)


async def test_of_a_large_stake_the_bond_is_a_share() -> None:
    chain = Disputes()
    chain.stakes[THEIRS] = 100_000
    assert await stake(chain, GAME) == AtStake(500, 0)
    assert await stake(chain, JURY) == AtStake(500 + FEE, 0)


async def test_what_our_open_disputes_hold_is_locked_and_nobody_elses() -> None:
    chain = Disputes()
    chain.opened(Phase.PICKING, OURS, OTHER)
    chain.opened(Phase.RULED, OURS.lower(), OTHER, stage=2)
    chain.opened(Phase.EXECUTED, OURS, OTHER, stage=0)
    chain.opened(Phase.OPENED, THEIRS, OTHER)
    chain.opened(JuryPhase.COMMITTING, OURS, OTHER, jury=True)
    chain.opened(JuryPhase.EXECUTED, OURS, OTHER, jury=True)
    chain.opened(JuryPhase.OPENED, THEIRS, OTHER, jury=True)
    assert await stake(chain, GAME) == AtStake(BOND, 2 * BOND + JURY_BOND + FEE)


@pytest.mark.parametrize("jury", [True, False])
async def test_a_stage_that_we_have_accused_already_takes_nothing_more(jury: bool) -> None:
    chain = Disputes()
    chain.opened(Phase.OPENED, OURS, JOB, jury=jury)
    held = JURY_BOND + FEE if jury else BOND
    arbitrator = JURY if jury else GAME
    assert await stake(chain, arbitrator) == AtStake(0, held)
    takes = JURY_BOND + FEE if jury else BOND
    assert await stake(chain, arbitrator, stage=2) == AtStake(takes, held)


@pytest.mark.parametrize(
    ("limits", "held", "never", "not_yet"),
    [
        (BondLimits(), AtStake(10**9, 10**9), False, False),
        (BondLimits(each=20), AtStake(20, 10**9), False, False),
        (BondLimits(each=19), AtStake(20, 0), True, False),
        (BondLimits(at_once=60), AtStake(20, 40), False, False),
        (BondLimits(at_once=59), AtStake(20, 40), False, True),
        (BondLimits(each=0, at_once=0), AtStake(0, 40), False, False),
        (BondLimits(each=0, at_once=0), AtStake(1, 0), True, True),
    ],
)
def test_limits_hold_to_the_unit_and_never_stop_what_has_begun(
    limits: BondLimits, held: AtStake, never: bool, not_yet: bool
) -> None:
    assert bool(limits.never(held, str)) is never
    assert bool(limits.not_yet(held, str)) is not_yet
