"""What of an owner's pay was not collected yet?

Escrow keeps pay by operator. A key that was rotated away stays its owner's: what it earned before,
and what is still settled for its jobs, goes to the owner as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def earned_by(read: Callable[..., Awaitable[Any]], owner: str) -> dict[str, int]:
    """What each operator that an owner ever named has to collect, in whole base units, by
    `Chain.read`; without those that have nothing. Raises ChainUnreachable.
    """
    operators = [str(one) for one in await read("MinerRegistry", "operatorsOf", owner)]
    earned = await asyncio.gather(*(read("Escrow", "earnedOf", one) for one in operators))
    return {one: int(units) for one, units in zip(operators, earned, strict=True) if int(units)}
