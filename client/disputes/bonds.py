"""How much may an unattended accuser lock, for one dispute and for all of them at once?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client.audit.evidence import AuditCase, events_named
from client.disputes.jury_dispute import bond_due, challenge_cost
from core.chain.chain import Chain
from core.dispute.game.dispute import JuryPhase, Phase
from core.dispute.game.game_log import GAME, games


@dataclass(frozen=True)
class AtStake:
    """Base units: what accusing one stage takes, and what our disputes that are not over hold."""

    needed: int
    locked: int


@dataclass(frozen=True)
class BondLimits:
    """Base units, None for no limit: the most for one dispute, and for all together."""

    each: int | None = None
    at_once: int | None = None

    def never(self, stake: AtStake, show: Callable[[int], str]) -> str:
        """Why a stage is not accused at all, "" where it may be."""
        if self.each is None or stake.needed <= self.each:
            return ""
        return f"it takes {show(stake.needed)}, --max-bond is {show(self.each)}"

    def not_yet(self, stake: AtStake, show: Callable[[int], str]) -> str:
        """Why a stage is not accused before another dispute is over, "" where it may be now."""
        if self.at_once is None or not stake.needed:  # a game that has begun is played on
            return ""
        if stake.needed + stake.locked <= self.at_once:
            return ""
        return (
            f"it takes {show(stake.needed)}, open disputes hold {show(stake.locked)}, "
            f"--max-locked is {show(self.at_once)}"
        )


async def at_stake(
    chain: Chain, case: AuditCase, stage: int, accuser: str, first_block: int
) -> AtStake:
    """What accusing this stage takes; nothing where we have accused it. Raises ChainUnreachable."""
    ours = accuser.lower()
    locked, is_open = 0, False
    for event in await events_named(chain, "DisputeOpened", first_block):
        if event.args["challenger"].lower() != ours:
            continue
        found = await chain.read("JuryArbitrator", "disputeOf", event.args["dispute"])
        if JuryPhase(found["phase"]) is not JuryPhase.EXECUTED:
            locked += int(found["bond"]) + int(found["fee"])
            is_open |= (event.args["job"], event.args["stage"]) == (case.job_id, stage)
    game = chain.addresses.get(GAME, "").lower()
    for opened in await games(chain, first_block) if game else []:
        if opened.accuser.lower() != ours:
            continue
        found = await chain.read(GAME, "gameOf", opened.dispute)
        if Phase(found["phase"]) is not Phase.EXECUTED:
            locked += opened.bond
            is_open |= (opened.job, opened.stage) == (case.job_id, stage)
    if is_open:
        return AtStake(0, locked)
    operator = case.plan[stage].operator
    if game and case.order.arbitrator.lower() == game:
        return AtStake(await bond_due(chain, GAME, operator), locked)
    return AtStake((await challenge_cost(chain, operator)).total, locked)
