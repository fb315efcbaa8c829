"""How a matcher of tests and benchmarks asks the stages of a plan whether they take an order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from client.pipeline.pipeline import Match
from core.protocol import types as t
from core.protocol import wire
from core.protocol.errors import HeadraceError
from core.runtime.network.channel import Peers


async def propose(
    peers: Peers,
    signed: t.SignedOrder,
    plan: Sequence[t.Stage],
    endpoints: Sequence[str],
    before: Match | None = None,
    *,
    answer_s: float = 5.0,
) -> tuple[list[t.SignedAcceptance], set[str]]:
    """Ask every stage at once: what they sign, and the operators that do not answer.

    Raises RuntimeError when one refuses.
    """
    continues = before.order_hash if before else None

    async def ask(index: int, stage: t.Stage) -> t.SignedAcceptance | None:
        message = wire.Propose(signed, list(plan), list(endpoints), index, continues)
        try:
            stream = await peers.get(stage.operator, endpoints[index], timeout_s=2.0)
            answer = (await stream.call(message, timeout_s=answer_s)).message
        except HeadraceError:
            return None
        if not isinstance(answer, wire.Accepted):
            raise RuntimeError(f"stage {index} refused: {answer}")
        return answer.signed

    found = await asyncio.gather(*(ask(index, stage) for index, stage in enumerate(plan)))
    silent = {s.operator for s, signed in zip(plan, found, strict=True) if signed is None}
    return [signed for signed in found if signed is not None], silent
