"""Which keys worked for an owner, and what of their pay was not collected yet?

Escrow keeps pay by operator. A key that was rotated away stays its owner's: what it earned before,
and what is still settled for its jobs, goes to the owner as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from core.chain.chain import Chain, ChainEvent, history


def operator_named(event: ChainEvent, owner: str) -> str | None:
    """The operator that this event gives to the owner; None for all other events."""
    match event.name:
        case "MinerRegistered" if event.args["owner"].lower() == owner.lower():
            return str(event.args["operator"])
        case "OperatorRotated" if event.args["owner"].lower() == owner.lower():
            return str(event.args["newOperator"])
    return None


async def operators_of(chain: Chain, owner: str, deploy_block: int) -> list[str]:
    """Every operator that an owner ever named, in their order. Raises ChainUnreachable."""
    found: dict[str, None] = {}
    async for _, events in history(chain, deploy_block):
        for event in events:
            operator = operator_named(event, owner)
            if operator is not None:
                found[operator] = None
    return list(found)


async def earned_by(chain: Chain, operators: Iterable[str]) -> dict[str, int]:
    """What each of these operators has to collect, in whole base units; without those that have
    nothing. Raises ChainUnreachable.
    """
    asked = list(operators)
    earned = await asyncio.gather(*(chain.read("Escrow", "earnedOf", who) for who in asked))
    return {who: int(units) for who, units in zip(asked, earned, strict=True) if int(units)}
